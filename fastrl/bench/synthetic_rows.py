"""Made-up spaces, observations and rollouts, the same at every call: no environment is needed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.passes import sample_observations
from fastrl.shm import Arena
from fastrl.workers.plan import Plan
from fastrl.workers.shared import Shared

OBSERVATIONS = {
    "image": ObservationSpec((4, 84, 84), "uint8", "image"),
    "vector": ObservationSpec((11,), "float32", "vector"),
}
ACTIONS = {
    "discrete": ActionSpec("discrete", (), "int32", "int32", n=6),
    "continuous": ActionSpec(
        "continuous", (3,), "float32", "float32", low=(-1.0,) * 3, high=(1.0,) * 3
    ),
}


def spec_of(observation: str, action: str) -> EnvSpec:
    """Spaces of a made-up environment: image or vector, discrete or continuous."""
    return EnvSpec(
        "check", {"obs": OBSERVATIONS[observation]}, {"action": ACTIONS[action]}, 1, None
    )


def synthetic_rollout(device: str) -> dict[str, Tensor]:
    """Random rows [32, 64] with ends, reset rows and old rows, the same on every device."""
    rng = np.random.default_rng(0)
    T, B = 32, 64
    terminated, truncated, ignored = _random_ends(rng, (T, B))
    ignored = ignored[:T]
    kept = (rng.random((T, B)) < 0.9) & ~ignored
    arrays = {
        "log_prob": rng.normal(-1.0, 0.3, (T, B)),
        "behaviour": rng.normal(-1.0, 0.3, (T, B)),
        "entropy": rng.random((T, B)),
        "kl_from_uniform": rng.random((T, B)),
        "reward": rng.normal(size=(T, B)),
        "value": rng.normal(size=(T + 1, B)),
        "weight": kept,
    }
    tensors = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in arrays.items()}
    flags = {"terminated": terminated, "truncated": truncated, "ignored": ignored}
    return tensors | {k: torch.tensor(v, device=device) for k, v in flags.items()}


def _random_ends(
    rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """terminated, truncated bool [T, B] and ignored bool [T + 1, B]: the row after an end is a
    reset row, in which nothing ends."""
    T, B = shape
    terminated, truncated = np.zeros((2, T, B), np.bool_)
    ignored = np.zeros((T + 1, B), np.bool_)
    for t in range(T):
        draw = np.where(ignored[t], 1.0, rng.random(B))
        terminated[t], truncated[t] = draw < 0.05, (draw >= 0.05) & (draw < 0.1)
        ignored[t + 1] = terminated[t] | truncated[t]
    return terminated, truncated, ignored


def filled_arena(plan: Plan, arena: Arena) -> tuple[Shared, np.ndarray]:
    """Synthetic rows in the first slot of every group: the arrays, and those slots."""
    shared = Shared(plan, arena)
    rng = np.random.default_rng(0)
    slots = np.arange(plan.num_groups) * plan.slots_per_group
    T, E = plan.rollout_length, plan.envs_per_group
    for slot in slots:
        for key, leaf in sample_observations(plan.spec, (T + 1) * E, rng).items():
            shared.obs[key][slot] = leaf.numpy().reshape(shared.obs[key][slot].shape)
        ends = _random_ends(rng, (T, E))
        shared.terminated[slot], shared.truncated[slot], shared.ignored[slot] = ends
        shared.reward[slot] = rng.normal(size=(T, E))
        for key, action in plan.spec.action.items():
            actions = shared.action[key][slot]
            if action.n is not None:
                actions[...] = rng.integers(action.n, size=actions.shape)
            else:
                actions[...] = rng.normal(size=actions.shape)
        shared.log_prob[slot] = rng.normal(-1.8, 0.1, (T, E))
    shared.version[...] = 1
    return shared, slots
