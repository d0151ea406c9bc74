"""What a finished run has learned, asked in the environment's own terms."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastrl.envs.conversion import Observations
from fastrl.evaluate import evaluate, load_policy

SAMPLES = 20_000
"""Actions that a probability is counted from: a standard error of at most 0.0036."""


class Trained:
    """The newest checkpoint of a run, and its records.

    Attributes:
        config: of the run, resolved.
    """

    def __init__(self, run: Path, observation_space: Any) -> None:
        """Load it; raises ConfigError where there is none."""
        self._run = run
        self._policy, spec, self.config, _, _ = load_policy(run)
        self._spec = spec
        self._observations = Observations(spec.env_id, observation_space, spec.observation)

    def values(self, seen: Sequence[Any]) -> np.ndarray:
        """V of each of the observations, f32 [len(seen)]."""
        masks = {
            key: torch.ones((len(seen), size), dtype=torch.bool)
            for key, size in self._spec.masks.items()
        }
        _, _, value = self._policy.act(self._stored(seen), None, masks)
        return value.numpy()

    def policy_at(self, seen: Any, allowed: Sequence[bool] | None = None) -> list[float]:
        """How often the policy takes each choice of a Discrete action: counted, not computed.

        Args:
            seen: an observation.
            allowed: the mask, of a policy that takes one.
        """
        ((key, leaf),) = self._spec.action.items()
        rows = {
            name: array.expand(SAMPLES, *array.shape[1:])
            for name, array in self._stored([seen]).items()
        }
        rng = np.random.default_rng(0)
        noise = rng.uniform(size=(SAMPLES, self._policy.noise_dims[key])).astype(np.float32)
        masks = None if allowed is None else {key: torch.tensor([allowed]).expand(SAMPLES, -1)}
        # The distributions want numbers inside of (0, 1).
        u = torch.from_numpy(noise).clamp(1e-6, 1 - 1e-6)
        actions, _, _ = self._policy.act(rows, {key: u}, masks)
        counts = np.bincount(actions[key].numpy(), minlength=leaf.n or 0)
        return [count / SAMPLES for count in counts.tolist()]

    def mean_return(self, episodes: int) -> float:
        """Mean return of so many episodes, played as fastrl-eval does."""
        return float(evaluate(self._run, episodes, seed=self.config.seed + 1).returns.mean())

    def mean_metric(self, name: str, after: int = 0) -> float:
        """Mean of a metric over the steps after the first `after`; NaN where no record has it."""
        lines = (self._run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        total, weight, last = 0.0, 0, after
        for record in map(json.loads, lines):
            new, last = record["steps"] - last, max(last, record["steps"])
            if name in record and new > 0:
                total, weight = total + new * record[name], weight + new
        return total / weight if weight else math.nan

    def _stored(self, seen: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = {
            key: np.zeros((len(seen), *leaf.shape), leaf.dtype)
            for key, leaf in self._spec.observation.items()
        }
        for at, observation in enumerate(seen):
            self._observations.write(observation, rows, at)
        return {key: torch.from_numpy(array) for key, array in rows.items()}
