"""sampled = trained + masked + dropped + unfinished, wherever a worker dies; in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import counting
import numpy as np
import pytest
from books import Books
from engine import Engine, act_for, make_learner

from fastrl.envs import VectorEnv
from fastrl.monitor.accounts import Control
from fastrl.shm import Arena, Closed
from fastrl.workers import rollout
from fastrl.workers.final_accounts import final_accounts
from fastrl.workers.rollout import ACTED, RETURNED, RolloutStart, RolloutWorker
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK, Shared
from fastrl.workers.slot_queue import SlotQueue


def test_slots_are_taken_in_the_order_in_which_they_were_filled():
    engine = Engine(rollout_length=2)
    for group in (1, 0, 0, 1):
        engine.fill(group)
    slots, dropped = engine.queue.take(4)
    assert slots.tolist() == [3, 0, 1, 4]
    assert dropped == 0


def test_a_word_that_was_lost_is_made_up_for_by_the_next_one():
    engine = Engine(rollout_length=2)
    for _ in range(2):
        act_for(engine.shared, 0, engine.rng)
        engine.worker.step(0)  # fills a slot, and nobody looks at the group
    assert len(engine.queue) == 0
    engine.fill(0)
    assert len(engine.queue) == 2
    engine.queue.look_at(0)
    assert len(engine.queue) == 2, "a word too many does nothing"


@pytest.mark.parametrize("seed", range(4))
def test_the_accounts_hold_wherever_a_worker_dies(seed):
    engine = Engine(rollout_length=6, minibatches=1)
    shared = engine.shared
    rng = np.random.default_rng(seed)
    sampled = 0

    def train() -> None:
        while len(engine.queue) >= 2:
            slots, dropped = engine.queue.take(2)
            if rng.random() < 0.3:
                # Taken, and the learner is in the middle of it.
                assert final_accounts(shared).balance == 0
            engine.train(slots, dropped)

    for death in range(12):
        for _ in range(int(rng.integers(0, 14))):
            for group in (0, 1):
                if shared.filled.load(group) - shared.returned.load(group) < 3:
                    slot = group * 3 + shared.filled.load(group) % 3
                    row = shared.progress.load(group) >> 48
                    engine.step(group)
                    sampled += int((~shared.ignored[slot, row]).sum())
            if rng.random() < 0.2:
                train()
        accounts = final_accounts(shared)
        assert accounts.balance == 0
        assert accounts.sampled == sampled
        if death % 3 == 2:
            continue  # this time it lives on
        shared.generation.store(0, death + 1)
        engine.start_workers()
        for group in (0, 1):
            engine.worker.begin(group)
        assert final_accounts(shared).balance == 0
    train()
    accounts = final_accounts(shared)
    assert accounts.balance == 0 and accounts.sampled == sampled
    assert min(accounts.trained, accounts.dropped) > 0


def test_a_fault_in_the_accounts_is_seen():
    engine = Engine(rollout_length=6, minibatches=1)
    for group in (0, 1):
        engine.fill(group)
    engine.train(engine.queue.take(2)[0])
    engine.step(0)
    assert final_accounts(engine.shared).balance == 0
    engine.shared.control.add(Control.TRAINED, 1)
    assert final_accounts(engine.shared).balance == -1


class Killed(BaseException):
    """What ends a process at a line of it."""


def killed_before_line(number: int, run: Callable[[], None]) -> bool:
    """Run until the given line of the rollout process or of its environments is about to be run.

    Returns whether it was; else `run` has returned by itself.
    """
    files = {rollout.__file__, counting.__file__}
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


class Inbox:
    """Stands where a rollout process waits for words: inference and learner run meanwhile.

    After `waits` of them the engine closes.
    """

    def __init__(self, shared: Shared, learner, rng: np.random.Generator) -> None:
        self._shared, self._learner, self._rng = shared, learner, rng
        self._queue = SlotQueue(shared)
        self._ready, self._full = shared.inference_inbox(), shared.learner_inbox()
        self.waits = 0

    def pop_many(self, words: np.ndarray, sources: np.ndarray, timeout: float) -> int:
        if self.waits == 0:
            raise Closed
        self.waits -= 1
        acted, returned = self._act(), self._train()
        for at, word in enumerate(acted + returned):
            words[at], sources[at] = word, ACTED if at < len(acted) else RETURNED
        return len(acted + returned)

    def _pop(self, inbox) -> list[int]:
        words, sources = np.zeros(16, np.uint64), np.zeros(16, np.uint32)
        count = inbox.pop_many(words, sources, timeout=0.0)
        return words[:count].tolist()

    def _act(self) -> list[int]:
        now = self._shared.generation.load(0)
        words = [word for word in self._pop(self._ready) if word >> GENERATION_SHIFT == now]
        for word in words:
            act_for(self._shared, word & GROUP_MASK, self._rng, self._learner.version)
        return words

    def _train(self) -> list[int]:
        for word in self._pop(self._full):
            self._queue.look_at(word & GROUP_MASK)
        batch = self._shared.plan.batch_slots
        # Sometimes it is behind, so that slots wait and groups wait for slots.
        if len(self._queue) < batch or self._rng.random() < 0.6:
            return []
        slots, dropped = self._queue.take(batch)
        self._learner.train(slots, dropped)
        return (slots // self._shared.plan.slots_per_group).tolist()


@pytest.mark.parametrize(
    "groups, T, stride",
    [(1, 1, 1), (1, 2, 1), (2, 3, 7), pytest.param(2, 3, 1, marks=pytest.mark.slow)],
)
def test_every_row_is_accounted_for_at_whatever_line_a_process_dies(tmp_path, groups, T, stride):
    spec = counting.spec("count:x")
    shared, _, learner = make_learner(
        Arena.create(),
        spec,
        rollout_length=T,
        groups_per_worker=groups,
        envs_per_worker=2 * groups,
        batch_size=2 * T,
        max_policy_lag=1,
        epochs=1,
    )
    books = Books(tmp_path, shared, learner)
    rng = np.random.default_rng(7)  # with which every kind of end comes up
    inbox = Inbox(shared, learner, rng)
    shared.rollout_inbox = lambda worker: inbox

    def live() -> None:
        envs: list[VectorEnv] = [
            counting.BookedEnv("count:x", 2, 2 * group, books.path) for group in range(groups)
        ]
        worker = RolloutWorker(shared, 0, envs)
        start = RolloutStart(0, shared.generation.load(0), shared.plan.config, b"", shared.plan)
        with pytest.raises(Closed):
            rollout._loop(worker, shared, start)

    def live_until(line: int) -> bool:
        inbox.waits = 3 * T + 2
        died = killed_before_line(line, live)
        # Where it has not died before that line, it dies while it waits for words.
        books.killed(0)
        books.check()
        shared.generation.store(0, shared.generation.load(0) + 1)
        return died

    line = 1
    while live_until(line):
        # The beginning of a life meets what another has left half done.
        live_until(int(rng.integers(1, 100 * T)))
        line += stride if line > 50 * groups or rng.random() < 0.2 else 0
    accounts = books.check()
    assert line > 100 * T
    assert min(accounts.trained, accounts.masked, accounts.dropped, accounts.unfinished) > 0
