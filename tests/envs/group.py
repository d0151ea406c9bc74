"""A group of environments with arrays of its own, which records what a run of actions gives."""

from dataclasses import dataclass

import numpy as np

from fastrl.envs import EnvOptions, StepOut, make
from fastrl.envs.spec import ActionSpec, sample_actions


@dataclass
class Rows:
    """N steps of E environments; `obs` has the row before the first step as well."""

    obs: np.ndarray  # [N + 1, E, *shape]
    action: np.ndarray  # [N, E, *shape]
    reward: np.ndarray  # [N, E]
    terminated: np.ndarray
    truncated: np.ndarray
    episode_over: np.ndarray

    @property
    def done(self) -> np.ndarray:
        return self.terminated | self.truncated

    @property
    def resets(self) -> np.ndarray:
        """bool [N, E]: the row after a done row."""
        first = np.zeros((1, self.done.shape[1]), dtype=bool)
        return np.concatenate([first, self.done[:-1]])


class Group:
    def __init__(self, env_id, options=None, num_envs=4, first=0, seed=1):
        self.env = make(env_id, options or EnvOptions(), num_envs, first, seed)
        self.num_envs, self.first, self.seed = num_envs, first, seed
        self.obs_spec = self.env.spec.observation["obs"]
        self.action_spec: ActionSpec = self.env.spec.action["action"]
        self.out = StepOut(
            obs={"obs": np.zeros((num_envs, *self.obs_spec.shape), self.obs_spec.dtype)},
            reward=np.zeros(num_envs, np.float32),
            **{
                flag: np.zeros(num_envs, dtype=bool)
                for flag in ("terminated", "truncated", "episode_over")
            },
        )

    @property
    def obs(self) -> np.ndarray:
        return self.out.obs["obs"]

    def reset(self, *args):
        return self.env.reset(self.out.obs, *args)

    def step(self, action):
        # What was there before must not shine through.
        self.obs.fill(77)
        self.out.reward.fill(np.nan)
        for flag in (self.out.terminated, self.out.truncated, self.out.episode_over):
            flag.fill(True)
        self.env.step({"action": np.asarray(action, dtype=self.action_spec.dtype)}, self.out)
        return self.out

    def actions(self, steps):
        """[steps, E, *shape], each environment's from its run-wide index alone."""
        spec, first = self.action_spec, self.first
        # Not the engine's generators: a test may rest on what these actions lead to.
        rngs = [np.random.default_rng([99, first + i]) for i in range(self.num_envs)]
        return np.stack([sample_actions(spec, steps, rng) for rng in rngs], axis=1)

    def play(self, steps, actions=None) -> Rows:
        """Reset, then step; `actions(t, obs)` gives those of a row, random ones if it is None."""
        self.reset()
        plan = self.actions(steps)
        obs, taken, rest = [self.obs.copy()], [], []
        for t in range(steps):
            action = plan[t] if actions is None else actions(t, self.obs)
            out = self.step(action)
            obs.append(self.obs.copy())
            taken.append(np.array(action))
            rest.append(
                [x.copy() for x in (out.reward, out.terminated, out.truncated, out.episode_over)]
            )
        columns = (np.stack(column) for column in zip(*rest, strict=True))
        return Rows(np.stack(obs), np.stack(taken), *columns)
