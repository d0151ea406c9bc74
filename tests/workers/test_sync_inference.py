"""In sync, inference serves all groups that will come in one batch, by group: the loop itself.

The loop runs in a thread; the test says what rollout processes would say, and looks at who is
served together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable

import counting
import numpy as np
import pytest
from engine import make_plan
from live import Background

from fastrl.shm import Arena
from fastrl.workers import inference
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK, Shared

HANG = 10.0  # seconds; the loop looks again after one
WORKERS, GROUPS_EACH = 2, 3
EVERYONE = list(range(WORKERS * GROUPS_EACH))


class Loop:
    """The loop, with everything it sees and does on record; groups are `EVERYONE`."""

    def __init__(self, monkeypatch) -> None:
        arena = Arena.create()
        plan = make_plan(
            arena,
            counting.spec("count:x"),
            mode="sync",
            workers=WORKERS,
            groups_per_worker=GROUPS_EACH,
            envs_per_worker=GROUPS_EACH,
        )
        self.shared = Shared(plan, arena)
        assert plan.sync and plan.num_groups == len(EVERYONE)
        self._looked = threading.Condition()
        self._waiting, self._looks, self._takes = 0, 0, 0
        see, taken = self._see, self._taken

        class Watched(inference._Everyone):
            """Tells how many wait each time the loop asks who is missing, and when nobody is."""

            @property
            def missing(self) -> int:
                see(len(self._words))
                return super().missing

            def take(self) -> np.ndarray:
                taken()
                return super().take()

        monkeypatch.setattr(inference, "_Everyone", Watched)
        self._served: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._outboxes = [self.shared.rollout_outbox(worker) for worker in range(WORKERS)]
        self._inboxes = [self.shared.rollout_inbox(worker) for worker in range(WORKERS)]
        self._thread = Background(inference.serve, self.shared, self)

    def refresh(self) -> int:
        return 1

    def run(self, groups: np.ndarray) -> None:
        self._served.put(groups.tolist())

    def announce(self, groups: Iterable[int], generation: int | None = None) -> None:
        """Say that groups are ready, in this order, by their process or by that of a generation."""
        for group in groups:
            worker = group // GROUPS_EACH
            now = self.shared.generation.load(worker) if generation is None else generation
            assert self._outboxes[worker].push(0, now << GENERATION_SHIFT | group)

    def served(self) -> list[int]:
        """The next batch; its words must have come back to the processes of its groups."""
        groups = self._served.get(timeout=HANG)
        words, sources = np.zeros(64, np.uint64), np.zeros(64, np.uint32)
        acted: list[int] = []
        for worker, inbox in enumerate(self._inboxes):
            expected = [group for group in groups if group // GROUPS_EACH == worker]
            came: list[int] = []
            while len(came) < len(expected):
                count = inbox.pop_many(words, sources, timeout=HANG)
                assert count > 0, "no word came back"
                came += [word & GROUP_MASK for word in words[:count].tolist()]
                generations = {word >> GENERATION_SHIFT for word in words[:count].tolist()}
                assert generations == {self.shared.generation.load(worker)}
            acted += came
        assert acted == groups, "each word once, to its own worker"
        return groups

    def nothing_served(self) -> bool:
        return self._served.empty()

    def _see(self, waiting: int) -> None:
        with self._looked:
            self._looks = self._looks + 1 if waiting == self._waiting else 1
            self._waiting = waiting
            self._looked.notify()

    def _taken(self) -> None:
        with self._looked:
            self._takes += 1
            self._looked.notify()

    def wait_until_taken(self, times: int) -> None:
        """Wait until the loop has found `times` times that all have come that will."""
        with self._looked:
            assert self._looked.wait_for(lambda: self._takes >= times, HANG)

    def wait_until_waiting(self, count: int, looks: int = 2) -> None:
        """Wait until the loop has asked `looks` times who is missing while `count` groups wait.

        It asks after it has taken words, and again once it has decided to serve nobody.
        """

        def enough() -> bool:
            return self._waiting == count and self._looks >= looks

        with self._looked:
            assert self._looked.wait_for(enough, HANG), f"{self._waiting} groups wait, not {count}"

    def fill(self, group: int) -> None:
        """Count a full slot of a group, as its process would: inference is not told."""
        self.shared.filled.store(group, self.shared.filled.load(group) + 1)

    def give_back(self, group: int) -> None:
        self.shared.returned.store(group, self.shared.filled.load(group))

    def end(self) -> None:
        self.shared.close()
        self._thread.finish()
        assert self.nothing_served()


@pytest.fixture
def loop(monkeypatch):
    loop = Loop(monkeypatch)
    yield loop
    loop.end()


@pytest.mark.parametrize("seed", range(5))
def test_all_are_served_together_in_order_whatever_order_they_come_in(loop, seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        order = rng.permutation(EVERYONE).tolist()
        cut = int(rng.integers(0, len(order)))
        loop.announce(order[:cut])
        if cut and rng.random() < 0.5:
            # The loop may have taken them one by one or together, but serves none of them yet.
            loop.wait_until_waiting(cut)
            assert loop.nothing_served()
        loop.announce(order[cut:])
        assert loop.served() == EVERYONE
        assert loop.nothing_served()


@pytest.mark.parametrize("missing", [0, 4])
def test_nobody_is_served_while_one_is_missing_however_often_the_loop_looks(loop, missing):
    others = [group for group in EVERYONE if group != missing]
    loop.announce(others)
    # It decides to serve nobody, and again after a time without a word.
    loop.wait_until_waiting(len(others), looks=4)
    assert loop.nothing_served()
    loop.announce([missing])
    assert loop.served() == EVERYONE


@pytest.mark.parametrize("full", [[0], [3, 4, 5], [0, 1, 2, 4, 5]])
def test_groups_with_a_full_slot_are_not_waited_for(loop, full):
    rest = [group for group in EVERYONE if group not in full]
    for group in full:
        loop.fill(group)
    for _ in range(3):
        loop.announce(reversed(rest))
        assert loop.served() == rest
    for group in full:
        loop.give_back(group)
    loop.announce(rest)
    loop.wait_until_waiting(len(rest))
    assert loop.nothing_served(), "those whose slots are free again will come"
    loop.announce(full)
    assert loop.served() == EVERYONE


def test_those_who_wait_are_served_when_the_last_other_fills_its_slot(loop):
    loop.announce([5, 0, 2])
    loop.wait_until_waiting(3)
    for group in (1, 3, 4):
        assert loop.nothing_served()
        loop.fill(group)
    assert loop.served() == [0, 2, 5]


def test_a_word_of_a_dead_process_gives_way_to_that_of_its_replacement(loop):
    loop.announce([4, 1, 0])
    loop.wait_until_waiting(3)
    loop.shared.generation.store(1, 1)
    loop.announce([2, 3, 4, 5])
    assert loop.served() == EVERYONE


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_a_word_of_a_dead_process_does_not_hold_the_others_up(loop, early):
    # Its process died after saying that it is ready, before or after the loop has taken the word.
    if early:
        loop.announce([4])
        loop.wait_until_waiting(1)
        loop.shared.generation.store(1, 1)
    else:
        loop.shared.generation.store(1, 1)
        loop.announce([4], generation=0)
    loop.announce([5, 3, 2, 1, 0])
    assert loop.served() == [0, 1, 2, 3, 5]
    loop.announce([4, 3, 2, 1, 0, 5])
    assert loop.served() == EVERYONE


def test_the_word_of_a_dead_process_alone_is_not_served(loop):
    for group in (0, 1, 2, 3, 5):
        loop.fill(group)
    loop.shared.generation.store(1, 1)
    loop.announce([4], generation=0)
    loop.wait_until_taken(1)
    assert loop.nothing_served()
    loop.announce([4])
    assert loop.served() == [4]


@pytest.mark.parametrize("seed", range(3))
def test_in_a_run_with_deaths_only_groups_of_dead_processes_are_left_out_of_a_batch(loop, seed):
    rng = np.random.default_rng(seed)
    T = 3
    row = dict.fromkeys(EVERYONE, 0)
    to_announce, announced = set(EVERYONE), set()
    sizes = []
    for _ in range(40):
        order = rng.permutation(sorted(to_announce)).tolist()
        last, early = order[:1], order[1:]
        # One is still to come, so that nobody is served before the death, if there is one.
        loop.announce(early)
        dead: set[int] = set()
        if last and rng.random() < 0.3:
            worker = int(rng.integers(WORKERS))
            loop.shared.generation.store(worker, loop.shared.generation.load(worker) + 1)
            of_it = [group for group in EVERYONE if group // GROUPS_EACH == worker]
            dead = {group for group in of_it if group in announced or group in early}
            row |= {group: 0 for group in of_it if row[group] < T}
        loop.announce(rng.permutation([*last, *dead]).astype(int).tolist())
        announced |= to_announce
        batch = loop.served()
        sizes.append(len(batch))
        assert batch == sorted(batch) and set(batch) <= announced
        assert announced - set(batch) <= dead
        announced -= set(batch)
        row |= {group: row[group] + 1 for group in batch}
        for group in batch:
            if row[group] == T:
                loop.fill(group)
        if all(row[group] == T for group in EVERYONE):
            for group in EVERYONE:
                loop.give_back(group)
            row = dict.fromkeys(EVERYONE, 0)
        to_announce = {group for group in EVERYONE if row[group] < T} - announced
    assert min(sizes) < len(EVERYONE) == max(sizes)
