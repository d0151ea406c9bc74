"""Lag is what it is said to be: versions published between a row's choice and its batch.

Rows are chosen by a real `Inference` from published weights, so their stamps are the engine's own;
the test counts what it has seen being published, and compares.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from engine import Engine

from fastrl.models.acting import ActingPolicy
from fastrl.models.config import ModelConfig
from fastrl.models.flat import FlatParameters
from fastrl.models.policy import ActorCritic
from fastrl.monitor.accounts import Control
from fastrl.workers.inference import Inference

T = 6


class Published:
    """Stands where the learner has the published weights, and keeps a copy of each version."""

    def __init__(self, engine: Engine) -> None:
        self._weights = engine.learner._weights
        engine.learner._weights = self
        first = np.empty(engine.updater.num_params, np.float32)
        assert self._weights.read(first) == 1
        self.versions = {1: first}
        self.on_publish = lambda: None

    @property
    def newest(self) -> int:
        return len(self.versions)

    def publish(self, source: np.ndarray) -> int:
        version = self._weights.publish(source)
        assert version == self.newest + 1
        self.versions[version] = source.copy()
        self.on_publish()
        return version


class ActingEngine(Engine):
    """An engine in which inference acts; a batch is one slot of one group."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "rollout_length": T,
                "groups_per_worker": 3,
                "envs_per_worker": 9,
                "batch_size": T * 3,
                "normalize_obs": True,
                "normalize_returns": True,
                "learning_rate": 1e-3,
                "max_policy_lag": 10**6,
                **options,
            }
        )
        assert self.plan.batch_slots == 1
        self.inference = Inference(self.shared, ActingPolicy(self.plan.spec, self.plan.config))
        self.published = Published(self)

    def act(self, group: int) -> None:
        assert self.inference.refresh() == self.published.newest
        self.inference.run(np.array([group]))

    def step(self, group: int, version: int = 0) -> bool:
        """Act with the newest weights, whatever `version`, and step."""
        self.act(group)
        return self.step_environments(group)

    def step_environments(self, group: int) -> bool:
        ready, full = self.worker.step(group)
        if full:
            self.queue.look_at(group)
        return ready

    def waits_for_slot(self, group: int) -> bool:
        shared = self.shared
        full = shared.filled.load(group) - shared.returned.load(group)
        return full == self.plan.slots_per_group

    def train_oldest(self, group: int) -> dict:
        """Train on the oldest full slot, which is to be one of `group`."""
        slots, _ = self.queue.take(1)
        assert slots[0] // self.plan.slots_per_group == group
        return self.train(slots)


EPOCHS, MINIBATCHES = 2, 3
PUBLISHED = {"batch": 1, "step": EPOCHS * MINIBATCHES}
"""Versions that a batch makes."""


def acting_engine(publish: str, **options: Any) -> ActingEngine:
    return ActingEngine(publish=publish, epochs=EPOCHS, minibatches=MINIBATCHES, **options)


@pytest.mark.parametrize("batches", range(5))
@pytest.mark.parametrize("publish", PUBLISHED)
def test_the_lag_of_rows_that_wait_in_the_queue_is_the_versions_of_the_batches_before(
    publish, batches
):
    engine = acting_engine(publish)
    before = [1 + nth % 2 for nth in range(batches)]
    for group in [*before, 0]:
        engine.fill(group)
    assert (engine.shared.version[list(engine.queue._slots)] == 1).all()
    for nth, group in enumerate([*before, 0]):
        metrics = engine.train_oldest(group)
        assert metrics["lag/mean"] == metrics["lag/max"] == nth * PUBLISHED[publish]
        assert metrics["lag/p99"] == nth * PUBLISHED[publish]
    assert engine.published.newest == 1 + (batches + 1) * PUBLISHED[publish]


@pytest.mark.parametrize("batches", range(5))
@pytest.mark.parametrize("publish", PUBLISHED)
def test_the_lag_of_rows_chosen_before_and_after_others_learned(publish, batches):
    engine = acting_engine(publish)
    for _ in range(2):
        engine.step(0)
    engine.act(0)  # three rows are chosen, and the environments have taken two steps
    for _ in range(batches):
        engine.fill(1)
        assert engine.train_oldest(1)["lag/max"] == 0
    engine.step_environments(0)
    while len(engine.queue) == 0:
        engine.step(0)
    metrics = engine.train_oldest(0)
    valid = ~engine.shared.ignored[0, :T]
    assert metrics["lag/max"] == batches * PUBLISHED[publish]
    old, all_rows = int(valid[:3].sum()), int(valid.sum())
    assert metrics["lag/mean"] == old * batches * PUBLISHED[publish] / all_rows


@pytest.mark.parametrize("publish", PUBLISHED)
@pytest.mark.parametrize("seed", range(3))
def test_lag_is_counted_by_row_whatever_the_order_of_steps_and_batches(publish, seed):
    limit = 2 * PUBLISHED[publish]
    engine = acting_engine(publish, max_policy_lag=limit)
    rng = np.random.default_rng(seed)
    # The test's own book: of every group the versions that its rows were chosen by, in order.
    chosen: dict[int, list[int]] = {group: [] for group in range(3)}
    taken = [0, 0, 0]
    trained = masked = 0
    for _ in range(200):
        group = int(rng.choice(3, p=[0.7, 0.2, 0.1]))
        if not engine.waits_for_slot(group):
            chosen[group].append(engine.published.newest)
            engine.step(group)
        if len(engine.queue) == 0 or rng.random() < 0.9:
            continue
        newest = engine.published.newest
        slots, _ = engine.queue.take(1)
        (slot,) = slots.tolist()
        of = slot // engine.plan.slots_per_group
        valid = ~engine.shared.ignored[slot, :T]
        versions = np.array(chosen[of][taken[of] * T : (taken[of] + 1) * T])
        taken[of] += 1
        lag = np.broadcast_to(newest - versions[:, None], valid.shape)
        kept = valid & (lag <= limit)
        metrics = engine.train(slots)
        assert metrics["lag/mean"] == lag[valid].mean() and metrics["lag/max"] == lag[valid].max()
        trained += int(kept.sum())
        masked += int((valid & ~kept).sum())
        # A column is a minibatch, and one without a kept row makes no step.
        steps = EPOCHS * int(kept.any(axis=0).sum())
        assert engine.published.newest == newest + (steps if publish == "step" else steps > 0)
    control = engine.shared.control
    assert (control.load(Control.TRAINED), control.load(Control.MASKED)) == (trained, masked)
    assert min(trained, masked) > 0


def after_each_step(updater, act):
    step = updater._optimizer.step

    def step_and_act(*arguments):
        step(*arguments)
        act()

    updater._optimizer.step = step_and_act


def test_every_optimiser_step_publishes_and_the_last_one_with_the_new_statistics():
    engine = acting_engine("step")
    updater, published = engine.updater, engine.published
    steps = []
    after_each_step(updater, lambda: steps.append(published.newest))
    network = updater.network
    flat = FlatParameters(new_network(engine))
    learned = np.zeros(flat.num_floats, bool)
    statistics = np.zeros(flat.num_floats, bool)
    for name, parameter in flat.module.named_parameters():
        at = slice(flat.offsets[name], flat.offsets[name] + parameter.numel())
        (statistics if "normalizer" in name else learned)[at] = True
    assert statistics.sum() == 4 + 4 + 1 + 1
    for batch in range(3):
        first = published.newest
        steps.clear()
        engine.fill(batch % 2)
        engine.train_oldest(batch % 2)
        assert len(steps) == EPOCHS * MINIBATCHES
        # A version follows each step, and none comes between.
        assert steps == list(range(first, first + len(steps)))
        assert published.newest == first + len(steps)
        made = [published.versions[first + n] for n in range(len(steps) + 1)]
        for old, new in pairwise(made):
            assert (old[learned] != new[learned]).any()
        for old, new in pairwise(made[:-1]):
            np.testing.assert_array_equal(new[statistics], old[statistics])
        assert (made[-1][statistics] != made[-2][statistics]).sum() >= 8
        np.testing.assert_array_equal(made[-1], updater.flat_numpy())
        normalizer = network.encoder.normalizers["obs"]
        moments = updater.state()["moments"]["obs"]
        np.testing.assert_array_equal(normalizer.mean.detach(), moments["mean"].float())
        name = "encoder.normalizers.leaf_obs.mean"
        at = slice(flat.offsets[name], flat.offsets[name] + 4)
        np.testing.assert_array_equal(made[-1][at], moments["mean"].float())


def test_a_minibatch_without_a_kept_row_makes_no_version():
    engine = acting_engine("step", max_policy_lag=0)
    steps = []
    after_each_step(engine.updater, lambda: steps.append(None))
    engine.fill(0)
    engine.shared.version[0, :, 1] = 0  # one of three columns, each a minibatch
    engine.train_oldest(0)
    assert len(steps) == EPOCHS * (MINIBATCHES - 1)
    assert engine.published.newest == 1 + len(steps)


@pytest.mark.parametrize("publish", PUBLISHED)
def test_rows_chosen_in_the_middle_of_a_batch_have_its_versions(publish):
    # As a process of its own would, inference acts whenever weights have been published.
    engine = acting_engine(publish)
    stamps: list[int] = []

    def act() -> None:
        if not engine.waits_for_slot(0):
            engine.step(0)
            stamps.append(engine.published.newest)

    engine.published.on_publish = act
    while len(stamps) < 2 * T:
        engine.fill(1)
        slots, _ = engine.queue.take(len(engine.queue))
        # Those of group 0 wait.
        engine.train(slots[slots >= engine.plan.slots_per_group])
    assert stamps == list(range(2, 2 + len(stamps)))
    # The stamp tells the truth: that version's weights give the log-probabilities and values.
    network = new_network(engine)
    flat = FlatParameters(network)
    shared = engine.shared
    for nth, version in enumerate(stamps):
        slot, row = divmod(nth, T)
        assert (shared.version[slot, row] == version).all()
        flat.data.copy_(torch.from_numpy(engine.published.versions[version]))
        with torch.no_grad():
            output = network({"obs": torch.from_numpy(shared.obs["obs"][slot, row].copy())})
            action = {"action": torch.from_numpy(shared.action["action"][slot, row].copy())}
            log_prob, _ = network.evaluate(output, action)
        np.testing.assert_allclose(shared.log_prob[slot, row], log_prob, rtol=1e-5)
        np.testing.assert_allclose(shared.value[slot, row], output.value, rtol=1e-4, atol=1e-5)
    newest = engine.published.newest
    lag = newest - np.repeat(stamps[:T], 3)[~shared.ignored[0, :T].ravel()]
    metrics = engine.train(np.array([0]))
    assert metrics["lag/mean"] == lag.mean() and metrics["lag/max"] == lag.max()


def new_network(engine: ActingEngine) -> ActorCritic:
    return ActorCritic(engine.plan.spec, engine.plan.config.section(ModelConfig))
