"""Every stored row is right: the invariants of the row convention, in one process."""

from __future__ import annotations

import counting
import numpy as np
import pytest
from engine import act_for, column, make_plan

from fastrl.monitor.accounts import EPISODE_DTYPE, SAMPLED_MASK
from fastrl.shm import Arena, ByteRing
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.shared import Shared


class Harness:
    """A rollout worker whose actions and returned slots come from the test."""

    def __init__(self, **options) -> None:
        self.arena = Arena.create()
        self.plan = make_plan(self.arena, counting.spec("count:x"), **options)
        self.shared = Shared(self.plan, self.arena)
        E = self.plan.envs_per_group
        self.envs = [
            counting.CountingEnv("count:x", E, group * E) for group in range(self.plan.num_groups)
        ]
        self.worker = RolloutWorker(self.shared, 0, self.envs)
        self.rng = np.random.default_rng(0)
        self.returned = np.zeros(self.plan.num_groups, int)

    def return_slot(self, group: int) -> None:
        self.returned[group] += 1
        self.shared.returned.store(group, int(self.returned[group]))

    def slot(self, group: int, nth: int) -> int:
        return group * self.plan.slots_per_group + nth % self.plan.slots_per_group


@pytest.fixture(params=[1, 3], ids=["K=1", "K=3"])
def slots_per_group(request, monkeypatch):
    from fastrl.workers.plan import Plan

    monkeypatch.setattr(Plan, "slots_per_group", property(lambda self: request.param))
    return request.param


@pytest.mark.parametrize("rollout_length", [1, 2, 8])
def test_every_row_of_every_slot_belongs_together(rollout_length, slots_per_group):
    harness = Harness(rollout_length=rollout_length)
    shared, plan = harness.shared, harness.plan
    last_rows: dict[int, tuple] = {}
    for group in range(plan.num_groups):
        assert harness.worker.begin(group)
        for nth in range(40):
            for row in range(rollout_length):
                act_for(shared, group, harness.rng)
                ready, full = harness.worker.step(group)
                assert full == (row == rollout_length - 1)
                assert ready == (not full or nth + 1 - harness.returned[group] < slots_per_group)
            slot = harness.slot(group, nth)
            for e in range(plan.envs_per_group):
                counting.check_column(*column(shared, slot, e))
            first = shared.obs["obs"][slot, 0].copy(), shared.ignored[slot, 0].copy()
            if nth > 0:
                np.testing.assert_array_equal(first[0], last_rows[group][0])
                np.testing.assert_array_equal(first[1], last_rows[group][1])
            last_rows[group] = (
                shared.obs["obs"][slot, -1].copy(),
                shared.ignored[slot, -1].copy(),
            )
            harness.return_slot(group)
            if not ready:
                assert harness.worker.resume(group)


def test_a_group_without_a_free_slot_waits_and_its_sibling_goes_on():
    harness = Harness(rollout_length=2)
    plan, shared, worker = harness.plan, harness.shared, harness.worker
    for group in range(plan.num_groups):
        assert worker.begin(group)
    assert plan.slots_per_group == 3
    for turn in range(2 * plan.slots_per_group):
        act_for(shared, 0, harness.rng)
        ready, full = worker.step(0)
        assert full == (turn % 2 == 1)
    assert not ready
    assert not worker.waits_for_slots, "group 1 can still step"
    assert not worker.resume(0), "nothing has been returned"
    act_for(shared, 1, harness.rng)
    assert worker.step(1) == (True, False)
    harness.return_slot(0)
    assert worker.resume(0)
    assert not worker.resume(0), "it waits no longer"


def test_sampled_steps_are_the_rows_that_had_effect():
    harness = Harness(rollout_length=5)
    shared, plan = harness.shared, harness.plan
    assert harness.worker.begin(0)
    valid = 0
    for nth in range(30):
        for _ in range(5):
            act_for(shared, 0, harness.rng)
            harness.worker.step(0)
        slot = harness.slot(0, nth)
        valid += int((~shared.ignored[slot, :-1]).sum())
        assert shared.sampled_through[slot] == valid
        assert shared.progress.load(0) & SAMPLED_MASK == valid
        harness.return_slot(0)
        harness.worker.resume(0)
    assert valid < 30 * 5 * plan.envs_per_group, "some rows were reset rows"


def test_episode_statistics_are_those_of_whole_episodes():
    harness = Harness(rollout_length=4)
    shared, plan = harness.shared, harness.plan
    assert harness.worker.begin(1)
    rewards = {e: [] for e in range(plan.envs_per_group)}
    expected = []
    for nth in range(50):
        for _ in range(4):
            act_for(shared, 1, harness.rng)
            harness.worker.step(1)
        slot = harness.slot(1, nth)
        for row in range(4):
            for e in range(plan.envs_per_group):
                if shared.ignored[slot, row, e]:
                    continue
                rewards[e].append(float(shared.reward[slot, row, e]))
                if shared.terminated[slot, row, e] or shared.truncated[slot, row, e]:
                    index = plan.envs_per_group + e
                    expected.append((index, len(rewards[e]), sum(rewards[e]), 4 * nth + row))
                    rewards[e] = []
        harness.return_slot(1)
        harness.worker.resume(1)
    records = b"".join(ByteRing(shared.episodes(0)).pop_all())
    assert np.frombuffer(records, EPISODE_DTYPE).tolist() == expected


def test_rewards_are_clipped_to_their_sign_and_statistics_are_not():
    harness = Harness(rollout_length=16, reward_clip="sign")
    shared = harness.shared
    assert harness.worker.begin(0)
    for _ in range(16):
        act_for(shared, 0, harness.rng)
        harness.worker.step(0)
    slot = harness.slot(0, 0)
    assert set(np.unique(shared.reward[slot]).tolist()) <= {0.0, 1.0}
    raw = 100 * shared.obs["obs"][slot, :-1, :, counting.STEP] + shared.action["action"][slot]
    raw[shared.ignored[slot, :-1]] = 0
    np.testing.assert_array_equal(shared.reward[slot], np.sign(raw))
    episodes = np.frombuffer(b"".join(ByteRing(shared.episodes(0)).pop_all()), EPISODE_DTYPE)
    assert (episodes["return"] > 100).all()


def test_a_replacement_goes_on_at_the_slot_that_was_being_filled():
    harness = Harness(rollout_length=6)
    shared, plan = harness.shared, harness.plan
    assert harness.worker.begin(0)
    for _ in range(6 + 3):  # one full slot, and half of the next
        act_for(shared, 0, harness.rng)
        harness.worker.step(0)
    sampled = shared.progress.load(0) & SAMPLED_MASK
    shared.generation.store(0, 1)
    E = plan.envs_per_group
    envs = [counting.CountingEnv("count:x", E, g * E) for g in range(plan.num_groups)]
    replacement = RolloutWorker(shared, 0, envs)
    assert replacement.begin(0)
    assert shared.progress.load(0) == sampled, "row 0, and nothing is counted twice"
    for _ in range(6):
        act_for(shared, 0, harness.rng)
        replacement.step(0)
    assert shared.filled.load(0) == 2
    slot = harness.slot(0, 1)
    for e in range(E):
        counting.check_column(*column(shared, slot, e))
    assert (shared.obs["obs"][slot, 0, :, counting.STEP] == 0).all(), "an episode begins"


def test_environments_are_closed_once():
    harness = Harness()
    harness.worker.close()
    assert [env.closed for env in harness.envs] == [1, 1]


def test_a_terminated_episode_may_end_in_what_is_not_finite():
    harness = Harness(rollout_length=8)
    shared = harness.shared

    class Explodes:
        """The environment, whose final observations are infinite or NaN."""

        def __init__(self, env):
            self._env = env

        def reset(self, *args):
            return self._env.reset(*args)

        def step(self, action, out):
            self._env.step(action, out)
            over = out.terminated | out.truncated
            out.obs["obs"][over, counting.STEP] = np.where(
                np.arange(over.sum()) % 2, np.nan, np.inf
            )

    E = harness.plan.envs_per_group
    envs = [Explodes(counting.CountingEnv("count:x", E, group * E)) for group in range(2)]
    worker = RolloutWorker(shared, 0, envs)
    worker.begin(0)
    seen = {"terminated": 0, "truncated": 0}
    for nth in range(20):
        for _ in range(8):
            act_for(shared, 0, harness.rng)
            worker.step(0)
        slot = harness.slot(0, nth)
        for kind in seen:
            finals = shared.obs["obs"][slot, 1:][getattr(shared, kind)[slot]]
            seen[kind] += len(finals)
            assert (np.isfinite(finals).all(axis=1) == (kind == "terminated")).all(), kind
            assert (finals[:, counting.INDEX] < E).all(), "the rest is as it was"
        harness.return_slot(0)
        worker.resume(0)
    assert min(seen.values()) > 5
