"""An id of envpool, understood: its spec, and what its constructor and its batches are asked for.

options, --env-args ──▶ keywords ──▶ envpool's spec ──▶ our leaves, and the key of each array
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from fastrl.envs.conversion import refuse_repeated_masks
from fastrl.envs.envpool_exchange import path_of
from fastrl.envs.options import EnvOptions, check_options, keyword_arguments
from fastrl.envs.quiet import quiet_gymnasium
from fastrl.envs.spaces import masked_by_observation, spaces_spec, with_masks
from fastrl.envs.spec import EnvSpec, Path
from fastrl.errors import ConfigError, UnsupportedEnvironment
from fastrl.option_types import flag_of

ATARI_MODULE = "envpool.atari"
# EnvOptions' field -> envpool's keyword, for Atari; other ids take `max_episode_steps` alone.
_ATARI_KEYWORDS = {
    "noop_max": "noop_max",
    "fire_reset": "use_fire_reset",
    "episodic_life": "episodic_life",
    "sticky_actions": "repeat_action_probability",
    "max_episode_steps": "max_episode_steps",
    "frame_skip": "frame_skip",
    "frame_stack": "stack_num",
    "full_action_space": "full_action_space",
}
# Keywords of envpool's that are not the user's to set, and the flag that decides in their place.
_OWNED = {
    "num_envs": "--envs-per-worker",
    "batch_size": "--envs-per-worker",
    "num_threads": "--workers",
    "thread_affinity_offset": "--workers",
    "seed": "--seed",
    "env_seed": "--seed",
    "max_episode_steps": "--max-episode-steps",
    "frame_stack": "--frame-stack",
    "action_repeat": "--action-repeat",
}
_OWNED_ATARI = {
    **_OWNED,
    **{theirs: flag_of(ours) for ours, theirs in _ATARI_KEYWORDS.items()},
    "reward_clip": "--reward-clip",
}
# Nobody's to set: this version plays one agent, with Gymnasium's reset.
_FIXED = ("max_num_players", "gym_reset_return_info")
# Of `make`, beside those of the id's own spec, where MuJoCo renders what is observed.
_PIXEL_KEYWORDS = {
    "from_pixels": False,
    "render_width": 84,
    "render_height": 84,
    "render_camera_id": -1,
}
_NO_LIMIT = 2**31 - 1  # envpool's default of max_episode_steps: that id's code looks at no limit
# These families end their episodes by rules of their own and never look at max_episode_steps,
_LIMITLESS_MODULES = ("envpool.highway", "envpool.jumanji")
# all but this kind of environment.
_LIMITED_KIND = "SokobanEnvSpec"
# Matches of several players; there is no screen to read on their own map.
_CRASHING = ("Cig-v1", "MultiDuel-v1")
GAME_KEYS = ("info:terminated", "info:lives")
"""What Atari says of the whole game, beyond the flags of the episode."""
# envpool.pgx has the name of the library that it follows.
_DEFAULT_MASK, _PGX_MASK = "action_mask", "legal_action_mask"


@dataclass(frozen=True)
class Task:
    """What `make` needs beyond the spec."""

    spec: EnvSpec
    name: str
    """envpool's own."""
    keywords: dict[str, Any]
    leaves: dict[str, tuple[str, tuple[int, ...]]]
    """envpool's key and shape of each leaf of the observation."""
    game_keys: tuple[str, ...]
    """`GAME_KEYS` for Atari, else none."""
    mask_keys: tuple[str, ...]
    """Of the parts of the action's mask; none where there is no mask."""
    info_keys: tuple[str, ...]
    """One per entry of `EnvOptions.log_info`."""
    action_repeat: int


def import_envpool(wanted: str) -> ModuleType:
    """Import envpool (0.8 s the first time, so not before it is needed)."""
    try:
        import envpool
        import envpool.registration
    except ImportError as error:
        raise ConfigError(
            f"{wanted} needs the package envpool, which cannot be imported ({error}): "
            "install it with `pip install envpool`."
        ) from error
    return envpool


@contextmanager
def loading(env_id: str, options: EnvOptions) -> Iterator[None]:
    """Turn what envpool raises (a missing system library, a missing file) into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        given = ""
        if options.env_args:
            given = f" with --env-args {' '.join(options.env_args)}"
        raise ConfigError(
            f"envpool knows {env_id} but cannot load it here{given}: {reason}"
        ) from error


@functools.lru_cache(maxsize=16)
def understand(env_id: str, options: EnvOptions) -> Task:
    """Check `options` for `env_id` and turn both into envpool's terms.

    Kept per process: envpool loads the game to make its spec, 84 ms of a core for Pong.

    Raises:
        ConfigError: an option that the id does not take, or envpool cannot load it.
        UnsupportedEnvironment: its spaces cannot be used.
    """
    envpool = import_envpool(env_id)
    family, name = env_id.split(":", 1)
    task = name + "-v5" if family == "atari" else name
    with loading(env_id, options), quiet_gymnasium():
        keywords = _keywords(env_id, options, envpool, task)
        native = envpool.make_spec(task, **keywords)
        obs_space, action_space = native.observation_space, native.action_space
        states, actions = native.state_array_spec, native.action_array_spec
    config = native.config
    if config.max_num_players != 1:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: it has {config.max_num_players} players, and this version "
            "takes one agent; choose another environment."
        )
    if task in _CRASHING and "map_id" not in keywords:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: it is a match of several players, and envpool itself "
            "crashes as it constructs it; choose another environment, or another map "
            "(--env-args map_id=map02)."
        )
    taken = [spec for key, spec in actions.items() if key not in ("env_id", "players.env_id")]
    if len(taken) != 1:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: it takes {len(taken)} arrays of actions, and this version "
            "gives envpool one; choose another environment."
        )
    spec = spaces_spec(
        env_id,
        obs_space,
        _bounded_as_meant(action_space),
        options,
        native.reward_threshold,
        np.dtype(taken[0].dtype),
    )
    keys = _observation_keys(states)
    mask_keys: tuple[str, ...] = ()
    if spec.masks:
        mask_keys = tuple(keys[path] for path in keys if path[:1] == (options.action_mask,))
    elif mask_key := _mask_in_info(states, spec, options):
        mask_keys = (mask_key,)
        spec = dataclasses.replace(spec, action=with_masks(spec.action))
    refuse_repeated_masks(spec, options)
    frame_skip = int(getattr(config, "frame_skip", 1)) * options.action_repeat
    leaves = {
        leaf: (keys[found.path], _shape_at(obs_space, found.path))
        for leaf, found in spec.observation.items()
    }
    return Task(
        spec=dataclasses.replace(spec, frame_skip=frame_skip),
        name=task,
        keywords=keywords,
        leaves=leaves,
        game_keys=GAME_KEYS if family == "atari" else (),
        mask_keys=mask_keys,
        info_keys=_info_keys(env_id, states, options),
        action_repeat=options.action_repeat,
    )


def _keywords(env_id: str, options: EnvOptions, envpool: Any, task: str) -> dict[str, Any]:
    """What `make` is given for `options`; ConfigError for one that the id does not take."""
    registry = envpool.registration.registry
    module, kind, own = registry.specs[task]
    # The arguments there are, with their defaults: `make_spec` would load the game for that.
    defaults = getattr(importlib.import_module(module), kind).gen_config(**own)._asdict()
    has_limit = module not in _LIMITLESS_MODULES or kind == _LIMITED_KIND
    used: dict[str, str] = {}
    if module == ATARI_MODULE:
        used = dict(_ATARI_KEYWORDS)
    elif has_limit and defaults["max_episode_steps"] != _NO_LIMIT:
        used = {"max_episode_steps": "max_episode_steps"}
    check_options(env_id, options, [*used, "action_repeat"])
    keywords = {
        theirs: getattr(options, ours)
        for ours, theirs in used.items()
        if getattr(options, ours) is not None
    }
    if registry._pixel_variant_supported(module):
        defaults = {**_PIXEL_KEYWORDS, **defaults}
    owned = _OWNED_ATARI if module == ATARI_MODULE else _OWNED
    for key, value in keyword_arguments(options).items():
        _check_argument(env_id, key, value, defaults, owned)
        keywords[key] = value
    if "" in (keywords.get(key, defaults.get(key)) for key in ("cfg_path", "wad_path")):
        raise ConfigError(
            f"{env_id} has no scenario of its own; name one with --env-args cfg_path=FILE "
            "wad_path=FILE."
        )
    return keywords


def _check_argument(
    env_id: str, key: str, value: Any, defaults: dict[str, Any], owned: dict[str, str]
) -> None:
    """Refuse an argument that envpool does not have, or that is another option's to set."""
    if key in owned:
        raise ConfigError(f"--env-args cannot set {key} of {env_id}; {owned[key]} decides it.")
    if key in _FIXED:
        raise ConfigError(f"--env-args cannot set {key} of {env_id}: this version has one value.")
    if key not in defaults:
        free = sorted(set(defaults) - set(owned) - set(_FIXED))
        near = difflib.get_close_matches(key, free, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"only {', '.join(free)}."
        raise ConfigError(f"{env_id} has no argument {key} (--env-args){', ' + hint}")
    default = defaults[key]
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    right = type(value) is type(default) or (type(default) is float and type(value) is int)
    if type(default) in kind and not right:
        raise ConfigError(
            f"--env-args gives {env_id} {key}={value!r}, where it takes {kind[type(default)]} "
            f"(by default {default!r})."
        )


def _bounded_as_meant(space: Any) -> Any:
    """The action space, unbounded where envpool says so.

    It takes C++'s numeric_limits::min, which is the smallest positive number, for the lowest.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    free = (space.low == limits.tiny) & (space.high == limits.max)
    if not free.any():
        return space
    low, high = np.where(free, -np.inf, space.low), np.where(free, np.inf, space.high)
    dtype = space.dtype.type
    return spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype)


def _observation_keys(states: dict[str, Any]) -> dict[Path, str]:
    """envpool's key of each leaf of the observation space, by its path there."""
    keys = [key for key in states if key.startswith("obs")]
    # A space of one leaf has no dictionary around it.
    return {(): keys[0]} if len(keys) == 1 else {path_of(key)[1:]: key for key in keys}


def _shape_at(space: Any, path: Path) -> tuple[int, ...]:
    for key in path:
        space = space.spaces[key]
    return tuple(space.shape)


def _mask_in_info(states: dict[str, Any], spec: EnvSpec, options: EnvOptions) -> str | None:
    """envpool's key of a mask that info holds; None where there is none."""
    wanted = options.action_mask
    for name in (wanted, _PGX_MASK) if wanted == _DEFAULT_MASK else (wanted,):
        key = f"info:{name}"
        if name != "off" and key in states:
            # As if it were a part of the observation: the same sizes are taken.
            part = spaces.Dict({wanted: spaces.MultiBinary(_sizes(states[key]))})
            if masked_by_observation(part, spec.action, options):
                return key
    return None


def _sizes(array_spec: Any) -> tuple[int, ...]:
    """Shape of one environment's part of an array; -1 stands for its players, of which one is."""
    return tuple(size for size in array_spec.shape if size != -1)


def _info_keys(env_id: str, states: dict[str, Any], options: EnvOptions) -> tuple[str, ...]:
    """envpool's keys of the numbers to log; ConfigError for one that the id does not give."""
    numbers = {
        ".".join(path_of(key)[1:]): key
        for key, found in states.items()
        if key.startswith("info:") and math.prod(_sizes(found)) == 1
    }
    numbers["elapsed_step"] = "elapsed_step"
    for name in ("env_id", "players.env_id"):
        numbers.pop(name, None)
    for name in options.log_info:
        if name not in numbers:
            raise ConfigError(
                f"{env_id} has no number {name} in info (--log-info), only "
                f"{', '.join(sorted(numbers))}."
            )
    return tuple(numbers[name] for name in options.log_info)
