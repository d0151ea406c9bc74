"""The family `gym:ID`: environments that are registered with Gymnasium.

`gym:module:ID` imports a module first, which registers it (`gym:ale_py:ALE/Pong-v5`, or a module of
the user's own, see `user_module`). E environments are made and stepped one by one, or with
`vector_entry_point` by the vector environment that the id is registered with.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import load_env_creator

from fastrl.envs.gymnasium_checks import constructing
from fastrl.envs.gymnasium_vector import GymnasiumVector, vector_keywords
from fastrl.envs.options import EnvOptions, check_options, keyword_arguments
from fastrl.envs.single_envs import SingleEnvs
from fastrl.envs.spec import EnvSpec
from fastrl.envs.user_module import import_module
from fastrl.envs.vector_env import VectorEnv
from fastrl.envs.wrapping import wrapped
from fastrl.errors import ConfigError

OWNED = {
    "id": "--env",
    "max_episode_steps": "--max-episode-steps",
    "disable_env_checker": "the engine",
}
_OPTIONS = ("max_episode_steps", "action_repeat", "vector_entry_point", "wrap")


def names(family: str) -> list[str]:
    """The ids registered so far, without the prefix; `module:ID` may register more."""
    return list(gymnasium.registry)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe the environment of `env_id` by constructing one, and closing it.

    Raises:
        ConfigError: there is no such id, it cannot be constructed here, or an option does not fit.
        UnsupportedEnvironment: its spaces or its way of resetting cannot be used.
    """
    env = make(env_id, options, 1, 0, 0)
    with contextlib.suppress(Exception):  # the run's own say so at its end
        env.close()
    return env.spec


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> VectorEnv:
    """Construct one group; see `fastrl.envs.registry.make`."""
    check_options(env_id, options, _OPTIONS)
    registered = _find(env_id)
    if options.vector_entry_point:
        return _vector(env_id, registered, options, num_envs, first_env_index, seed)
    if registered.entry_point is None:
        raise ConfigError(
            f"{env_id} is registered with a vector entry point only: set --vector-entry-point."
        )

    arguments = keyword_arguments(options, OWNED)

    def construct() -> gymnasium.Env[Any, Any]:
        # Its checker looks at the first step alone, and complains of things that do no harm.
        env = gymnasium.make(
            registered.id,
            max_episode_steps=options.max_episode_steps,
            disable_env_checker=True,
            **arguments,
        )
        whole: gymnasium.Env[Any, Any] = wrapped(env, options.wrap, gymnasium.Env)
        return whole

    return SingleEnvs(env_id, construct, options, num_envs, first_env_index, seed)


def _vector(
    env_id: str,
    registered: Registration,
    options: EnvOptions,
    num_envs: int,
    first_env_index: int,
    seed: int,
) -> GymnasiumVector:
    one_by_one = "leave --vector-entry-point off to run it one by one"
    if registered.vector_entry_point is None:
        raise ConfigError(f"{env_id} has no vector entry point: {one_by_one}.")
    with constructing(env_id):
        entry_point = registered.vector_entry_point
        creator: Callable[..., Any] = (
            load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        )
    keywords = vector_keywords(env_id, options, ("vector_entry_point",), creator)

    def construct() -> Any:
        return gymnasium.make_vec(
            registered.id, num_envs, vectorization_mode="vector_entry_point", **keywords
        )

    return GymnasiumVector(
        env_id, construct, options, num_envs, first_env_index, seed, one_by_one=one_by_one
    )


def _find(env_id: str) -> Registration:
    """What gymnasium knows of the id, whose module is imported first if it names one.

    An id without its version is not taken for the newest: that would change with what is installed.
    """
    module, _, name = env_id.split(":", 1)[1].rpartition(":")
    if module:
        import_module(env_id, module)
    if name not in gymnasium.registry:
        close = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "nor any that is like it."
        raise ConfigError(
            f"There is no environment {env_id!r}: gymnasium has no {name}, registered by itself or "
            f"by {module or 'another module'}; {hint}"
        )
    return gymnasium.registry[name]
