"""Random numbers that are a pure function of what they are for.

A number is the hash of (seed, environment index, step count of that environment, action leaf,
dimension). So the same environment gets the same noise at the same step whichever worker, group or
batch it is in, there is no generator state to keep, to send or to save, and a resumed or
re-partitioned run draws what the first one would have drawn.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
number generators", variant 13 of Stafford), applied once per key word in the manner of a sponge:

    h = mix(seed), mix(h + leaf·γ), mix(h + env_index·γ), mix(h + step·γ), mix(h + dim·γ) → 23 bits

No torch: rollout processes may call it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastrl import kernels

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: multiples of it are far apart
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB


def _mix_int(word: int) -> int:
    """SplitMix64 finaliser on one Python integer, modulo 2^64."""
    word = ((word ^ (word >> 30)) * _MUL_1) & _MASK
    word = ((word ^ (word >> 27)) * _MUL_2) & _MASK
    return word ^ (word >> 31)


def uniform(
    seed: int, env_index: NDArray[np.int64], step: NDArray[np.int64], leaf: int, dims: int
) -> NDArray[np.float32]:
    """Uniform numbers strictly between 0 and 1, one row per environment.

    Args:
        seed: the run's seed, any integer (taken modulo 2^64).
        env_index: i64 [N], the run-wide index of each environment.
        step: i64 [N], how many actions each environment has been asked for before this one.
        leaf: which leaf of the action space the numbers are for, 0 or more.
        dims: how many numbers each row needs, 1 or more.

    Returns:
        f32 [N, dims], C-contiguous, each an odd multiple of 2^-24. Hence never 0 or 1, symmetric
        about 1/2, and 2u - 1 is exact in f32, so that an inverse error function of it is finite.

    Raises:
        ValueError: where `env_index` and `step` are not vectors of one length.
    """
    if env_index.ndim != 1 or env_index.shape != step.shape:
        raise ValueError(
            f"env_index has shape {env_index.shape} and step {step.shape}, "
            "expected two vectors of the same length"
        )
    key = _mix_int((_mix_int((seed + _GOLDEN) & _MASK) + (leaf + 1) * _GOLDEN) & _MASK)
    out = np.empty((len(step), dims), np.float32)
    kernels.uniform(key, env_index, step, out)
    return out
