"""A counting environment, written from the outside in: what it returns says what it was told.

Observation: (environment index, episode, step in the episode, 1 if final). The reward of a step is
``100 * step + action`` (the sum of a continuous one), so a row whose reward, action and observation
do not belong together shows.
Episode e of environment i ends after 3 + (7i + 5e) mod 11 steps: terminated, truncated or both in
turn. With a masked action the mask of a row is one of (environment, episode, step) as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from fastrl.envs import ActionSpec, EnvSpec, FunctionEnvs, ObservationSpec, StepOut

NUM_ACTIONS = 7
INDEX, EPISODE, STEP, FINAL = range(4)

DISCRETE = ActionSpec(kind="discrete", shape=(), dtype="int32", n=NUM_ACTIONS, env_dtype="int32")
MASKED = dataclasses.replace(DISCRETE, masked=True)
CONTINUOUS = ActionSpec(
    kind="continuous",
    shape=(2,),
    dtype="float32",
    low=(-np.inf, -np.inf),
    high=(np.inf, np.inf),
    env_dtype="float32",
)


def spec(env_id: str, action: ActionSpec = DISCRETE) -> EnvSpec:
    return EnvSpec(
        env_id=env_id,
        observation={"obs": ObservationSpec((4,), "float32", "vector", None)},
        action={"action": action},
        frame_skip=1,
        reward_threshold=None,
    )


def episode_length(index: int, episode: int) -> int:
    return 3 + (7 * index + 5 * episode) % 11


def ends_by(index: int, episode: int) -> tuple[bool, bool]:
    """(terminated, truncated) as a row must store them: both is terminated."""
    kind = (index + episode) % 3
    return kind in (0, 2), kind == 1


def allowed(obs: np.ndarray) -> np.ndarray:
    """Masks bool [N, NUM_ACTIONS] at observations [N, 4]: all, after a final one."""
    choices = np.arange(NUM_ACTIONS)
    key = obs[:, INDEX] + 2 * obs[:, EPISODE] + obs[:, STEP]
    return ((key[:, None] + choices) % 3 > 0) | (obs[:, FINAL, None] == 1)


class CountingEnv:
    """One group of counting environments; each is a plain loop, so that the test can be read."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        first_env_index: int,
        action: ActionSpec = DISCRETE,
    ) -> None:
        self.spec = spec(env_id, action)
        self.num_envs = num_envs
        self._index = first_env_index + np.arange(num_envs)
        self._episode = np.zeros(num_envs, int)
        self._step = np.zeros(num_envs, int)
        self._done = np.zeros(num_envs, bool)
        self.closed = 0

    def _observe(self, obs: np.ndarray, action_mask: Mapping[str, np.ndarray]) -> None:
        obs[:, INDEX] = self._index
        obs[:, EPISODE] = self._episode
        obs[:, STEP] = self._step
        obs[:, FINAL] = self._done
        for mask in action_mask.values():
            mask[...] = allowed(obs)

    def reset(self, obs: Mapping[str, np.ndarray], stagger_steps=None, rngs=None, action_mask=None):
        self._observe(obs["obs"], action_mask or {})
        return np.zeros(self.num_envs), np.zeros(self.num_envs, int)

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        for i in range(self.num_envs):
            out.reward[i] = 0
            out.terminated[i] = out.truncated[i] = out.episode_over[i] = False
            if self._done[i]:
                self._done[i] = False
                self._episode[i] += 1
                self._step[i] = 0
                continue
            out.reward[i] = 100 * self._step[i] + action["action"][i].sum()
            self._step[i] += 1
            if self._step[i] == episode_length(self._index[i], self._episode[i]):
                self._done[i] = out.episode_over[i] = True
                out.terminated[i], out.truncated[i] = ends_by(self._index[i], self._episode[i])
        if out.info is not None:
            out.info[out.episode_over, 0] = self._step[out.episode_over]
        self._observe(out.obs["obs"], out.action_mask)

    def close(self) -> None:
        self.closed += 1


LIVES, LIFE = 4000, 1000
"""Most environments of one index that a run makes one after the other, and episodes of each."""


class BookedEnv(CountingEnv):
    """A group that keeps its own book, in a file that outlives it: int64 [all envs, 1 + LIVES].

    Column 0 counts the lives of an environment, the others the steps with effect in each life. Life
    n begins with episode n * LIFE, so that no row of the run has the (index, episode, step) of
    another.
    """

    def __init__(self, env_id: str, num_envs: int, first_env_index: int, path: str) -> None:
        super().__init__(env_id, num_envs, first_env_index)
        book = np.memmap(path, np.int64, "r+").reshape(-1, 1 + LIVES)
        self._book = book[first_env_index : first_env_index + num_envs]
        self._life = self._book[:, 0].copy()
        self._book[:, 0] += 1
        self._episode += LIFE * self._life

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        valid = ~self._done
        super().step(action, out)
        self._book[np.arange(self.num_envs), 1 + self._life] += valid


def booked_family(path: str) -> FunctionEnvs:
    return FunctionEnvs(
        describe=lambda env_id, options: spec(env_id),
        make=lambda env_id, options, num_envs, first, seed: BookedEnv(
            env_id, num_envs, first, path
        ),
    )


FAMILY = FunctionEnvs(
    describe=lambda env_id, options: spec(env_id),
    make=lambda env_id, options, num_envs, first, seed: CountingEnv(env_id, num_envs, first),
)


def check_column(obs, action, reward, terminated, truncated, ignored) -> None:
    """Assert that the rows of one environment belong together; arrays [T(+1)], obs [T+1, 4]."""
    for t in range(len(action)):
        index, episode, step = (int(x) for x in obs[t, :3])
        if ignored[t]:
            assert obs[t, FINAL] == 1 and reward[t] == 0
            assert not terminated[t] and not truncated[t]
            assert tuple(obs[t + 1]) == (index, episode + 1, 0, 0)
            assert not ignored[t + 1]
            continue
        assert obs[t, FINAL] == 0
        assert reward[t] == 100 * step + action[t]
        ends = step + 1 == episode_length(index, episode)
        expected = ends_by(index, episode) if ends else (False, False)
        assert (bool(terminated[t]), bool(truncated[t])) == expected
        assert tuple(obs[t + 1]) == (index, episode, step + 1, ends)
        assert bool(ignored[t + 1]) == ends
