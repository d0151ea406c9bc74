"""Environments: one protocol (`vector_env`), one adapter per family, one `registry` that finds it.

Nothing here imports torch: rollout processes are numpy and C++ only.
"""

from fastrl.envs.options import EnvOptions, evaluation_options
from fastrl.envs.registry import (
    FunctionEnvs,
    describe,
    make,
    register_family,
    registered_families,
)
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec, map_action
from fastrl.envs.vector_env import StepOut, VectorEnv

__all__ = [
    "ActionSpec",
    "EnvOptions",
    "EnvSpec",
    "FunctionEnvs",
    "ObservationSpec",
    "StepOut",
    "VectorEnv",
    "describe",
    "evaluation_options",
    "make",
    "map_action",
    "register_family",
    "registered_families",
]
