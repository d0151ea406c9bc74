"""What an environment looks like to the engine: the stored form of its observations and actions.

"Stored" is the form in the arena, which the policy reads and writes. The environment's own form may
differ (nested, float64, actions counted from 1, bounded actions); `spaces` says how, an adapter
converts on the way in and `map_action` on the way out. All specs are frozen and picklable: they
travel between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

Path = tuple[str | int, ...]
"""Keys of Dict and places in Tuple spaces that lead to a leaf; () where the space is one leaf."""


@dataclass(frozen=True)
class ObservationSpec:
    """One leaf of the observation, as stored."""

    shape: tuple[int, ...]
    """Shape of one environment's observation: `(C, H, W)` for images, `()` for discrete."""
    dtype: str
    """numpy name of the stored type: uint8 stays uint8, any float is float32."""
    kind: Literal["image", "vector", "discrete", "multi_discrete"]
    """image: uint8 of rank 3, channels first. discrete: an integer in [0, n). multi_discrete:
    `shape` of integers, each below its own entry of `nvec`. vector: the rest."""
    n: int | None = None
    """Number of values of a discrete observation; None otherwise."""
    nvec: tuple[int, ...] | None = None
    """Numbers of values of the elements of a multi_discrete observation, flat; None otherwise."""
    start: tuple[int, ...] = (0,)
    """The environment's own number of stored 0: one for discrete, one per element for
    multi_discrete."""
    path: Path = ()
    """Where the leaf lies in the environment's own observation."""

    @property
    def is_large_image(self) -> bool:
        """Whether a pass through the network costs what images cost: 36 pixels a side and more."""
        return self.kind == "image" and min(self.shape[1:]) >= 36


@dataclass(frozen=True)
class ActionSpec:
    """One leaf of the action, as stored, and what `map_action` needs to give the environment its
    own."""

    kind: Literal["discrete", "multi_discrete", "multi_binary", "continuous"]
    shape: tuple[int, ...]
    """Stored shape of one environment's action: `()` for discrete, `(k,)` for multi_discrete and
    multi_binary, the space's own for continuous."""
    dtype: str
    """Stored type: int32 (counted from 0) or float32 (before clipping or squashing)."""
    env_dtype: str
    """The type that the environment takes."""
    n: int | None = None
    """Number of discrete actions; None for the other kinds."""
    start: int = 0
    """The environment's number of stored action 0, for discrete."""
    nvec: tuple[int, ...] | None = None
    """Numbers of choices of the k components of a multi_discrete action; None for the others."""
    starts: tuple[int, ...] | None = None
    """The environment's numbers of stored 0 of those components."""
    env_shape: tuple[int, ...] | None = None
    """Shape that the environment takes, where it is not `shape`."""
    low: tuple[float, ...] | None = None
    """Lower bound of each element of a continuous action, flat, -inf where there is none."""
    high: tuple[float, ...] | None = None
    """Upper bound of each element, inf where there is none."""
    squash: bool = False
    """Bounded elements go through tanh rather than being clipped."""
    masked: bool = False
    """The environment says at each step which choices are allowed (discrete kinds alone)."""
    path: Path = ()
    """Where the leaf lies in the environment's own action."""

    @property
    def mask_size(self) -> int:
        """Choices that a mask speaks of: n, or those of all components one after the other."""
        if self.kind == "discrete":
            assert self.n is not None
            return self.n
        assert self.nvec is not None, "only discrete and multi_discrete actions have masks"
        return sum(self.nvec)


@dataclass(frozen=True)
class EnvSpec:
    """What `describe` finds out about an id before anything is constructed."""

    env_id: str
    observation: dict[str, ObservationSpec]
    """One leaf per key, "obs" where the space is one leaf; see `spaces.leaf_name` for the others.
    """
    action: dict[str, ActionSpec]
    """One leaf per key, "action" where the space is one leaf."""
    frame_skip: int
    """Frames of the game or simulator per step: frames = steps * frame_skip."""
    reward_threshold: float | None
    """Mean return at which the family's authors call the task solved; None where they name none."""
    one_generator: bool = False
    """A group draws from one generator, so how a run is cut into groups changes its episodes."""

    @property
    def masks(self) -> dict[str, int]:
        """Width of the mask of each action leaf that has one."""
        return {key: leaf.mask_size for key, leaf in self.action.items() if leaf.masked}


def map_action(stored: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """Turn stored actions into what the environment takes.

    Integers: stored + start. Continuous: an element with two finite bounds takes [-1, 1] to [low,
    high] linearly, after clipping to [-1, 1] or, with `spec.squash`, tanh; so a policy has the same
    unit everywhere. Any other element is clipped to the bound it has. All in the environment's
    type, so that float64 bounds hold exactly.

    Args:
        stored: `[E, *spec.shape]`, of `spec.dtype`. It is not changed.
        spec: of this leaf.

    Returns:
        `[E, ...]` of `spec.env_dtype`, C-contiguous; `stored` itself where nothing is to do.
    """
    if spec.kind == "continuous":
        return _bounded(stored, spec)
    mapped = np.ascontiguousarray(stored, dtype=spec.env_dtype)
    if spec.kind == "discrete":
        return mapped + np.array(spec.start, spec.env_dtype) if spec.start else mapped
    if spec.starts is not None and any(spec.starts):
        mapped = mapped + np.array(spec.starts, spec.env_dtype)
    return mapped if spec.env_shape is None else mapped.reshape(len(stored), *spec.env_shape)


def _bounded(stored: np.ndarray, spec: ActionSpec) -> np.ndarray:
    low, high, both, middle, half = _bounds(spec)
    x = stored.astype(spec.env_dtype)
    if both is True:
        x = np.tanh(x, out=x) if spec.squash else _clipped(x, -1.0, 1.0)
        x *= half
        x += middle
    elif both is not False:
        unit = np.tanh(x) if spec.squash else np.clip(x, -1, 1)
        x = np.where(both, unit * half + middle, x)
    # Rounding may leave the interval by a bit.
    return _clipped(x, low, high)


def _clipped(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """`x`, clipped in place; np.clip takes twice the time for arrays as small as a group's."""
    np.minimum(x, high, out=x)
    np.maximum(x, low, out=x)
    return x


def check_actions(spec: EnvSpec, stored: np.ndarray, expected: tuple[int, ...]) -> None:
    """Refuse actions for a group that are not of the shape `expected`, `(E, *shape)`.

    Raises:
        ValueError: naming both shapes.
    """
    if stored.shape != expected:
        raise ValueError(
            f"The actions have shape {stored.shape}, but {expected[0]} environments of "
            f"{spec.env_id} take {expected}."
        )


@lru_cache(maxsize=64)
def _bounds(
    spec: ActionSpec,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | bool, np.ndarray, np.ndarray]:
    """low, high, which elements have both (True or False where all or none), the middle and half
    of the interval (0 and 1 where there is none): arrays of the leaf's shape and environment's
    type."""
    low = np.asarray(spec.low, dtype=spec.env_dtype).reshape(spec.shape)
    high = np.asarray(spec.high, dtype=spec.env_dtype).reshape(spec.shape)
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        # Halved first: high - low of the widest bounds would be infinite.
        middle = np.where(both, low / 2 + high / 2, 0).astype(spec.env_dtype)
        half = np.where(both, high / 2 - low / 2, 1).astype(spec.env_dtype)
    alike = bool(both.flat[0]) if both.all() or not both.any() else both
    return low, high, alike, middle, half


def sample_actions(
    spec: ActionSpec, count: int, rng: np.random.Generator, mask: np.ndarray | None = None
) -> np.ndarray:
    """Draw `count` uniform random actions, in stored form.

    An element without two finite bounds has no uniform distribution: it is drawn from the standard
    normal one and clipped by `map_action`.

    Args:
        spec: of this leaf.
        count: number of actions.
        rng: all numbers come from it; equally many with and without a mask.
        mask: bool `[count, mask_size]` for a masked leaf: what is allowed.

    Returns:
        `[count, *spec.shape]` of `spec.dtype`.
    """
    if spec.kind == "continuous":
        _, _, both, _, _ = _bounds(spec)
        uniform = rng.random((count, *spec.shape)) * 2.0 - 1.0
        normal = rng.standard_normal((count, *spec.shape))
        if spec.squash:
            # What tanh takes to a uniform number; +-1 itself is out of its reach.
            uniform = np.arctanh(np.clip(uniform, -0.999999, 0.999999))
        return np.where(both, uniform, normal).astype(spec.dtype)
    if spec.kind == "multi_binary":
        return rng.integers(2, size=(count, *spec.shape), dtype=spec.dtype)
    sizes = (spec.n,) if spec.nvec is None else spec.nvec
    u = rng.random((count, len(sizes)))
    chosen = np.empty((count, len(sizes)), spec.dtype)
    first = 0
    for k, size in enumerate(sizes):
        assert size is not None
        if mask is None:
            chosen[:, k] = u[:, k] * size
        else:
            allowed = mask[:, first : first + size]
            # The number of the chosen one among the allowed ones.
            nth = (u[:, k] * allowed.sum(1)).astype(np.int64) + 1
            chosen[:, k] = (np.cumsum(allowed, axis=1) == nth[:, None]).argmax(1)
        first += size
    return chosen.reshape(count, *spec.shape)
