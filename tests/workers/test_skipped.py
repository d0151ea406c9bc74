"""A step whose loss or gradient is not finite is skipped, counted and named."""

from __future__ import annotations

import math

import counting
import everything
import numpy as np
import pytest
import torch
from engine import Engine, make_learner

from fastrl.errors import NotFinite
from fastrl.models.acting import ActingPolicy
from fastrl.shm import Arena
from fastrl.workers import skipped as skipped_steps
from fastrl.workers.batch import BatchReader
from fastrl.workers.diagnosis import Finding
from fastrl.workers.inference import Inference
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.skipped import SkippedSteps
from fastrl.workers.slot_queue import SlotQueue

T = 4
EPOCHS = 2
# Otherwise an observation out of bounds is clipped, and tanh bounds what follows from it.
PLAIN = {"normalize_obs": False, "activation": "relu", "hidden": (16, 16)}
ENV = 4  # the one at fault: the second of group 1's three


def make_engine(**options) -> Engine:
    defaults = {"rollout_length": T, "epochs": EPOCHS, "minibatches": 3, "max_skipped": 100}
    engine = Engine(**{**defaults, **PLAIN, **options})
    engine.notices = []
    engine.learner._skipped._tell = lambda notice: engine.notices.append(notice.text)
    return engine


def fill(engine: Engine) -> np.ndarray:
    """One slot of each group, group 1's last."""
    for group in (0, 1):
        engine.fill(group)
    slots, _ = engine.queue.take(2)
    assert (slots // engine.plan.slots_per_group).tolist() == [0, 1]
    return slots


def optimiser_state(engine: Engine) -> list[np.ndarray]:
    """Weights, both moments and the count of steps, as copies."""
    state = engine.updater._optimizer.state()
    return [
        engine.updater.flat_numpy().copy(),
        *(state[name].numpy().copy() for name in ("exp_avg", "exp_avg_sq", "steps")),
    ]


def assert_same_bits(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def poison(engine: Engine, slots: np.ndarray, what: str, number: float = 3e38) -> None:
    """Put a finite but huge number into the rows of environment ENV."""
    slot, e = slots[1], ENV % engine.plan.envs_per_group
    if what == "obs":
        engine.shared.obs["obs"][slot, 1, e] = number
        return
    # An effective row, with another before it: what is discounted of the one comes on top.
    rows = np.flatnonzero(~engine.shared.ignored[slot, :T, e])
    engine.shared.reward[slot, rows, e] = number


def test_weights_moments_and_the_count_of_steps_are_untouched_by_a_skipped_step():
    engine = make_engine(minibatches=1, normalize_returns=True)
    metrics = engine.train(fill(engine))
    assert metrics["losses/skipped"] == 0
    before = optimiser_state(engine)
    assert before[-1] == EPOCHS and np.abs(before[1]).max() > 0
    slots = fill(engine)
    poison(engine, slots, "obs")
    metrics = engine.train(slots)
    assert metrics["losses/skipped"] == EPOCHS
    assert math.isnan(metrics["losses/value_loss"]) and math.isnan(metrics["losses/grad_norm"])
    assert_same_bits(optimiser_state(engine), before)
    engine.train(fill(engine))
    assert optimiser_state(engine)[-1] == 2 * EPOCHS


def test_a_skipped_update_leaves_no_trace_in_those_that_follow():
    def trained(faulty: bool) -> list[np.ndarray]:
        engine = make_engine(normalize_returns=True)
        reader = BatchReader(engine.shared, 64)
        engine.train(fill(engine))
        batch = reader.read(fill(engine), 1, 8)
        if faulty:
            hooks = [
                parameter.register_hook(lambda gradient: gradient * math.nan)
                for parameter in engine.updater.network.value_head.parameters()
            ]
            engine.updater.update(batch, reader, 7, 0.0)
            assert engine.updater.steps.skipped.all()
            for hook in hooks:
                hook.remove()
        engine.updater.update(batch, reader, 1, 0.0)
        assert not engine.updater.steps.skipped.any()
        moments = engine.updater.state()["return_moments"].values()
        return [*optimiser_state(engine), *(value.numpy().astype(np.float32) for value in moments)]

    assert_same_bits(trained(faulty=True), trained(faulty=False))


@pytest.mark.parametrize("targets", ["minibatch", "batch"])
def test_other_minibatches_of_the_batch_are_trained_on(targets):
    engine = make_engine(normalize_returns=True, targets=targets)
    engine.train(fill(engine))
    before = optimiser_state(engine)
    rows = float(engine.updater.state()["return_moments"]["num_rows"])
    slots = fill(engine)
    poison(engine, slots, "reward")
    valid = int((~engine.shared.ignored[slots, :T]).sum())
    metrics = engine.train(slots)
    # Environment ENV is in one minibatch of each epoch.
    assert metrics["losses/skipped"] == EPOCHS
    after = optimiser_state(engine)
    assert after[-1] - before[-1] == 2 * EPOCHS
    assert all(np.isfinite(array).all() for array in after)
    assert (after[0] != before[0]).any()
    assert math.isfinite(metrics["losses/value_loss"])
    # Two of three minibatches of the last epoch are in the statistics of returns.
    moments = engine.updater.state()["return_moments"]
    assert rows < moments["num_rows"] < rows + valid
    assert moments["mean"].abs() < 1e5 and moments["variance"] < 1e9


@pytest.mark.parametrize(
    ("what", "number", "text"),
    [
        (
            "obs",
            3e38,
            "the policy loss is not finite; the first bad tensor is the features of environment 4, "
            "whose observation reaches 3e+38",
        ),
        (
            "reward",
            1e22,
            "the value loss is the first tensor that is not finite; the reward of environment 4 "
            "reaches 1e+22",
        ),
        ("reward", 3e38, "advantage of environment 4, whose reward reaches 3e+38"),
    ],
)
@pytest.mark.parametrize("targets", ["minibatch", "batch"])
def test_the_first_bad_tensor_and_its_environment_are_named(what, number, text, targets):
    engine = make_engine(targets=targets)
    engine.train(fill(engine))
    slots = fill(engine)
    assert slots[1] % engine.plan.slots_per_group == 1, "not the first slot of its group"
    poison(engine, slots, what, number)
    engine.train(slots)
    (notice,) = engine.notices
    assert notice.startswith("update 2: 2 of 6 optimiser steps were skipped: the ")
    assert f"{text} (2 skipped so far)" in notice


@pytest.mark.parametrize(
    "name", ["encoder.actor.leaves.leaf_obs.layers.1.weight", "value_head.bias"]
)
@pytest.mark.parametrize("targets", ["minibatch", "batch"])
def test_a_bad_gradient_is_named_by_its_parameter(name, targets):
    engine = make_engine(targets=targets)
    engine.train(fill(engine))
    before = optimiser_state(engine)
    parameter = dict(engine.updater.network.named_parameters())[name]
    parameter.register_hook(lambda gradient: gradient * math.nan)
    metrics = engine.train(fill(engine))
    assert metrics["losses/skipped"] == 3 * EPOCHS
    assert_same_bits(optimiser_state(engine), before)
    assert engine.notices == [
        "update 2: 6 of 6 optimiser steps were skipped: the gradient is not finite; the first bad "
        f"tensor is the gradient of {name} (6 skipped so far)"
    ]


def test_a_gradient_whose_norm_alone_is_not_finite_is_named():
    engine = make_engine()
    weight = engine.updater.network.value_head.weight
    weight.register_hook(lambda gradient: torch.full_like(gradient, 1e30))
    engine.train(fill(engine))
    assert "the norm of the gradient, most of it of value_head.weight (6" in engine.notices[0]


def test_what_is_finite_once_more_is_said_to_be():
    engine = make_engine(epochs=1, minibatches=1)
    bad = [math.nan]
    engine.updater.network.value_head.weight.register_hook(
        lambda gradient: gradient * (bad.pop() if bad else 1.0)
    )
    engine.train(fill(engine))
    assert (
        "the gradient is not finite, but it is with the weights after the update"
        in (engine.notices[0])
    )


def test_a_bad_parameter_is_named_and_no_environment():
    engine = make_engine()
    with torch.no_grad():
        engine.updater.network.value_head.bias.fill_(math.nan)
    slots = fill(engine)
    poison(engine, slots, "reward")
    engine.train(slots)
    assert "the first bad tensor is the parameter value_head.bias (6" in engine.notices[0]


def test_a_leaf_of_many_is_named_and_masked_choices_are_not():
    # Everything that a space can hold, with masks: their minus infinity is no fault.
    spec = everything.spec()
    options = {"mode": "sync", "epochs": 1, "rollout_length": 8, "max_skipped": 100} | PLAIN
    shared, _, learner = make_learner(Arena.create(), spec, **options)
    notices: list[str] = []
    learner._skipped._tell = lambda notice: notices.append(notice.text)
    plan = shared.plan
    E, groups = plan.envs_per_group, np.arange(plan.num_groups)
    worker = RolloutWorker(
        shared, 0, [everything.EverythingEnv(spec, E, g * E) for g in groups.tolist()]
    )
    inference, queue = Inference(shared, ActingPolicy(spec, plan.config)), SlotQueue(shared)
    for group in groups.tolist():
        worker.begin(group)
    for _ in range(plan.rollout_length):
        inference.refresh()
        inference.run(groups)
        for group in groups.tolist():
            worker.step(group)
            queue.look_at(group)
    slots, dropped = queue.take(plan.batch_slots)
    shared.obs["far.off"][slots[1], 2, 0] = -2e38
    learner.train(slots, dropped)
    env = int(slots[1]) // plan.slots_per_group * E
    assert len(notices) == 1
    assert f"observation['far.off'] of environment {env} reaches 2e+38" in notices[0]


def test_a_column_knows_its_environment():
    engine = make_engine()
    for group in (1, 0, 1, 0, 1):
        engine.fill(group)
    slots, _ = engine.queue.take(5)
    reader = BatchReader(engine.shared, 64)
    batch = reader.read(slots, 1, 8)
    # The counting environment shows its index.
    shown = engine.shared.obs["obs"][slots, 0, :, counting.INDEX].ravel()
    np.testing.assert_array_equal(reader.env_index(batch.first_row), shown)
    assert set(shown.tolist()) == set(range(6))


def test_observations_whose_statistics_are_not_finite_stay_out_of_the_normaliser():
    engine = make_engine(normalize_obs=True)
    engine.train(fill(engine))
    before = engine.updater.state()["moments"]["obs"]
    slots = fill(engine)
    poison(engine, slots, "obs")
    # Clipped by the normaliser, they harm no step.
    assert engine.train(slots)["losses/skipped"] == 0
    after = engine.updater.state()["moments"]["obs"]
    assert after["num_rows"] == before["num_rows"] > 0
    assert torch.equal(after["mean"], before["mean"])
    assert torch.equal(after["variance"], before["variance"])
    engine.train(fill(engine))
    assert engine.updater.state()["moments"]["obs"]["num_rows"] > before["num_rows"]


def test_the_learning_rate_does_not_follow_the_divergence_of_skipped_steps():
    engine = make_engine(lr_schedule="kl", minibatches=1)
    rate = engine.updater._learning_rate
    slots = fill(engine)
    poison(engine, slots, "reward")
    before = float(rate)
    assert math.isnan(engine.train(slots)["losses/kl"])
    assert float(rate) == before
    engine.train(fill(engine))
    assert float(rate) != before


def test_too_many_in_a_row_end_the_run_over_updates():
    engine = make_engine(minibatches=1, max_skipped=3)
    engine.train(fill(engine))
    before = optimiser_state(engine)
    slots = fill(engine)
    poison(engine, slots, "reward")
    engine.train(slots)
    slots = fill(engine)
    poison(engine, slots, "reward")
    returned = engine.shared.returned.snapshot().tolist()
    with pytest.raises(FloatingPointError) as caught:
        engine.train(slots)
    assert str(caught.value) == (
        "4 optimiser steps in a row were skipped up to update 3, more than --max-skipped 3 allows: "
        "the policy loss is not finite; the first bad tensor is the advantage of environment 4, "
        "whose reward reaches 3e+38; lower --learning-rate, look at the environment's rewards "
        "and observations, or raise --max-skipped (the last checkpoint is kept)."
    )
    assert engine.shared.returned.snapshot().tolist() == returned, "the batch counts as unfinished"
    assert_same_bits(optimiser_state(engine), before)


def test_a_step_that_was_taken_ends_the_row():
    skipped = SkippedSteps(3, lambda notice: None)
    for row in ([1, 1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]):
        skipped.after_update(1, np.array(row, bool), lambda step: "so")
    assert skipped.in_a_row == 3 and skipped.total == 9
    with pytest.raises(NotFinite, match=r"^4 optimiser steps in a row were"):
        skipped.after_update(6, np.array([1, 0, 0], bool), lambda step: "so")


def test_with_0_the_first_ends_the_run():
    skipped = SkippedSteps(0, lambda notice: None)
    skipped.after_update(1, np.zeros(4, bool), lambda step: "so")
    with pytest.raises(NotFinite, match=r"^1 optimiser step was skipped up to update 1,234"):
        skipped.after_update(1234, np.array([0, 1, 0], bool), lambda step: "so")


def test_notices_are_10_seconds_apart_and_causes_are_looked_for_where_they_are_told(monkeypatch):
    now, told, asked = [100.0], [], []
    monkeypatch.setattr(skipped_steps.time, "monotonic", lambda: now[0])
    skipped = SkippedSteps(100, lambda notice: told.append(notice.text))

    def cause(step: int) -> str:
        asked.append(step)
        return "so"

    for update, seconds in enumerate((0.0, 4.0, 5.9, 0.2), start=1):
        now[0] += seconds
        skipped.after_update(update, np.array([0, 0, 1, 1], bool), cause)
    now[0] += 60
    skipped.after_update(5, np.zeros(4, bool), cause)
    assert told == [
        "update 1: 2 of 4 optimiser steps were skipped: so (2 skipped so far)",
        "update 4: 2 of 4 optimiser steps were skipped: so (8 skipped so far)",
    ]
    assert asked == [2, 2]


@pytest.mark.parametrize(
    ("envs", "who"),
    [
        ([3], "environment 3"),
        ([3, 12], "environments 3 and 12"),
        ([3, 12, 15], "environments 3, 12 and 15"),
        ([3, 12, 15, 20], "environments 3, 12, 15 and 1 other"),
        (list(range(9)), "environments 0, 1, 2 and 6 others"),
    ],
)
def test_environments_are_named_up_to_three(envs, who):
    said = Finding("advantage", envs, of_rows=True).describe("policy loss")
    assert said == f"the policy loss is not finite; the first bad tensor is the advantage of {who}"
