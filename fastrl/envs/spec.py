"""What an environment looks like to the engine: the stored form of its observations and actions.

"Stored" is the form in the arena, which the policy reads and writes. The environment's own form may
differ (float64, actions counted from 1, bounded actions); an adapter converts on the way in and
`map_action` on the way out. All specs are frozen and picklable: they travel between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import gymnasium
import numpy as np

from fastrl.errors import UnsupportedEnvironment

# Integer types that are stored as they are; wider ones are stored as int32.
_KEPT_INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")


@dataclass(frozen=True)
class ObservationSpec:
    """One leaf of the observation, as stored."""

    shape: tuple[int, ...]
    """Shape of one environment's observation: `(C, H, W)` for images, `()` for discrete."""
    dtype: str
    """numpy name of the stored type: uint8 stays uint8, any float is float32."""
    kind: Literal["image", "vector", "discrete"]
    """image: uint8 of rank 3, channels first. discrete: an integer in [0, n). vector: the rest."""
    n: int | None = None
    """Number of values of a discrete observation; None otherwise."""


@dataclass(frozen=True)
class ActionSpec:
    """One leaf of the action, as stored, and what `map_action` needs to give the environment its
    own."""

    kind: Literal["discrete", "continuous"]
    shape: tuple[int, ...]
    """Stored shape of one environment's action: `()` for discrete, `(n,)` for continuous."""
    dtype: str
    """Stored type: int32 (counted from 0) or float32 (before clipping)."""
    env_dtype: str
    """The type that the environment takes."""
    n: int | None = None
    """Number of discrete actions; None for continuous ones."""
    start: int = 0
    """The environment's number of stored action 0."""
    low: tuple[float, ...] | None = None
    """Lower bound of each component, -inf where there is none; None for discrete actions."""
    high: tuple[float, ...] | None = None
    """Upper bound of each component, inf where there is none; None for discrete actions."""


@dataclass(frozen=True)
class EnvSpec:
    """What `describe` finds out about an id before anything is constructed."""

    env_id: str
    observation: dict[str, ObservationSpec]
    """One leaf, "obs"."""
    action: dict[str, ActionSpec]
    """One leaf, "action"."""
    frame_skip: int
    """Frames of the game or simulator per step: frames = steps * frame_skip."""
    reward_threshold: float | None
    """Mean return at which the family's authors call the task solved; None where they name none."""
    one_generator: bool = False
    """A group draws from one generator, so how a run is cut into groups changes its episodes."""


def map_action(stored: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """Turn stored actions into what the environment takes.

    Discrete: `stored + start`. Continuous: clipped to [low, high], in the environment's type, so
    that float64 bounds hold exactly.

    Args:
        stored: `[E, *spec.shape]`, of `spec.dtype`. It is not changed.
        spec: of this leaf.

    Returns:
        `[E, *spec.shape]` of `spec.env_dtype`, C-contiguous; `stored` itself where nothing is to
        do.
    """
    if spec.kind == "discrete":
        if spec.start == 0:
            return np.ascontiguousarray(stored, dtype=spec.env_dtype)
        mapped = stored.astype(spec.env_dtype)
        mapped += np.dtype(spec.env_dtype).type(spec.start)
        return mapped
    low, high = _bounds(spec)
    mapped = stored.astype(spec.env_dtype)
    return np.clip(mapped, low, high, out=mapped)


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
def _bounds(spec: ActionSpec) -> tuple[np.ndarray, np.ndarray]:
    """`spec.low` and `spec.high` as arrays `[n]` of the environment's type."""
    return np.asarray(spec.low, dtype=spec.env_dtype), np.asarray(spec.high, dtype=spec.env_dtype)


def sample_actions(spec: ActionSpec, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` uniform random actions, in stored form.

    A component without two finite bounds has no uniform distribution: it is drawn from the standard
    normal one and clipped by `map_action`.

    Returns:
        `[count, *spec.shape]` of `spec.dtype`.
    """
    if spec.kind == "discrete":
        assert spec.n is not None
        return rng.integers(spec.n, size=count, dtype=spec.dtype)
    low, high = np.asarray(spec.low), np.asarray(spec.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    fraction = rng.random((count, *spec.shape))
    uniform = np.where(bounded, low, 0.0) * (1 - fraction) + np.where(bounded, high, 0.0) * fraction
    normal = rng.standard_normal((count, *spec.shape))
    return np.where(bounded, uniform, normal).astype(spec.dtype)


def spaces_spec(
    env_id: str, observation_space: Any, action_space: Any, reward_threshold: float | None
) -> EnvSpec:
    """Describe an environment that acts once per step, by its gymnasium spaces.

    Raises:
        UnsupportedEnvironment: the engine cannot use them.
    """
    return EnvSpec(
        env_id=env_id,
        observation={"obs": observation_spec(env_id, observation_space)},
        action={"action": action_spec(env_id, action_space)},
        frame_skip=1,
        reward_threshold=None if reward_threshold is None else float(reward_threshold),
    )


def observation_spec(env_id: str, space: Any) -> ObservationSpec:
    """Describe a gymnasium observation space.

    An image whose channels come last (its last axis is 1, 3 or 4 and its first is not) is stored
    channels first; the adapter transposes it as it copies.

    Raises:
        UnsupportedEnvironment: the space is neither a Box nor a Discrete that counts from 0.
    """
    if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
        return ObservationSpec((), "int32", "discrete", int(space.n))
    if not isinstance(space, gymnasium.spaces.Box):
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: its observation space is {_short(space)}, and this version "
            "takes one Box, or one Discrete that counts from 0; choose another environment."
        )
    shape = tuple(int(size) for size in space.shape)
    if space.dtype == np.uint8 and len(shape) == 3:
        if channels_last(shape):
            shape = (shape[2], shape[0], shape[1])
        return ObservationSpec(shape, "uint8", "image")
    name = np.dtype(space.dtype).name
    if np.issubdtype(space.dtype, np.floating):
        name = "float32"
    elif name not in _KEPT_INTEGERS:
        name = "int32"
    return ObservationSpec(shape, name, "vector")


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image space of this shape `[3 axes]` is `(H, W, C)` rather than `(C, H, W)`."""
    return shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)


def action_spec(env_id: str, space: Any, env_dtype: np.dtype[Any] | None = None) -> ActionSpec:
    """Describe a gymnasium action space; `env_dtype` where the environment takes another type.

    Raises:
        UnsupportedEnvironment: neither a Discrete nor a floating Box of rank 1.
    """
    taken = np.dtype(space.dtype if env_dtype is None else env_dtype).name if space.dtype else ""
    if isinstance(space, gymnasium.spaces.Discrete):
        return ActionSpec("discrete", (), "int32", taken, n=int(space.n), start=int(space.start))
    if (
        isinstance(space, gymnasium.spaces.Box)
        and len(space.shape) == 1
        and np.issubdtype(space.dtype, np.floating)
    ):
        low, high = (tuple(float(x) for x in bound) for bound in (space.low, space.high))
        return ActionSpec("continuous", tuple(space.shape), "float32", taken, low=low, high=high)
    raise UnsupportedEnvironment(
        f"{env_id} cannot be used: its action space is {_short(space)}, and this version takes one "
        "Discrete, or one Box of floats of rank 1; choose another environment."
    )


def _short(space: Any) -> str:
    """The space's own words, cut to fit a sentence."""
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else text[:117] + "..."
