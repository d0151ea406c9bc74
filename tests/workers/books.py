"""The books of a run's rows, kept by name and beside the engine's own counters.

Environments count what they do (`counting.BookedEnv`), and every row of a run has a name of its
own: (environment, life, number in it). So a test knows where each row went::

    what the environments did = trained + masked + in the arena + lost with a killed process
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import counting
import numpy as np

from fastrl.monitor.accounts import ROW_SHIFT, SAMPLED_MASK
from fastrl.workers.final_accounts import Accounts, final_accounts
from fastrl.workers.learner import Learner
from fastrl.workers.shared import Shared

Name = tuple[int, int, int]


class Books:
    """What the environments did, what the learner was given, and which workers were killed."""

    def __init__(self, folder: Path, shared: Shared, learner: Learner) -> None:
        self._shared, self._learner = shared, learner
        self.path = str(folder / "book")
        """Where the environments write theirs."""
        np.zeros((shared.plan.num_envs, 1 + counting.LIVES), np.int64).tofile(self.path)
        self._of_envs = np.memmap(self.path, np.int64, "r").reshape(-1, 1 + counting.LIVES)
        self._taken = np.zeros(shared.plan.num_groups, int)
        self._trained: list[Name] = []
        self._masked: list[Name] = []
        self._killed = np.zeros((shared.plan.num_envs, counting.LIVES), bool)
        # No environment has this index: so a slot that nobody has begun is seen to be one.
        shared.obs["obs"][..., counting.INDEX] = -1
        self._train = learner.train
        learner.train = self._write_down_and_train

    def killed(self, worker: int) -> None:
        """Write down that a worker's process has been killed, before another is started."""
        per_worker = self._shared.plan.num_envs // self._shared.plan.num_workers
        for index in range(worker * per_worker, (worker + 1) * per_worker):
            lives = int(self._of_envs[index, 0])
            if lives:
                self._killed[index, lives - 1] = True

    def _write_down_and_train(self, slots: np.ndarray, dropped: int = 0) -> dict:
        max_lag, K = self._learner.config.max_policy_lag, self._shared.plan.slots_per_group
        for slot in slots.tolist():
            group, nth = divmod(slot, K)
            assert nth == self._taken[group] % K, "slots come in the order they were filled in"
            self._taken[group] += 1
            old = self._learner.version - self._shared.version[slot] > max_lag
            self._trained += self._names(slot, ~old)
            self._masked += self._names(slot, old)
        return self._train(slots, dropped)

    def _in_the_arena(self) -> list[Name]:
        """Names of the rows that the learner was not given."""
        shared, plan = self._shared, self._shared.plan
        T, K = plan.rollout_length, plan.slots_per_group
        everything = np.ones((T, plan.envs_per_group), bool)
        known = {*self._trained, *self._masked, (-1, 0, 0)}
        names: list[Name] = []
        for group in range(plan.num_groups):
            filled, row = shared.filled.load(group), shared.progress.load(group) >> ROW_SHIFT
            for nth in range(self._taken[group], filled):
                names += self._names(group * K + nth % K, everything)
            known.update(names)
            begun = self._names(group * K + filled % K, everything & (np.arange(T)[:, None] < row))
            # All rows: of this slot, or of the one before while this one has not been begun.
            if row < T or not known.intersection(begun):
                names += begun
        return names

    def _names(self, slot: int, chosen: np.ndarray) -> list[Name]:
        chosen = chosen & ~self._shared.ignored[slot, :-1]
        rows = self._shared.obs["obs"][slot, :-1][chosen][:, :3].astype(int).tolist()
        return [
            (index, episode // counting.LIFE, _first_row(index, episode) + step)
            for index, episode, step in rows
        ]

    def check(self) -> Accounts:
        """Assert that every row went to one place only, and that all counts agree about it.

        To be called when no process of the run is alive.
        """
        accounts = final_accounts(self._shared)
        assert accounts.balance == 0, accounts
        assert self._learner.steps == accounts.trained + accounts.masked
        unfinished = self._in_the_arena()
        assert len(self._trained) == accounts.trained
        assert len(self._masked) == accounts.masked
        assert len(unfinished) == accounts.unfinished
        names = sorted(self._trained + self._masked + unfinished)
        assert len(set(names)) == len(names), "a row was used twice"
        kept = np.zeros_like(self._killed, dtype=int)
        for index, life, number in names:
            assert number == kept[index, life], "a row within a life is missing"
            kept[index, life] += 1
        # What is not among the names was dropped: the end of a life that ended by a kill.
        lost = self._of_envs[:, 1:] - kept
        assert lost.min() >= 0
        assert not lost[~self._killed].any(), "lost without a kill"
        # An environment may have counted a step that its process did not live to count.
        uncounted = int(self._killed.sum())
        assert accounts.dropped <= lost.sum() <= accounts.dropped + uncounted
        assert 0 <= self._of_envs[:, 1:].sum() - accounts.sampled <= uncounted
        assert accounts.sampled == (self._shared.progress.snapshot() & SAMPLED_MASK).sum()
        return accounts


@cache
def _first_row(index: int, episode: int) -> int:
    """Rows with effect in the life of an environment before this episode."""
    if episode % counting.LIFE == 0:
        return 0
    return _first_row(index, episode - 1) + counting.episode_length(index, episode - 1)
