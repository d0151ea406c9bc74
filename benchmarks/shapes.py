"""Environments for `environments.py`, one for each space that no common id has."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 20


class Echo(gymnasium.Env):
    """Five levers show five numbers of 0 to 2; each lever that is set to its number pays 0.01."""

    observation_space = spaces.MultiDiscrete([3] * 5)
    action_space: spaces.Space = spaces.MultiDiscrete([3] * 5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._paid(action)
        self.step_number += 1
        return self._show(), reward, False, self.step_number == LENGTH, {}

    def _show(self) -> Any:
        self.numbers = self.np_random.integers(0, 3, 5)
        return self.numbers.copy()

    def _paid(self, action: Any) -> float:
        return 0.01 * float((np.asarray(action) == self.numbers).sum())


class Nested(Echo):
    """The same levers in a Dict and a Tuple, with a picture and a hand that must be held still."""

    observation_space = spaces.Dict(
        {
            "levers": spaces.Tuple([spaces.Discrete(3)] * 5),
            "picture": spaces.Box(0, 255, (12, 12, 3), np.uint8),
            "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2, 2), np.float64)}),
        }
    )
    action_space = spaces.Dict(
        {
            "levers": spaces.Tuple([spaces.Discrete(3, start=1)] * 5),
            "hand": spaces.Box(-1, 1, (2,), np.float32),
            "lights": spaces.MultiBinary(2),
        }
    )

    def _show(self) -> Any:
        numbers = super()._show()
        return {
            "levers": tuple(int(n) for n in numbers),
            "picture": np.full((12, 12, 3), 80 * numbers[0], np.uint8),
            "arm": {"angle": self.np_random.uniform(-1, 1, (2, 2))},
        }

    def _paid(self, action: Any) -> float:
        levers = super()._paid(np.array(action["levers"]) - 1)
        return (
            levers + 0.01 * float(action["lights"].sum()) - 0.01 * float(abs(action["hand"]).sum())
        )
