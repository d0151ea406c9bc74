"""The family `py:`, environments made by a function of the user's: `py:module:function`, or
`py:name` for a function that `register_env` was given in this process.

A function (or class, or anything else that can be called) without a parameter `num_envs` is called
once for each environment, without an argument, and returns a new `gymnasium.Env` every time. One
with that parameter is called once for a group, as `function(num_envs=E)`, and returns a
`gymnasium.vector.VectorEnv`; parameters `max_episode_steps` and `autoreset_mode` of it are used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium

from fastrl.envs.gymnasium_vector import GymnasiumVector, takes, vector_keywords
from fastrl.envs.options import EnvOptions, check_options, keyword_arguments
from fastrl.envs.single_envs import SingleEnvs
from fastrl.envs.spec import EnvSpec
from fastrl.envs.user_module import attribute, import_module
from fastrl.envs.vector_env import VectorEnv
from fastrl.envs.wrapping import wrapped
from fastrl.errors import ConfigError, UnsupportedEnvironment

EnvFactory = Callable[..., gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]]

_factories: dict[str, EnvFactory] = {}


def register_env(name: str, factory: EnvFactory) -> None:
    """Make the id `py:name` stand for the environments of `factory` in this process and in those
    that it starts.

    It replaces what had the name. The factory travels by cloudpickle, so it may be defined in a
    script or a notebook.

    Args:
        name: letters, digits, `_`, `-` and `.`.
        factory: returns a new `gymnasium.Env` at every call; see the module docstring for one that
            returns a `gymnasium.vector.VectorEnv`.

    Raises:
        ConfigError: the name is not such a word, or the factory cannot be called.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ConfigError(
            f"The environment name {name!r} must be a word of letters, digits, _, - and . only; it "
            f"is used as py:name."
        )
    if not callable(factory):
        raise ConfigError(
            f"The factory of py:{name} is a {type(factory).__name__}; it must be a function that "
            "takes nothing and returns a new gymnasium.Env."
        )
    _factories[name] = factory


def registered_envs() -> dict[str, EnvFactory]:
    """What `register_env` was given in this process."""
    return dict(_factories)


def names(family: str) -> list[str]:
    """The names that were given to `register_env`; `module:function` works besides them."""
    return sorted(_factories)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe the environment of `env_id` by constructing one, and closing it.

    Raises:
        ConfigError: there is no such function, it raises, or it does not use an option.
        UnsupportedEnvironment: what it returns cannot be used.
    """
    env = make(env_id, options, 1, 0, 0)
    with contextlib.suppress(Exception):  # the run's own say so at its end
        env.close()
    return env.spec


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> VectorEnv:
    """Construct one group; see `fastrl.envs.registry.make`."""
    check_options(env_id, options, ("max_episode_steps", "action_repeat", "wrap"))
    factory = _find(env_id)
    arguments = keyword_arguments(options)
    if takes(factory, "num_envs"):
        keywords = vector_keywords(env_id, options, (), factory)
        return GymnasiumVector(
            env_id,
            lambda: factory(num_envs=num_envs, **keywords),
            options,
            num_envs,
            first_env_index,
            seed,
            one_by_one="let the function have no parameter num_envs and return one gymnasium.Env, "
            "to have them run one by one",
        )

    def construct() -> gymnasium.Env[Any, Any]:
        env = factory(**arguments)
        if not isinstance(env, gymnasium.Env):
            raise UnsupportedEnvironment(_not_an_env(env_id, env))
        limit = options.max_episode_steps
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
        whole: gymnasium.Env[Any, Any] = wrapped(env, options.wrap, gymnasium.Env)
        return whole

    return SingleEnvs(env_id, construct, options, num_envs, first_env_index, seed)


def _find(env_id: str) -> EnvFactory:
    name = env_id.split(":", 1)[1]
    module, colon, path = name.partition(":")
    if not colon:
        return _factories[name]  # the registry has refused all other names
    if not module or not path or ":" in path:
        raise ConfigError(
            f"{env_id!r} is not py:module:function: write the name of a module, a colon and the "
            "name of a function in it."
        )
    found = attribute(env_id, import_module(env_id, module), path)
    if not callable(found):
        raise ConfigError(
            f"{path} of {env_id!r} is a {type(found).__name__}; it must be a function that takes "
            "nothing and returns a new gymnasium.Env, or the class of one."
        )
    factory: EnvFactory = found
    return factory


def _not_an_env(env_id: str, value: Any) -> str:
    if isinstance(value, gymnasium.vector.VectorEnv):
        return (
            f"{env_id} cannot be used: it returned a vector environment without being told of how "
            "many; give the function a parameter num_envs, or return one gymnasium.Env."
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return (
        f"{env_id} cannot be used: it returned a {kind}, and not a gymnasium.Env; derive the "
        "environment's class from gymnasium.Env."
    )
