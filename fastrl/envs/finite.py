"""Rewards and observations must be finite numbers: one NaN would be in every parameter soon."""

from __future__ import annotations

import numpy as np

from fastrl.envs.spaces import leaf_text
from fastrl.envs.spec import EnvSpec
from fastrl.errors import UnsupportedEnvironment


def all_finite(array: np.ndarray) -> bool:
    """Whether a float32 array of any shape holds finite numbers alone."""
    # A sum in float64 cannot overflow, and costs a third of asking every element.
    return bool(np.isfinite(array.sum(dtype=np.float64)))


def refuse_reward(spec: EnvSpec, reward: np.ndarray, env_index: np.ndarray, row: int) -> None:
    """Raise UnsupportedEnvironment for the first of the rewards `[E]` that is not finite.

    `env_index` `[E]` and `row` (in the process) are for the sentence.
    """
    (bad, *_) = np.flatnonzero(~np.isfinite(reward))
    raise UnsupportedEnvironment(
        f"{spec.env_id} cannot be used: environment {env_index[bad]} returned the reward "
        f"{reward[bad]} in row {row:,}, but a reward is a finite number."
    )


def refuse_observation(
    spec: EnvSpec, key: str, obs: np.ndarray, env_index: np.ndarray, first_row: int
) -> None:
    """Raise UnsupportedEnvironment for the first observation `[rows, E, *shape]` of the leaf `key`
    that is not finite.

    `env_index` `[E]` and `first_row` (in the process) are for the sentence.
    """
    row, env, *element = np.argwhere(~np.isfinite(obs))[0].tolist()
    name = leaf_text("observation", spec.observation[key].path)
    raise UnsupportedEnvironment(
        f"{spec.env_id} cannot be used: {name} of environment {env_index[env]} holds "
        f"{obs[(row, env, *element)]} at {element} in row {first_row + row:,}, but all of it must "
        "be finite numbers, and in the range of float32 (only a final observation after "
        "`terminated` need not)."
    )
