"""The plan: sizes that follow from each other, and what it says before a run."""

from __future__ import annotations

import pytest

from fastrl.config import TrainConfig
from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError
from fastrl.resolve import resolve
from fastrl.workers import plan as plan_module
from fastrl.workers.plan import Plan

OBSERVATION = ObservationSpec((4,), "float32", "vector", None)
ACTION = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
SPEC = EnvSpec("x:y", {"obs": OBSERVATION}, {"action": ACTION}, 1, None)

SLOT = 8 * 3
"""Steps in a slot: T = 8, and 6 environments of a worker in 2 groups."""


def plan_for(slots: int, **options) -> Plan:
    """4 groups and a batch of this many slots."""
    config = TrainConfig(
        env="x:y", seed=1, workers=2, envs_per_worker=6, rollout_length=8,
        batch_size=slots * SLOT, **options,
    )  # fmt: skip
    return Plan(resolve(config, SPEC, cores=2, bf16_cpu=False), SPEC, num_params=16, cores=2)


def oldest_lag(plan: Plan) -> int:
    """Batches trained on between the choice of a row and its own batch, counted one by one.

    Every group's K slots are full when row 0 of the slot looked at is chosen, as the first slot
    comes back; then the learner takes slots of all groups in turn, oldest first.
    """
    in_front = (plan.slots_per_group - 1) * plan.num_groups
    taken = batches = 0
    while taken < in_front:
        taken += plan.batch_slots
        batches += 1
    return batches


@pytest.mark.parametrize(
    "slots, ahead, per_group, lag",
    [
        *((4, 2, 3, 2), (2, 2, 3, 4), (1, 2, 3, 8), (5, 2, 5, 4), (8, 2, 5, 2)),
        *((4, 1, 2, 1), (2, 1, 2, 2), (5, 1, 4, 3), (8, 1, 4, 2), (4, 5, 6, 5)),
    ],
)
def test_slots_and_lag_follow_from_the_batch(slots, ahead, per_group, lag):
    plan = plan_for(slots, batches_ahead=ahead)
    assert (plan.slots_per_group, plan.largest_lag) == (per_group, lag)
    assert plan.largest_lag == oldest_lag(plan)
    assert plan.num_slots == 4 * per_group


def lag_row(plan: Plan) -> str:
    return dict(plan.describe())["policy lag"]


def test_the_plan_says_when_rows_will_be_masked():
    assert lag_row(plan_for(1, max_policy_lag=8)).endswith("trained up to 8")
    assert lag_row(plan_for(1, max_policy_lag=7)).endswith(
        "about 8 where learning is; trained up to 7. Older rows will be masked: raise "
        f"--max-policy-lag to 8, or take --batch-size {4 * SLOT} for a lag of 2"
    )
    assert lag_row(plan_for(4, max_policy_lag=1)).endswith("raise --max-policy-lag to 2")


def test_the_advice_of_the_plan_is_true():
    advised = plan_for(4, max_policy_lag=2)
    assert advised.config.batch_size == 4 * SLOT
    assert "masked" not in lag_row(advised)
    assert "masked" not in lag_row(plan_for(1, max_policy_lag=8))


@pytest.mark.parametrize("slots, named", [(4, False), (5, True)])
def test_an_arena_without_room_is_refused_with_what_would_make_it_smaller(
    monkeypatch, slots, named
):
    plan = plan_for(slots)
    room = int(plan.layout().nbytes / 0.9) + 1
    monkeypatch.setattr(plan_module, "available_memory", lambda: room)
    plan.check_memory()
    monkeypatch.setattr(plan_module, "available_memory", lambda: room // 2)
    with pytest.raises(ConfigError, match="GiB of shared memory") as caught:
        plan.check_memory()
    sentence = str(caught.value)
    assert all(flag in sentence for flag in ("--workers", "--envs-per-worker", "--rollout-length"))
    assert ("--batch-size" in sentence) is named
