"""Environments: one protocol (`vector_env`), one adapter per family, one `registry` that finds it.

Nothing here imports torch: rollout processes are numpy and C++ only.
"""

from fastrl.envs.options import EnvOptions, evaluation_options
from fastrl.envs.registry import (
    FunctionEnvs,
    Registered,
    describe,
    make,
    register_all,
    register_family,
    registered,
    registered_families,
)
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec, map_action
from fastrl.envs.user_env import register_env
from fastrl.envs.vector_env import StepOut, VectorEnv

__all__ = [
    "ActionSpec",
    "EnvOptions",
    "EnvSpec",
    "FunctionEnvs",
    "ObservationSpec",
    "Registered",
    "StepOut",
    "VectorEnv",
    "describe",
    "evaluation_options",
    "make",
    "map_action",
    "register_all",
    "register_env",
    "register_family",
    "registered",
    "registered_families",
]
