"""The last N observations as one, for environments that do not join them themselves.

    adapter writes row t+1 ──▶ history [E, N, *leaf] moves on by one ──▶ N of them, oldest first

An episode's first observation fills the whole history; so does the one after the random steps with
which a run begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fastrl.envs.conversion import Rows
from fastrl.envs.spec import EnvSpec, ObservationSpec
from fastrl.envs.vector_env import StepOut, VectorEnv


def stacked_spec(spec: EnvSpec, count: int) -> EnvSpec:
    """`spec` with `count` observations in one: images `[count * C, H, W]`, others `[count, *]`."""
    leaves = {key: _stacked_leaf(leaf, count) for key, leaf in spec.observation.items()}
    return dataclasses.replace(spec, observation=leaves)


def _stacked_leaf(leaf: ObservationSpec, count: int) -> ObservationSpec:
    if leaf.kind == "image":
        channels, *size = leaf.shape
        return dataclasses.replace(leaf, shape=(count * channels, *size))
    shape = (count, *leaf.shape)
    if leaf.kind == "vector":
        return dataclasses.replace(leaf, shape=shape)
    nvec = (leaf.n,) if leaf.nvec is None else leaf.nvec
    return dataclasses.replace(
        leaf,
        kind="multi_discrete",
        shape=shape,
        n=None,
        nvec=tuple(int(n or 0) for n in nvec) * count,
        start=leaf.start * count,
    )


class FrameStack:
    """A group whose rows hold the last `count` observations of another group (see `VectorEnv`).

    Attributes:
        set_progress: the inner group's own, or None.
    """

    def __init__(self, env: VectorEnv, count: int) -> None:
        """Take over `env`, which this object closes; `count`: observations in one, at least 2."""
        self._env = env
        self.num_envs = env.num_envs
        self.spec = stacked_spec(env.spec, count)
        self.set_progress = getattr(env, "set_progress", None)
        E = env.num_envs
        self._newest = {
            key: np.zeros((E, *leaf.shape), leaf.dtype)
            for key, leaf in env.spec.observation.items()
        }
        self._history = {
            key: np.zeros((E, count, *leaf.shape), leaf.dtype)
            for key, leaf in env.spec.observation.items()
        }
        self._done = np.zeros(E, dtype=bool)  # of the last row: the next one begins an episode

    def reset(
        self,
        obs: Rows,
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Rows | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`."""
        running = self._env.reset(self._newest, stagger_steps, rngs, action_mask)
        self._done[...] = True
        self._move_on(obs)
        self._done[...] = False
        return running

    def step(self, action: Rows, out: StepOut) -> None:
        """See `VectorEnv.step`."""
        self._env.step(action, dataclasses.replace(out, obs=self._newest))
        self._move_on(out.obs)
        np.logical_or(out.terminated, out.truncated, out=self._done)

    def close(self) -> None:
        """See `VectorEnv.close`."""
        self._env.close()

    def _move_on(self, obs: Rows) -> None:
        """Take in the newest observations and write the history to `obs`."""
        begins = np.flatnonzero(self._done)
        for key, history in self._history.items():
            newest = self._newest[key]
            history[:, :-1] = history[:, 1:]
            history[:, -1] = newest
            if begins.size:
                history[begins] = newest[begins, None]
            obs[key][...] = history.reshape(obs[key].shape)
