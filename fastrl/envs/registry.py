"""From an id to an environment: `family:name`, one adapter per family.

A new family is one line in `_FAMILIES` and one module with the functions of `Adapter`. An
environment of the user's own is a factory given to `register_env`; a family of one's own, for
tests, is a `FunctionEnvs` given to `register_family`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import gymnasium

from fastrl.envs.frame_stack import FrameStack, stacked_spec
from fastrl.envs.options import EnvOptions
from fastrl.envs.spec import EnvSpec
from fastrl.envs.user_env import EnvFactory, register_env, registered_envs
from fastrl.envs.vector_env import VectorEnv
from fastrl.errors import ConfigError


class Adapter(Protocol):
    """What a family provides; a module with these functions is one."""

    def names(self, family: str) -> list[str] | None:
        """All names of the family, without its prefix; None if they cannot be listed.

        Those of the form `module:name` need not be among them.
        """
        ...

    def describe(self, env_id: str, options: EnvOptions) -> EnvSpec:
        """See `describe`."""
        ...

    def make(
        self, env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
    ) -> VectorEnv:
        """See `make`."""
        ...


@dataclass(frozen=True)
class FunctionEnvs:
    """A family made of two functions; it takes every name."""

    describe: Callable[[str, EnvOptions], EnvSpec]
    make: Callable[[str, EnvOptions, int, int, int], VectorEnv]

    def names(self, family: str) -> None:
        """No list of names: any is passed on."""
        return None


# Modules are imported when one of their ids is asked for.
_FAMILIES: dict[str, str | Adapter] = {
    "ale": "fastrl.envs.ale_adapter",
    "atari": "fastrl.envs.envpool_adapter",
    "envpool": "fastrl.envs.envpool_adapter",
    "gym": "fastrl.envs.gymnasium_adapter",
    "py": "fastrl.envs.user_env",
}
_registered: dict[str, Adapter] = {}
# These stack frames themselves.
_STACKING = ("ale", "atari")
# These load the game to tell its actions; they keep what they found in the process.
_SLOW_TO_DESCRIBE = ("atari:",)
# Listing the names of these loads the library.
_NAMES_TAKE_A_LIBRARY = ("atari", "envpool")
# Families with names of the form `module:name`; the adapter imports the module and looks.
_WITH_MODULES = ("gym", "py")


def register_family(prefix: str, adapter: Adapter) -> None:
    """Make `prefix:...` ids of this process go to `adapter`, in place of what had that prefix.

    Raises:
        ConfigError: the prefix is not a lower-case word.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", prefix):
        raise ConfigError(
            f"The family prefix {prefix!r} must be a lower-case word of letters, digits and _."
        )
    _FAMILIES[prefix] = adapter
    _registered[prefix] = adapter


def registered_families() -> dict[str, Adapter]:
    """What `register_family` was given in this process, for handing it on to others."""
    return dict(_registered)


@dataclass(frozen=True)
class Registered:
    """What was registered in one process; it travels to another by cloudpickle."""

    families: dict[str, Adapter]
    envs: dict[str, EnvFactory]
    gymnasium: dict[str, Any] = field(default_factory=dict)
    """Entries of Gymnasium's own registry, by id."""


def registered(env_id: str) -> Registered:
    """What `register_family` and `register_env` were given in this process that `env_id` needs."""
    family, _, name = env_id.partition(":")
    return Registered(
        families={prefix: a for prefix, a in registered_families().items() if prefix == family},
        envs={own: f for own, f in registered_envs().items() if (family, name) == ("py", own)},
        # A script may register an id with Gymnasium as well.
        gymnasium={
            own: spec for own, spec in gymnasium.registry.items() if (family, name) == ("gym", own)
        },
    )


def register_all(other: Registered) -> None:
    """Register here what was registered in another process."""
    for prefix, adapter in other.families.items():
        register_family(prefix, adapter)
    for name, factory in other.envs.items():
        register_env(name, factory)
    for name, spec in other.gymnasium.items():
        gymnasium.registry.setdefault(name, spec)


def check_name(env_id: str) -> None:
    """Refuse, as `describe` does, an id that is wrong by what is known here already: of families
    whose names only their library knows, nothing (it takes most of a second and 160 MB)."""
    if env_id.partition(":")[0] not in _NAMES_TAKE_A_LIBRARY:
        _adapter(env_id)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Find out the spaces of `env_id`; nothing is constructed where the family can do without.

    Raises:
        ConfigError: there is no such id (naming the nearest), or an option does not fit it.
        UnsupportedEnvironment: the engine cannot use its spaces.
    """
    spec = _adapter(env_id).describe(env_id, options)
    count = _frames_to_stack(env_id, options)
    return spec if count == 1 else stacked_spec(spec, count)


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> VectorEnv:
    """Construct one group.

    Args:
        env_id: `family:name`.
        options: refused where the family does not use one that was set.
        num_envs: E, >= 1.
        first_env_index: run-wide index of its first environment, >= 0; the others follow. An
            environment is seeded by (seed, its run-wide index), so how a run is cut into groups
            changes no episode.
        seed: of the run, >= 0.

    Raises:
        ConfigError, UnsupportedEnvironment: as `describe`.
    """
    if num_envs < 1 or first_env_index < 0 or seed < 0:
        raise ConfigError(
            f"A group of {num_envs} environments from index {first_env_index} with seed {seed} "
            "cannot be made: it takes at least 1 environment, an index and a seed of at least 0."
        )
    env = _adapter(env_id).make(env_id, options, num_envs, first_env_index, seed)
    count = _frames_to_stack(env_id, options)
    return env if count == 1 else FrameStack(env, count)


def preload(env_id: str, options: EnvOptions) -> None:
    """Find out and keep what `describe` and `make` ask for, where every process would spend time
    on it: 64 processes took 3 s of two cores. A fault is left for them to meet."""
    if env_id.startswith(_SLOW_TO_DESCRIBE):
        with contextlib.suppress(Exception):
            describe(env_id, options)


def _frames_to_stack(env_id: str, options: EnvOptions) -> int:
    """How many observations are made one outside of the adapter."""
    return 1 if env_id.partition(":")[0] in _STACKING else options.frame_stack or 1


def _adapter(env_id: str) -> Adapter:
    family, colon, name = env_id.partition(":")
    if not colon:
        raise ConfigError(
            f"The environment id {env_id!r} has no family: write family:name{_suggest(env_id)}"
        )
    if family not in _FAMILIES:
        raise ConfigError(
            f"There is no family {family}: (of {env_id!r}), only {_families()}{_suggest(name)}"
        )
    adapter = _load(family)
    known = adapter.names(family)
    if known is None or name in known or (family in _WITH_MODULES and ":" in name):
        return adapter
    if family == "py":
        raise ConfigError(_unregistered(env_id, name, known))
    hint = " (An id that importing a module registers is gym:module:ID.)" if family == "gym" else ""
    raise ConfigError(f"There is no environment {env_id!r}{_suggest(name, family)}{hint}")


def _load(family: str) -> Adapter:
    adapter = _FAMILIES[family]
    return cast(Adapter, importlib.import_module(adapter)) if isinstance(adapter, str) else adapter


def _families() -> str:
    *most, last = (f"{family}:" for family in _FAMILIES)
    return f"{', '.join(most)} and {last}"


def _unregistered(env_id: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=3) or known[:3]
    return (
        f"There is no environment {env_id!r}: here register_env was given "
        f"{' and '.join(nearest) or 'nothing'}. A name given to register_env is known to the "
        "script or notebook that calls it; py:module:function, a function in a file of the current "
        "folder, works everywhere."
    )


def _suggest(name: str, family: str = "") -> str:
    """End a sentence with the ids nearest to `name`, those of `family` first.

    A name that differs in case, in its version or in the spelling of another library alone
    (`PongNoFrameskip-v4`, `ALE/Pong-v5`) comes before one that only looks alike.
    """
    same: list[str] = []
    spelled: list[str] = []
    alike: dict[str, str] = {}
    for prefix in sorted(_FAMILIES, key=lambda prefix: prefix != family):
        for known in sorted(_load(prefix).names(prefix) or (), reverse=True):
            full = f"{prefix}:{known}"
            if known.lower() == name.lower():
                same.append(full)
            elif _bare(known) == _bare(name):
                spelled.append(full)
            alike.setdefault(known.lower(), full)
    exact = same + spelled
    if not exact:
        close = difflib.get_close_matches(name.lower(), alike, n=3, cutoff=0.6)
        exact = [alike[match] for match in close]
    if not exact:
        return (
            "; try one like atari:Pong or gym:CartPole-v1, or envpool: and an id of "
            "envpool.list_all_envs()."
        )
    return f", did you mean {' or '.join(exact[:3])}?"


def _bare(name: str) -> str:
    """The name without version, case and the prefixes and suffixes that other libraries give it."""
    name = name.lower().replace("_", "")
    return re.sub(r"^(ale/|.*:)|(noframeskip|deterministic)?(-v\d+)?$", "", name)
