"""Between the nested values that Gymnasium's environments take and give, and the rows of the arena.

    observation ──▶ leaves, checked, in stored form        mapped leaves ──▶ nested action
    info, or a part of the observation ──▶ masks           info ──▶ numbers to log

Everything comes in two forms: of one environment, or `batch` ones at once as a vector environment
has them (each leaf with the number of environments as its first axis).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from fastrl.envs.options import EnvOptions
from fastrl.envs.spaces import channels_last, leaf_text, leaf_value, maskable
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec, map_action
from fastrl.errors import ConfigError, UnsupportedEnvironment

Rows = Mapping[str, np.ndarray]
"""Arrays `[E, ...]` by leaf."""


class ObservationLeaf:
    """How one leaf of an observation is found, checked and brought into stored form."""

    def __init__(
        self, env_id: str, space: Any, spec: ObservationSpec, batch: tuple[int, ...]
    ) -> None:
        """Take observations whose leaf `spec` has the space `space`; `batch`: the axes before."""
        self._env_id = env_id
        self._path = spec.path
        self._shape = (*batch, *space.shape)
        self._dtype = np.dtype(space.dtype)
        # Wider or narrower types are converted by the copy; a fraction would be lost in an integer.
        self._kinds = "fiub" if spec.dtype.startswith("float") else "iub"
        self._axes: tuple[int, ...] | None = None
        if spec.kind == "image" and channels_last(space.shape):
            n = len(batch)
            self._axes = (*range(n), n + 2, n, n + 1)
        # Types that are wider than the stored one are looked at: the copy would wrap around.
        self._stored = np.dtype(spec.dtype)
        self._limits: tuple[Any, Any] | None = None
        if spec.kind in ("discrete", "multi_discrete"):
            starts: Any = spec.start[0]
            counts: Any = spec.n
            if spec.kind == "multi_discrete":
                starts = np.reshape(spec.start, spec.shape)
                counts = np.reshape(np.asarray(spec.nvec), spec.shape)
            self._limits = (starts, starts + counts)

    def stored(self, observation: Any) -> np.ndarray:
        """View the leaf as an array in stored form; the caller copies it.

        Raises:
            UnsupportedEnvironment: it is not there, not of the space's shape, or of a type that
                cannot be stored as the space's. (Assigning it would broadcast it, or cut its
                fractions.)
        """
        value = observation
        if self._path:
            try:
                value = leaf_value(observation, self._path)
            except (KeyError, IndexError, TypeError):
                raise self._wrong("is missing") from None
        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            raise self._wrong("has parts of different lengths") from None
        if array.shape != self._shape or array.dtype.kind not in self._kinds:
            raise self._wrong(f"is of shape {array.shape} and type {array.dtype}")
        if self._limits is not None:
            low, high = self._limits
            if not ((array >= low) & (array < high)).all():
                raise self._wrong(f"is {_short(array)}, which is not in its space")
            return np.asarray(array.astype(np.int64) - low)
        if array.dtype != self._stored and self._stored.kind in "iu" and array.size:
            info = np.iinfo(self._stored)
            if array.min() < info.min or array.max() > info.max:
                raise self._wrong(f"holds {array.min()} to {array.max()}, more than {info.dtype}")
        return array if self._axes is None else array.transpose(self._axes)

    def _wrong(self, what: str) -> UnsupportedEnvironment:
        return UnsupportedEnvironment(
            f"{self._env_id} cannot be used: its {leaf_text('observation', self._path)} {what}, "
            f"but its observation space says {self._shape} and {self._dtype}; correct the one or "
            "the other."
        )


class Observations:
    """How the observations of a space are written into rows."""

    def __init__(
        self, env_id: str, space: Any, leaves: Mapping[str, ObservationSpec], batch: int = 0
    ) -> None:
        """Take observations of `space`, stored as `leaves`; `batch`: of so many environments at
        once, or 0 of one."""
        axes = (batch,) if batch else ()
        self._leaves = [
            (key, ObservationLeaf(env_id, space_at(space, leaf.path), leaf, axes))
            for key, leaf in leaves.items()
        ]
        self._only = self._leaves[0] if len(self._leaves) == 1 else None

    def write(self, observation: Any, rows: Rows, at: Any) -> None:
        """Copy an observation to `rows[leaf][at]`; raises as `ObservationLeaf.stored`."""
        if self._only is not None:
            key, leaf = self._only
            rows[key][at] = leaf.stored(observation)
            return
        for key, leaf in self._leaves:
            rows[key][at] = leaf.stored(observation)


def space_at(space: Any, path: Sequence[str | int]) -> Any:
    """The part of a nested space at `path`."""
    for key in path:
        space = space.spaces[key]
    return space


class Actions:
    """How stored actions become those that environments take."""

    def __init__(self, spec: EnvSpec, space: Any) -> None:
        """Build actions of `space`, stored as the leaves of `spec`."""
        self._env_id = spec.env_id
        self._leaves = spec.action
        self._names = {leaf.path: key for key, leaf in spec.action.items()}
        self._space = space
        # Where the space is one leaf, an action is its value.
        self._only = self._names.get(())

    def mapped(self, stored: Rows, count: int) -> dict[str, np.ndarray]:
        """What the environments take, by leaf: arrays of the caller's own.

        Raises:
            ValueError: there are not `count` actions of a leaf's shape.
        """
        mapped = {}
        for key, leaf in self._leaves.items():
            array = stored[key]
            if array.shape != (count, *leaf.shape):
                raise ValueError(
                    f"The actions have shape {array.shape}, but {count} environments of "
                    f"{self._env_id} take {(count, *leaf.shape)}."
                )
            taken = map_action(array, leaf)
            # An environment may keep, or change, what it is given.
            mapped[key] = taken.copy() if np.may_share_memory(taken, array) else taken
        return mapped

    def batched(self, stored: Rows, count: int) -> Any:
        """The action of a vector environment: its leaves are arrays `[count, ...]`."""
        mapped = self.mapped(stored, count)
        if self._only is not None:
            return mapped[self._only]
        return self._build(self._space, (), lambda key: mapped[key])

    def each(self, stored: Rows, count: int) -> list[Any]:
        """The actions of `count` single environments."""
        mapped = self.mapped(stored, count)
        # Numbers as Python's own, which environments index with; arrays also where the rank is 0.
        values: dict[str, Any] = {
            key: array.tolist()
            if self._leaves[key].kind == "discrete"
            else [array[i, ...] for i in range(count)]
            for key, array in mapped.items()
        }
        if self._only is not None:
            own: list[Any] = values[self._only]
            return own
        return [self._build(self._space, (), _values_of(values, i)) for i in range(count)]

    def _build(self, space: Any, path: tuple[Any, ...], value: Callable[[str], Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {k: self._build(part, (*path, k), value) for k, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            parts = enumerate(space.spaces)
            return tuple(self._build(part, (*path, k), value) for k, part in parts)
        return value(self._names[path])


def _values_of(values: dict[str, Any], i: int) -> Callable[[str], Any]:
    return lambda key: values[key][i]


class Masks:
    """How the masks of actions are read; without masks nothing is done."""

    def __init__(self, spec: EnvSpec, key: str, in_observation: bool, batch: int = 0) -> None:
        """Read what is called `key` in observations, or else in info, for the masked leaves."""
        self._env_id = spec.env_id
        self._leaves = {name: leaf for name, leaf in spec.action.items() if leaf.masked}
        self._key = key
        self._in_observation = in_observation
        self._batch: tuple[int, ...] = (batch,) if batch else ()

    def write(
        self,
        observation: Any,
        info: Any,
        rows: Rows,
        at: Any,
        done: np.ndarray | None = None,
    ) -> None:
        """Write what is allowed after `observation` to `rows[leaf][at]`.

        Of a batch, those at the places `done` are allowed everything, whatever is given for them.

        Raises:
            UnsupportedEnvironment: there is no mask, it is of another size, or it allows nothing.
        """
        for name, leaf in self._leaves.items():
            rows[name][at] = self._mask(observation if self._in_observation else info, leaf, done)

    def allow_all(self, rows: Rows, at: Any) -> None:
        """Write masks that allow everything: after a final observation nothing is chosen."""
        for name in self._leaves:
            rows[name][at] = True

    def _mask(self, holder: Any, leaf: ActionSpec, done: np.ndarray | None) -> np.ndarray:
        name = leaf_text("observation" if self._in_observation else "info", (self._key, *leaf.path))
        try:
            value = leaf_value(holder[self._key], leaf.path)
        except (KeyError, IndexError, TypeError):
            raise self._wrong(f"there is no {name}, which holds the mask of its actions") from None
        try:
            if isinstance(value, np.ndarray) and value.dtype.kind == "O":
                value = _stacked_tuples(value, leaf.mask_size)
            parts = [np.asarray(part) for part in (value if isinstance(value, tuple) else (value,))]
            sizes = [part.shape[-1] for part in parts if part.ndim]
            if isinstance(value, tuple) and tuple(sizes) != (leaf.nvec or (leaf.n,)):
                raise self._wrong(
                    f"{name}, the mask of its actions, has parts of {sizes} entries where there "
                    f"are {list(leaf.nvec or (leaf.n,))} choices"
                )
        except ValueError:  # a ragged list
            raise self._wrong(f"{name}, the mask of its actions, is not one array") from None
        if any(part.shape[: len(self._batch)] != self._batch for part in parts):
            raise self._wrong(
                f"{name}, the mask of its actions, has shape {parts[0].shape} for {self._batch[0]} "
                "environments"
            )
        mask: np.ndarray = np.concatenate(
            [part.reshape(*self._batch, -1) != 0 for part in parts], axis=-1
        )
        if mask.shape[-1] != leaf.mask_size:
            raise self._wrong(
                f"{name}, the mask of its actions, has {mask.shape[-1]} entries where there are "
                f"{leaf.mask_size} choices"
            )
        if done is not None:
            mask[done] = True
        first = 0
        for size in leaf.nvec or (leaf.mask_size,):
            if not mask[..., first : first + size].any(-1).all():
                raise self._wrong(f"{name}, the mask of its actions, allows none of them")
            first += size
        return mask

    def _wrong(self, what: str) -> UnsupportedEnvironment:
        return UnsupportedEnvironment(
            f"{self._env_id} cannot be used: {what} (--action-mask names another key, or off)."
        )


def _stacked_tuples(values: np.ndarray, size: int) -> np.ndarray:
    """The masks [E, size] in an array of E objects: a tuple of arrays each, as Gymnasium's vectors
    gather them out of info, or None for an environment that has none (its episode is over)."""
    return np.stack(
        [
            np.ones(size) if one is None else np.concatenate([np.ravel(part) for part in one])
            for one in values
        ]
    )


def given_in(info: Any, spec: EnvSpec, options: EnvOptions) -> bool:
    """Whether the info of a first reset holds a mask for actions of `spec` that can have one."""
    if options.action_mask == "off" or not maskable(spec.action):
        return False
    return isinstance(info, Mapping) and options.action_mask in info


def refuse_repeated_masks(spec: EnvSpec, options: EnvOptions) -> None:
    """Raise ConfigError for masks with `action_repeat`: a repeated action may have become
    forbidden."""
    if spec.masks and options.action_repeat > 1:
        raise ConfigError(
            f"{spec.env_id} has action masks, which --action-repeat {options.action_repeat} would "
            "break where an action is forbidden the second time: leave it out, or turn the masks "
            "off (--action-mask off)."
        )


def scratch_rows(
    spec: EnvSpec, num_envs: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Observations and masks to write into and forget."""
    obs = {
        key: np.zeros((num_envs, *leaf.shape), leaf.dtype) for key, leaf in spec.observation.items()
    }
    return obs, {key: np.ones((num_envs, size), bool) for key, size in spec.masks.items()}


def info_numbers(info: Any, keys: Sequence[str]) -> list[float]:
    """The numbers that `info` holds under `keys` ("a.b" for `info["a"]["b"]`), NaN for none."""
    return [_number(info, key) for key in keys]


def _number(info: Any, key: str) -> float:
    value = info
    if not isinstance(info, Mapping):
        return math.nan
    if key in info:
        value = info[key]
    else:
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return math.nan
            value = value[part]
    try:
        return float(np.asarray(value, np.float64).reshape(()))  # of an array of one number, that
    except (TypeError, ValueError):
        return math.nan


def _short(array: np.ndarray) -> str:
    text = np.array2string(array, threshold=6, edgeitems=2).replace("\n", "")
    return text if len(text) <= 60 else text[:57] + "..."
