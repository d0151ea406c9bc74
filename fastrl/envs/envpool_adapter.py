"""The families `atari:NAME` and `envpool:ID`: groups of E environments inside one envpool.

    map_action ──▶ envpool (one C++ thread) ──▶ a batch of new arrays ──▶ one copy to arena rows

Facts about envpool that this file rests on; `tests/envs` proves them against the installed version:

- It resets on the step after a row with `done`, so there is no final observation to carry aside.
  Nothing else marks that row (`elapsed_step` runs on after a lost life), and some families give it
  a reward.
- A subset of the environments can be stepped: the batch that comes back is theirs, in the order
  sent.
- Seeds are taken at construction, one per environment (`env_seed`); `reset(seed=...)` is ignored.
- It reports `trunc` for an end at the time limit even if the episode also terminated in that step.
  For Atari `info:terminated` (true game over) tells the two apart; elsewhere nothing does, so there
  such a row is truncated. A life lost in the very step of the time limit is truncated too.
- After a lost life the game plays on through the no-op frames of a "reset". What it pays in them is
  lost to the return, as in every result made with envpool; where the game ends in them, it starts
  anew, with no flag: only that there are more lives than before tells. The time limit runs on in
  that case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastrl.envs.envpool_exchange import Batch, Exchange, exchange_for
from fastrl.envs.envpool_rows import StateLeaf, StateMask
from fastrl.envs.envpool_task import ATARI_MODULE, Task, import_envpool, loading, understand
from fastrl.envs.options import EnvOptions
from fastrl.envs.quiet import quiet_gymnasium
from fastrl.envs.seeding import env_seed
from fastrl.envs.spec import EnvSpec, check_actions, map_action
from fastrl.envs.stagger import check_stagger, play_stagger
from fastrl.envs.vector_env import StepOut
from fastrl.errors import UnsupportedEnvironment

_ACTION = "action"  # envpool takes one array of actions


def names(family: str) -> list[str]:
    """All names of the family "atari" or "envpool", without the prefix."""
    specs = import_envpool(family).registration.registry.specs
    atari = {task for task, (module, *_) in specs.items() if module == ATARI_MODULE}
    if family == "atari":
        return sorted(task.removesuffix("-v5") for task in atari)
    return sorted(set(specs) - atari)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe `atari:NAME` or `envpool:ID`, one of `names`, without constructing the environment.

    Raises:
        ConfigError: an option that the id does not take, or envpool cannot load it.
        UnsupportedEnvironment: its spaces cannot be used.
    """
    return understand(env_id, options).spec


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> EnvpoolEnv:
    """Construct one group; see `fastrl.envs.registry.make`."""
    task = understand(env_id, options)
    seeds = [env_seed(seed, first_env_index + i) for i in range(num_envs)]
    envpool = import_envpool(env_id)
    with loading(env_id, options), quiet_gymnasium():
        pool = envpool.make_gymnasium(
            task.name, num_envs=num_envs, num_threads=1, env_seed=seeds, **task.keywords
        )
    return EnvpoolEnv(task, pool, num_envs)


class EnvpoolEnv:
    """One group in one envpool with one thread, which this object owns (see `VectorEnv`)."""

    def __init__(self, task: Task, pool: Any, num_envs: int) -> None:
        """Take over `pool`, made for `task` with `num_envs` environments."""
        spec = task.spec
        self.spec = spec
        self.num_envs = num_envs
        self._action = spec.action[_ACTION]
        self._action_shape = (num_envs, *self._action.shape)
        self._repeat = task.action_repeat
        # What map_action would return as it came; looked at once, not in every step.
        one = np.zeros(self._action_shape, self._action.dtype)
        self._takes_stored = map_action(one, self._action) is one
        # Places in the state of a batch: the game's, the leaves, the mask, the numbers of info.
        keys = list(task.game_keys)
        self._leaves: list[tuple[str, StateLeaf, int]] = []
        for name, (key, shape) in task.leaves.items():
            leaf = StateLeaf(spec.env_id, spec.observation[name], shape)
            self._leaves.append((name, leaf, len(keys)))
            keys.append(key)
        self._mask = StateMask(spec.env_id, self._action) if task.mask_keys else None
        self._mask_at = slice(len(keys), len(keys) + len(task.mask_keys))
        keys += task.mask_keys
        self._info_at = slice(len(keys), len(keys) + len(task.info_keys))
        keys += task.info_keys
        self._is_game = bool(task.game_keys)
        self._exchange: Exchange | None = exchange_for(pool, keys)
        self._everyone = np.arange(num_envs, dtype=np.int32)
        # Of the last row, per environment. A done one only resets in the next step.
        self._done = np.zeros(num_envs, dtype=bool)
        self._any_done = False
        self._over = np.zeros(num_envs, dtype=bool)
        self._lives = np.zeros(num_envs, dtype=np.int32)

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`."""
        masks = action_mask or {}
        batch = self._running().reset(self._everyone)
        self._done, self._over = np.zeros((2, self.num_envs), dtype=bool)
        self._any_done = False
        self._write(batch, obs, masks, ...)
        if self._is_game:
            self._lives = batch.state[1].copy()
        if stagger_steps is None:
            return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        rngs = check_stagger(stagger_steps, rngs, self.num_envs)

        def step_some(
            stored: Mapping[str, np.ndarray], ids: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            batch = self._advance(stored[_ACTION], ids.astype(np.int32))
            terminated, truncated, over = self._flags(batch, ids)
            self._done[ids] = terminated | truncated
            self._over[ids] = over
            if self._is_game:
                self._lives[ids] = batch.state[1]
            self._write(batch, obs, masks, ids)
            return batch.reward, terminated | truncated, over

        return play_stagger(step_some, self.spec.action, stagger_steps, rngs, masks)

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """See `VectorEnv.step`."""
        stored = action[_ACTION]
        if stored.shape != self._action_shape:
            # envpool would read past the end of the array.
            check_actions(self.spec, stored, self._action_shape)
        batch = self._advance(stored, self._everyone)
        out.reward[...] = batch.reward
        if self._any_done or np.count_nonzero(batch.done):
            terminated, truncated, over = self._flags(batch, self._everyone)
            out.reward[self._done] = 0.0
            out.terminated[...] = terminated
            out.truncated[...] = truncated
            out.episode_over[...] = over
            self._done = terminated | truncated
            self._any_done = bool(self._done.any())
            self._over = over
            if out.info is not None and over.any():
                for column, numbers in enumerate(batch.state[self._info_at]):
                    out.info[over, column] = numbers.reshape(-1)[over]
        else:
            out.terminated.fill(False)
            out.truncated.fill(False)
            out.episode_over.fill(False)
        if self._is_game:
            self._lives = batch.state[1]
        self._write(batch, out.obs, out.action_mask, ...)

    def close(self) -> None:
        """See `VectorEnv.close`. envpool ends its thread when its object is freed."""
        self._exchange = None

    def _running(self) -> Exchange:
        if self._exchange is None:
            raise RuntimeError(f"The group of {self.spec.env_id} is closed; make a new one.")
        return self._exchange

    def _advance(self, stored: np.ndarray, ids: np.ndarray) -> Batch:
        """Step the environments `ids`, each until its action is used up or its episode ends."""
        exchange = self._exchange or self._running()
        action = stored if self._takes_stored else map_action(stored, self._action)
        batch = exchange.step(action, ids)
        if self._repeat > 1:
            may = ~self._done[ids]  # a step that only resets takes no action
            for _ in range(1, self._repeat):
                where = np.flatnonzero(may & ~batch.done)
                if not where.size:
                    break
                batch.go_on(where, exchange.step(action[where], ids[where]))
        return batch

    def _write(
        self,
        batch: Batch,
        obs: Mapping[str, np.ndarray],
        masks: Mapping[str, np.ndarray],
        ids: Any,
    ) -> None:
        """Write rows `ids` of the observations and masks; `_done` is that of these rows."""
        for name, leaf, at in self._leaves:
            array = batch.state[at]
            obs[name][ids] = array if leaf.plain else leaf.stored(array)
        if self._mask is not None:
            masks[_ACTION][ids] = self._mask.stored(batch.state[self._mask_at], self._done[ids])

    def _flags(self, batch: Batch, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`terminated`, `truncated`, `episode_over` `[m]` of the environments in `batch`."""
        resets = self._done[ids]
        if (batch.done & resets).any():
            raise UnsupportedEnvironment(
                f"{self.spec.env_id} cannot be used: an episode was over in its first observation, "
                "so it has no step to learn from; choose another environment."
            )
        if not self._is_game:
            truncated = batch.done & batch.trunc
            return batch.done & ~truncated, truncated, batch.done
        game_over, lives = batch.state[0] != 0, batch.state[1]
        truncated = batch.done & batch.trunc & ~game_over
        # The game ended, and began anew, in the no-op frames after a lost life.
        restarted = resets & ~self._over[ids] & (lives > self._lives[ids])
        over = batch.done & (game_over | truncated) | restarted
        return batch.done & ~truncated, truncated, over
