"""Rollout processes as the engine starts them; the test is inference, learner and supervisor."""

from __future__ import annotations

import os
import signal
import time

import cloudpickle
import counting
import numpy as np
import pytest
from engine import act_for, column, make_plan

from fastrl.envs.registry import Registered
from fastrl.workers.crew import Crew
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK, Shared

pytestmark = pytest.mark.usefixtures("own_forkserver")

HANG = 60.0  # seconds without a word from a worker


class Drive:
    """Acts for every ready group and checks every full slot, until enough have been seen."""

    def __init__(self, **options) -> None:
        self.crew = Crew()
        self.plan = make_plan(self.crew.arena, counting.spec("count:x"), **options)
        self.shared = Shared(self.plan, self.crew.arena)
        cloudpickle.register_pickle_by_value(counting)
        self.registered = cloudpickle.dumps(Registered({"count": counting.FAMILY}, {}))
        self.workers = [self.start(w, 0) for w in range(self.plan.num_workers)]
        self.ready_inbox = self.shared.inference_inbox()
        self.acted = self.shared.inference_outbox()
        self.full_inbox = self.shared.learner_inbox()
        self.returned = self.shared.learner_outbox()
        self.taken = np.zeros(self.plan.num_groups, int)
        self.rng = np.random.default_rng(1)

    def start(self, worker: int, generation: int):
        plan = self.plan
        return self.crew.launch_rollout(
            RolloutStart(worker, generation, plan.config, self.registered, plan)
        )

    def replace(self, worker: int) -> None:
        generation = self.shared.generation.load(worker) + 1
        self.shared.generation.store(worker, generation)
        self.workers[worker] = self.start(worker, generation)

    def pump(self) -> int:
        """Serve what is ready and take what is full once; returns the number of slots checked."""
        words, sources = np.zeros(64, np.uint64), np.zeros(64, np.uint32)
        deadline = time.monotonic() + HANG
        while True:
            count = self.ready_inbox.pop_many(words, sources, timeout=0.2)
            for word, worker in zip(words[:count].tolist(), sources[:count].tolist(), strict=True):
                if word >> GENERATION_SHIFT == self.shared.generation.load(worker):
                    act_for(self.shared, word & GROUP_MASK, self.rng)
                    self.acted.push(worker, word)
            checked = 0
            full = self.full_inbox.pop_many(words, sources, timeout=0.0)
            for word in words[:full].tolist():
                checked += self.take(word & GROUP_MASK)
            if count or checked:
                return checked
            assert time.monotonic() < deadline, "no worker has said anything for a minute"

    def take(self, group: int) -> int:
        shared, plan = self.shared, self.plan
        checked = 0
        while self.taken[group] < shared.filled.load(group):
            slot = group * plan.slots_per_group + self.taken[group] % plan.slots_per_group
            for e in range(plan.envs_per_group):
                counting.check_column(*column(shared, slot, e))
                first = group * plan.envs_per_group
                assert (shared.obs["obs"][slot, :, e, counting.INDEX] == first + e).all()
            self.taken[group] += 1
            shared.returned.store(group, int(self.taken[group]))
            self.returned.push(group // plan.groups_per_worker, group)
            checked += 1
        return checked

    def end(self) -> None:
        self.shared.close()
        try:
            assert self.crew.wait_for_end(self.crew.members, HANG), "a worker did not end at Closed"
            codes = [m.exit_code() for m in self.crew.members if m in self.workers]
            assert codes == [0] * len(codes), [m.story() for m in self.crew.members]
        finally:
            self.crew.end()


@pytest.mark.parametrize("workers, rollout_length", [(1, 5), (3, 2)])
def test_rows_are_right_through_real_processes(workers, rollout_length):
    drive = Drive(workers=workers, rollout_length=rollout_length, envs_per_worker=4)
    checked = 0
    while checked < 300 or (drive.taken < 10).any():
        checked += drive.pump()
    drive.end()


def test_a_killed_worker_is_replaced_and_no_full_slot_is_wrong_or_lost():
    drive = Drive(workers=2, rollout_length=3, envs_per_worker=4)
    rng = np.random.default_rng(5)
    for kill in range(8):
        for _ in range(int(rng.integers(1, 60))):
            drive.pump()
        worker = kill % 2
        victim = drive.workers[worker]
        os.kill(victim.process.pid, signal.SIGKILL)
        assert victim.has_ended(HANG)
        drive.crew.discharge(victim)
        before = drive.taken.copy()
        drive.replace(worker)
        groups = range(2 * worker, 2 * worker + 2)
        while any(drive.taken[group] < before[group] + 2 for group in groups):
            drive.pump()
    drive.end()
