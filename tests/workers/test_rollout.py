"""Every stored row is right: the invariants of the row convention, in one process."""

from __future__ import annotations

import counting
import numpy as np
import pytest
from engine import act_for, column, make_plan

from fastrl.errors import UnsupportedEnvironment
from fastrl.monitor.accounts import SAMPLED_MASK, Control, episode_dtype
from fastrl.shm import Arena, ByteRing
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.shared import Shared


class Harness:
    """A rollout worker whose actions and returned slots come from the test."""

    def __init__(self, action=counting.DISCRETE, **options) -> None:
        self.arena = Arena.create()
        self.plan = make_plan(self.arena, counting.spec("count:x", action), **options)
        self.shared = Shared(self.plan, self.arena)
        E = self.plan.envs_per_group
        self.envs = [
            counting.CountingEnv("count:x", E, group * E, action)
            for group in range(self.plan.num_groups)
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


def test_masks_belong_to_their_observations(slots_per_group):
    harness = Harness(counting.MASKED, rollout_length=3)
    shared, plan = harness.shared, harness.plan
    last = {}
    for group in range(plan.num_groups):
        assert harness.worker.begin(group)
        for nth in range(40):
            for _ in range(3):
                act_for(shared, group, harness.rng)
                harness.worker.step(group)
            slot = harness.slot(group, nth)
            mask, obs = shared.action_mask["action"][slot], shared.obs["obs"][slot]
            for row in range(4):
                np.testing.assert_array_equal(mask[row], counting.allowed(obs[row]))
            assert mask[shared.ignored[slot]].all()
            if nth:
                np.testing.assert_array_equal(mask[0], last[group])
            last[group] = mask[-1].copy()
            harness.return_slot(group)
            harness.worker.resume(group)


def test_values_of_info_come_with_the_episodes_that_they_ended():
    harness = Harness(rollout_length=6, log_info=("steps",))
    assert harness.worker.begin(0)
    for _ in range(20):
        for _ in range(6):
            act_for(harness.shared, 0, harness.rng)
            harness.worker.step(0)
        harness.return_slot(0)
        harness.worker.resume(0)
    records = b"".join(ByteRing(harness.shared.episodes(0)).pop_all())
    episodes = np.frombuffer(records, episode_dtype(1))
    assert len(episodes) > 20
    np.testing.assert_array_equal(episodes["info"][:, 0], episodes["length"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"reward_scale": 0.01, "reward_clip": "off"}, lambda raw: raw * np.float32(0.01)),
        ({"reward_scale": 0.01, "reward_clip": 1.5}, lambda raw: np.clip(raw * 0.01, -1.5, 1.5)),
        ({"reward_clip": 150.0}, lambda raw: np.clip(raw, -150, 150)),
        ({"reward_scale": 3.0, "reward_clip": "sign"}, np.sign),
    ],
)
def test_rewards_are_scaled_then_clipped_and_statistics_are_raw(options, expected):
    harness = Harness(rollout_length=16, **options)
    shared = harness.shared
    assert harness.worker.begin(0)
    for _ in range(16):
        act_for(shared, 0, harness.rng)
        harness.worker.step(0)
    slot = harness.slot(0, 0)
    raw = 100 * shared.obs["obs"][slot, :-1, :, counting.STEP] + shared.action["action"][slot]
    raw[shared.ignored[slot, :-1]] = 0
    np.testing.assert_allclose(shared.reward[slot], expected(raw), rtol=1e-6)
    episodes = np.frombuffer(b"".join(ByteRing(shared.episodes(0)).pop_all()), episode_dtype(0))
    assert (episodes["return"] > 100).all()


@pytest.mark.parametrize("row", [0, 3, 7])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_observation_that_is_not_finite_is_told_before_the_slot_is_full(row, bad):
    harness = Harness(rollout_length=8)
    assert harness.worker.begin(0)
    look = harness.envs[0]._observe

    def observe(obs, action_mask):
        look(obs, action_mask)
        if made == row:
            obs[1, counting.STEP] = bad

    harness.envs[0]._observe = observe
    with pytest.raises(
        UnsupportedEnvironment, match=rf"observation of environment 1 holds {bad} at \[2\]"
    ):
        for made in range(8):  # noqa: B007
            act_for(harness.shared, 0, harness.rng)
            harness.worker.step(0)
    assert harness.shared.filled.load(0) == 0


def test_a_reward_that_is_not_finite_is_told_at_once():
    harness = Harness(rollout_length=8)
    assert harness.worker.begin(0)
    harness.envs[0]._step = np.array([0, np.nan, 0])
    act_for(harness.shared, 0, harness.rng)
    with pytest.raises(UnsupportedEnvironment, match="environment 1 returned the reward nan"):
        harness.worker.step(0)


def test_rewards_whose_sum_is_too_large_are_finite_all_the_same():
    harness = Harness(rollout_length=8)
    assert harness.worker.begin(0)
    harness.envs[0]._step = np.full(3, 3e36)
    act_for(harness.shared, 0, harness.rng)
    harness.worker.step(0)


def test_environments_that_ask_are_told_how_far_training_is():
    told = []
    harness = Harness(rollout_length=4, total_steps=1000)
    for env in harness.envs:
        env.set_progress = lambda *progress: told.append(progress)
    harness.worker = RolloutWorker(harness.shared, 0, harness.envs)
    assert harness.worker.begin(0)
    assert told == [(0, 1000)]
    for nth in range(3):
        harness.shared.control.store(Control.STEPS, 100 * (nth + 1))
        for _ in range(4):
            act_for(harness.shared, 0, harness.rng)
            harness.worker.step(0)
    # Once per rollout, as it begins; the third has found no slot.
    assert told == [(0, 1000), (100, 1000), (200, 1000)]
    harness.return_slot(0)
    harness.worker.resume(0)
    assert told[-1] == (300, 1000)


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
    assert np.frombuffer(records, episode_dtype(0)).tolist() == expected


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
    episodes = np.frombuffer(b"".join(ByteRing(shared.episodes(0)).pop_all()), episode_dtype(0))
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
        """The environment, whose final observations are infinite or NaN where it terminates."""

        spec = counting.spec("count:x")

        def __init__(self, env):
            self._env = env

        def reset(self, *args):
            return self._env.reset(*args)

        def step(self, action, out):
            self._env.step(action, out)
            over = out.terminated
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
            assert np.isfinite(finals).all(), kind
            assert ((finals[:, counting.STEP] == 0) == (kind == "terminated")).all(), kind
            assert (finals[:, counting.INDEX] < E).all(), "the rest is as it was"
        harness.return_slot(0)
        worker.resume(0)
    assert min(seen.values()) > 5
