"""From Gymnasium's spaces to the leaves that are stored.

    Dict(camera=Box, arm=Tuple(Box, Discrete)) ─▶ "camera", "arm/0", "arm/1"

A nested space is taken apart into its leaves; a space that is one leaf is called "obs" or "action".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from fastrl.envs.options import EnvOptions
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec, Path
from fastrl.errors import UnsupportedEnvironment

# Integer types that are stored as they are; a wider one is stored as int32 where its bounds allow.
_KEPT_INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")
MOST_CATEGORIES = 65_536
"""Of one discrete leaf: they are one-hot encoded."""
UNBOUNDED = 1e6
"""Bounds of an action this far out are none: simulators write 1e10, or the largest float there is,
for "no limit", and an action stretched to that would be nothing else."""


def leaf_name(path: Path, alone: str) -> str:
    """Name of the leaf at `path`: its keys with "/" between; `alone` for the empty path.

    As in a JSON pointer (RFC 6901) "~" and "/" in a key are "~0" and "~1", so no two leaves share a
    name.
    """
    keys = (str(key).replace("~", "~0").replace("/", "~1") for key in path)
    return "/".join(keys) if path else alone


def leaf_text(field: str, path: Path) -> str:
    """Spell a leaf as in Python, for sentences: `observation['arm'][0]`."""
    return field + "".join(f"[{key!r}]" for key in path)


def leaf_value(value: Any, path: Path) -> Any:
    """What lies at `path`; raises KeyError, IndexError or TypeError where nothing does."""
    for key in path:
        value = value[key]
    return value


def spaces_spec(
    env_id: str,
    observation_space: Any,
    action_space: Any,
    options: EnvOptions,
    reward_threshold: float | None = None,
    env_dtype: np.dtype[Any] | None = None,
) -> EnvSpec:
    """Describe an environment by its gymnasium spaces; its frame skip is left at one.

    Args:
        env_id: for the spec and for sentences.
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them.
        action_space: likewise; a Box of integers is a MultiDiscrete.
        options: says how bounded actions and masks are treated.
        reward_threshold: for the spec.
        env_dtype: of the action, where the environment takes another type than its space says.

    Raises:
        UnsupportedEnvironment: the engine cannot use them.
    """
    action = {
        leaf_name(path, "action"): _action_leaf(env_id, path, space, options, env_dtype)
        for path, space in _leaves(env_id, action_space, "action")
    }
    mask_key = masked_by_observation(observation_space, action, options)
    observation = {}
    for path, space in _leaves(env_id, observation_space, "observation"):
        if mask_key is not None and path[0] == mask_key:
            continue
        if not _is_empty(space):
            observation[leaf_name(path, "obs")] = _observation_leaf(env_id, path, space)
    for leaves, field in ((observation, "observation"), (action, "action")):
        if not leaves:
            raise _holds_nothing(env_id, f"{field} space")
    if mask_key is not None:
        action = with_masks(action)
    threshold = None if reward_threshold is None else float(reward_threshold)
    return EnvSpec(env_id, observation, action, 1, threshold)


def _leaves(env_id: str, space: Any, field: str, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Path and space of each leaf, in the space's own order."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise _refused(env_id, field, path, space, "a Dict with keys that are strings")
            yield from _leaves(env_id, part, field, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(env_id, part, field, (*path, index))
    else:
        yield path, space


def _is_empty(space: Any) -> bool:
    return space.shape is not None and 0 in space.shape


def _holds_nothing(env_id: str, field: str) -> UnsupportedEnvironment:
    return UnsupportedEnvironment(
        f"{env_id} cannot be used: its {field} holds nothing; choose another environment."
    )


def _observation_leaf(env_id: str, path: Path, space: Any) -> ObservationSpec:
    """Describe one leaf of an observation space.

    An image whose channels come last (its last axis is 1, 3 or 4 and its first is not) is stored
    channels first; the adapter transposes it as it copies.
    """
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        _check_categories(env_id, "observation", path, space, n)
        return ObservationSpec((), "int32", "discrete", n, start=(int(space.start),), path=path)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in np.ravel(space.nvec))
        _check_categories(env_id, "observation", path, space, sum(nvec))
        start = tuple(int(n) for n in np.ravel(space.start))
        shape = _shape(space)
        return ObservationSpec(shape, "int32", "multi_discrete", None, nvec, start, path)
    if isinstance(space, spaces.MultiBinary):
        return ObservationSpec(_shape(space), "int8", "vector", path=path)
    if not isinstance(space, spaces.Box):
        raise _refused(
            env_id,
            "observation",
            path,
            space,
            "Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of them",
        )
    shape = _shape(space)
    if space.dtype == np.uint8 and len(shape) == 3:
        if channels_last(shape):
            shape = (shape[2], shape[0], shape[1])
        return ObservationSpec(shape, "uint8", "image", path=path)
    return ObservationSpec(shape, _stored_type(space), "vector", path=path)


def _stored_type(space: spaces.Box) -> str:
    """numpy name of the type that the elements of a Box are stored in."""
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "iub":
        return "float32"
    if dtype.name in _KEPT_INTEGERS:
        return dtype.name
    info = np.iinfo(np.int32)
    fits = bool((space.low >= info.min).all() and (space.high <= info.max).all())
    # A float32 may lose the last bits of such numbers; an int32 their first.
    return "int32" if fits else "float32"


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image space of this shape `[3 axes]` is `(H, W, C)` rather than `(C, H, W)`."""
    return shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)


def _action_leaf(
    env_id: str, path: Path, space: Any, options: EnvOptions, env_dtype: np.dtype[Any] | None
) -> ActionSpec:
    """Describe one leaf of an action space."""
    taken = ""
    if getattr(space, "dtype", None) is not None:
        taken = np.dtype(space.dtype if env_dtype is None else env_dtype).name
    if _is_empty(space):
        raise _holds_nothing(env_id, leaf_text("action space", path))
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        _check_categories(env_id, "action", path, space, n)
        return ActionSpec("discrete", (), "int32", taken, n=n, start=start, path=path)
    shape = () if space.shape is None else _shape(space)
    size = math.prod(shape)
    kept = None if len(shape) == 1 else shape
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in np.ravel(space.nvec))
        starts = tuple(int(n) for n in np.ravel(space.start))
        return _multi_discrete(env_id, path, space, nvec, starts, taken, kept)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_binary", (size,), "int32", taken, env_shape=kept, path=path)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        low, high = (np.ravel(bound).astype(object) for bound in (space.low, space.high))
        nvec = tuple(int(h) - int(lo) + 1 for lo, h in zip(low, high, strict=True))
        starts = tuple(int(lo) for lo in low)
        return _multi_discrete(env_id, path, space, nvec, starts, taken, kept)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (np.ravel(bound).astype(np.float64) for bound in (space.low, space.high))
        low = np.where(low > -UNBOUNDED, low, -np.inf)
        high = np.where(high < UNBOUNDED, high, np.inf)
        return ActionSpec(
            "continuous",
            shape,
            "float32",
            taken,
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            squash=options.action_bounds == "squash",
            path=path,
        )
    raise _refused(
        env_id,
        "action",
        path,
        space,
        "Discrete, MultiDiscrete, MultiBinary and Box, and Dict and Tuple of them",
    )


def _multi_discrete(
    env_id: str,
    path: Path,
    space: Any,
    nvec: tuple[int, ...],
    starts: tuple[int, ...],
    taken: str,
    env_shape: tuple[int, ...] | None,
) -> ActionSpec:
    _check_categories(env_id, "action", path, space, sum(nvec))
    return ActionSpec(
        "multi_discrete",
        (len(nvec),),
        "int32",
        taken,
        nvec=nvec,
        starts=starts,
        env_shape=env_shape,
        path=path,
    )


def _check_categories(env_id: str, field: str, path: Path, space: Any, count: int) -> None:
    if count > MOST_CATEGORIES:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: its {leaf_text(field + ' space', path)} is {_short(space)} "
            f"with {count:,} choices, and at most {MOST_CATEGORIES:,} are taken; give it as a Box "
            "of floats."
        )


def _refused(env_id: str, field: str, path: Path, space: Any, taken: str) -> UnsupportedEnvironment:
    return UnsupportedEnvironment(
        f"{env_id} cannot be used: its {leaf_text(field + ' space', path)} is {_short(space)}, and "
        f"this version takes {taken}; choose another environment, or give it a wrapper that "
        "changes the space (--wrap)."
    )


def _shape(space: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape)


def _short(space: Any) -> str:
    """The space's own words, cut to fit a sentence."""
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else text[:117] + "..."


def masked_by_observation(
    observation_space: Any, action: dict[str, ActionSpec], options: EnvOptions
) -> str | None:
    """The key of a Dict observation that holds the action's mask; None where there is none.

    A part of that name whose size is not the mask's (a mask over pairs of choices) is an
    observation like the others.
    """
    key = options.action_mask
    if key == "off" or not isinstance(observation_space, spaces.Dict):
        return None
    if key not in observation_space.spaces:
        return None
    space = observation_space.spaces[key]
    leaves = maskable(action).values()
    return key if leaves and all(_is_mask_of(space, leaf) for leaf in leaves) else None


def _is_mask_of(space: Any, leaf: ActionSpec) -> bool:
    """Whether the part for `leaf` of a mask's space speaks of each of its choices, in order."""
    try:
        for key in leaf.path:
            space = space.spaces[key]
    except (AttributeError, KeyError, IndexError, TypeError):
        return False
    nvec = list(leaf.nvec or (leaf.mask_size,))
    if isinstance(space, spaces.Tuple):
        return [math.prod(part.shape or (0,)) for part in space.spaces] == nvec
    if space.shape is None or math.prod(space.shape) != leaf.mask_size:
        return False
    # (rows, columns) for a choice of row and of column speaks of pairs.
    if leaf.kind == "discrete" or len(space.shape) < 2:
        return True
    return len(space.shape) == 2 and [space.shape[1]] * space.shape[0] == nvec


def maskable(action: dict[str, ActionSpec]) -> dict[str, ActionSpec]:
    """The leaves that can have a mask."""
    kinds = ("discrete", "multi_discrete")
    return {key: leaf for key, leaf in action.items() if leaf.kind in kinds}


def with_masks(action: dict[str, ActionSpec]) -> dict[str, ActionSpec]:
    """The leaves, those that can have a mask with one."""
    masked = maskable(action)
    return {
        key: dataclasses.replace(leaf, masked=True) if key in masked else leaf
        for key, leaf in action.items()
    }
