"""Toy environments, each with one habit that real ones have."""

import gymnasium
import numpy as np

spaces = gymnasium.spaces
LENGTHS = (3, 11)  # of a Ledger's episodes, drawn uniformly


class Toy(gymnasium.Env):
    """Never ends; observation zeros."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        return self.look(), 0.0, False, False, {}

    def look(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


class Ledger(Toy):
    """Observation: (number of the episode, steps in it, a number drawn at its start), in the same
    array every time. Reward: 10 * step + action. An episode's length is drawn, and whether it
    terminates, is truncated, or both."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float64)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self):
        self.row = np.zeros(3)

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.row[:] = self.row[0] + 1, 0, self.np_random.uniform()
        self.length = self.np_random.integers(*LENGTHS)
        self.end = [(True, False), (False, True), (True, True)][self.np_random.integers(3)]
        return self.row, {}

    def step(self, action):
        assert self.action_space.contains(action)
        assert self.row[1] < self.length, "stepped after the end"
        self.row[1] += 1
        ends, cut = self.end if self.row[1] == self.length else (False, False)
        return self.row, 10 * self.row[1] + action, ends, cut, {}


def ledgers(num_envs):
    return gymnasium.vector.SyncVectorEnv([Ledger] * num_envs)
