"""The learner's side: what it takes, what it counts, what it trains on."""

from __future__ import annotations

import counting
import numpy as np
import pytest
import torch
from engine import act_for, make_plan

from fastrl.monitor.accounts import Control
from fastrl.shm import Arena
from fastrl.workers.batch import BatchReader
from fastrl.workers.final_accounts import final_accounts
from fastrl.workers.learner import Learner
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.shared import Shared
from fastrl.workers.slot_queue import SlotQueue
from fastrl.workers.update import METRICS, Updater


class Engine:
    """A rollout worker and a learner in one process; actions are random."""

    def __init__(self, **options) -> None:
        arena = Arena.create()
        spec = counting.spec("count:x")
        probe = make_plan(Arena.create(), spec, **options)
        torch.manual_seed(0)
        self.updater = Updater(spec, probe.config)
        self.plan = make_plan(arena, spec, self.updater.num_params, **options)
        self.shared = Shared(self.plan, arena)
        self.learner = Learner(self.shared, self.updater)
        self.queue = SlotQueue(self.shared)
        self.rng = np.random.default_rng(0)
        self.start_workers()
        for group in range(self.plan.num_groups):
            assert self.worker.begin(group)

    def start_workers(self) -> None:
        E = self.plan.envs_per_group
        envs = [counting.CountingEnv("count:x", E, g * E) for g in range(self.plan.num_groups)]
        self.worker = RolloutWorker(self.shared, 0, envs)

    def step(self, group: int, version: int = 1) -> bool:
        act_for(self.shared, group, self.rng, version)
        ready, full = self.worker.step(group)
        if full:
            self.queue.look_at(group)
        return ready

    def fill(self, group: int, version: int = 1) -> None:
        filled = self.shared.filled.load(group)
        while self.shared.filled.load(group) == filled:
            self.step(group, version)

    def train(self, slots: np.ndarray, dropped: int = 0) -> dict:
        metrics = self.learner.train(slots, dropped)
        for group in range(self.plan.num_groups):
            self.worker.resume(group)
        return metrics


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


def test_lag_is_counted_in_versions_and_old_rows_are_masked():
    engine = Engine(rollout_length=4, max_policy_lag=2)
    learner, control = engine.learner, engine.shared.control
    for _ in range(3):  # versions 2, 3, 4
        for group in (0, 1):
            engine.fill(group, version=learner.version)
        metrics = engine.train(engine.queue.take(2)[0])
        assert metrics["lag/mean"] == 0 and metrics["lag/masked_share"] == 0
    assert learner.version == 4
    assert control.load(Control.MASKED) == 0
    for version in (1, 2):  # lags 3 and 2 at version 4
        engine.fill(0 if version == 1 else 1, version)
    slots = engine.queue.take(2)[0]
    old = int((~engine.shared.ignored[slots[0], :-1]).sum())
    new = int((~engine.shared.ignored[slots[1], :-1]).sum())
    metrics = engine.train(slots)
    assert metrics["lag/max"] == 3
    assert metrics["lag/mean"] == pytest.approx((3 * old + 2 * new) / (old + new))
    assert control.load(Control.MASKED) == old
    assert metrics["lag/masked_share"] == pytest.approx(old / (old + new))


def test_a_batch_without_a_kept_row_is_returned_untrained_and_counted():
    engine = Engine(rollout_length=4, max_policy_lag=0)
    for group in (0, 1):
        engine.fill(group, version=0)
    before = engine.updater.flat_numpy().copy()
    metrics = engine.train(engine.queue.take(2)[0])
    np.testing.assert_array_equal(engine.updater.flat_numpy(), before)
    assert engine.learner.version == 1, "nothing was learned: no row in flight becomes older"
    assert metrics["lag/masked_share"] == 1
    assert engine.shared.returned.snapshot().tolist() == [1, 1]
    assert engine.learner.steps == engine.shared.control.load(Control.MASKED) > 0


def test_weights_are_published_before_slots_are_returned():
    engine = Engine(rollout_length=4)
    for group in (0, 1):
        engine.fill(group)
    weights = engine.shared.weights()
    seen = []

    class Spy:
        def store(self, group: int, value: int) -> None:
            seen.append((weights.version, value))

        def load(self, group: int) -> int:
            return 0

    engine.shared.returned = Spy()
    engine.learner.train(engine.queue.take(2)[0])
    assert seen == [(2, 1), (2, 1)]
    published = np.empty(engine.updater.num_params, np.float32)
    assert weights.read(published) == 2
    np.testing.assert_array_equal(published, engine.updater.flat_numpy())


@pytest.mark.parametrize("epochs, minibatches", [(1, 1), (3, 6)])
def test_every_column_goes_through_the_loss_once_per_epoch(monkeypatch, epochs, minibatches):
    engine = Engine(rollout_length=4, epochs=epochs, minibatches=minibatches)
    seen: list[int] = []
    original = Updater._minibatch

    def spy(self, batch, reader, columns):
        seen.extend(columns.tolist())
        return original(self, batch, reader, columns)

    monkeypatch.setattr(Updater, "_minibatch", spy)
    for group in (0, 1):
        engine.fill(group)
    metrics = engine.train(engine.queue.take(2)[0])
    columns = 2 * engine.plan.envs_per_group
    assert len(seen) == epochs * columns
    orders = [seen[e * columns : (e + 1) * columns] for e in range(epochs)]
    assert all(sorted(order) == list(range(columns)) for order in orders)
    if epochs > 1:
        assert orders[0] != orders[1], "permuted anew in each epoch"
    assert set(metrics) >= set(METRICS)


def test_a_batch_holds_the_columns_of_its_slots_and_their_observations():
    engine = Engine(rollout_length=3)
    shared, plan = engine.shared, engine.plan
    for group in (0, 1, 1):
        engine.fill(group)
    slots, _ = engine.queue.take(3)
    reader = BatchReader(shared, chunk_rows=64)
    batch = reader.read(slots, version=1, max_lag=8)
    E, T = plan.envs_per_group, plan.rollout_length
    columns = np.array([0, E + 1, 2 * E + 2])
    rows = reader.rows(batch.first_row[columns], range(T + 1))
    obs = reader.observations(rows)["obs"].view(T + 1, 3, 4)
    for i, column in enumerate(columns.tolist()):
        slot, e = slots[column // E], column % E
        np.testing.assert_array_equal(obs[:, i], shared.obs["obs"][slot, :, e])
        np.testing.assert_array_equal(batch.reward[:, column], shared.reward[slot, :, e])
        np.testing.assert_array_equal(batch.ignored[:, column], shared.ignored[slot, :-1, e])
        np.testing.assert_array_equal(
            batch.action["action"][:, column], shared.action["action"][slot, :, e]
        )


def update_once(change=None, **options) -> np.ndarray:
    """Parameters after one update on the same rows; `change(shared, slots)` edits them before."""
    engine = Engine(rollout_length=12, epochs=2, minibatches=2, **options)
    for group in (0, 1):
        engine.fill(group)
    slots, _ = engine.queue.take(2)
    if change is not None:
        change(engine.shared, slots)
    engine.train(slots)
    return engine.updater.flat_numpy().copy()


@pytest.mark.parametrize("field", ["reward", "action", "log_prob", "value"])
def test_what_a_reset_row_holds_changes_no_parameter_by_one_bit(field):
    def change(shared: Shared, slots: np.ndarray) -> None:
        array = shared.action["action"] if field == "action" else getattr(shared, field)
        for slot in slots.tolist():
            ignored = shared.ignored[slot, :-1]
            assert ignored.any()
            array[slot][ignored] = 3 if field == "action" else np.inf

    np.testing.assert_array_equal(update_once(change), update_once())


def test_only_the_final_observation_of_a_truncated_episode_is_looked_at():
    def change_after(kind: str):
        def change(shared: Shared, slots: np.ndarray) -> None:
            changed = 0
            for slot in slots.tolist():
                after = np.zeros_like(shared.ignored[slot])
                after[1:] = getattr(shared, kind)[slot]
                shared.obs["obs"][slot][after] += 1
                changed += after.sum()
            assert changed > 0

        return change

    unchanged = update_once()
    np.testing.assert_array_equal(update_once(change_after("terminated")), unchanged)
    assert (update_once(change_after("truncated")) != unchanged).any()


def test_the_learning_rate_falls_linearly_with_the_steps_learned_from():
    engine = Engine(
        rollout_length=4,
        learning_rate=1.0,
        lr_schedule="linear",
        total_steps=100,
        envs_per_worker=8,
    )
    rates = []
    for _ in range(4):
        for group in (0, 1):
            engine.fill(group)
        steps = engine.learner.steps
        rates.append(engine.train(engine.queue.take(2)[0])["charts/learning_rate"])
        assert rates[-1] == pytest.approx(1 - steps / 100)
    assert rates[0] == 1.0


def test_the_backward_pass_sees_the_observations_of_the_forward_pass(monkeypatch):
    # A float32 observation is kept by autograd as it is, so no buffer may be filled a second time.
    once = update_once()
    original = BatchReader.observations

    def copies(self, rows):
        return {key: obs.clone() for key, obs in original(self, rows).items()}

    monkeypatch.setattr(BatchReader, "observations", copies)
    np.testing.assert_array_equal(update_once(), once)


def test_an_update_does_not_depend_on_the_size_of_chunks(monkeypatch):
    whole = update_once(learning_rate=1e-3)
    monkeypatch.setattr("fastrl.workers.update.chunk_rows", lambda spec: 5)
    np.testing.assert_allclose(update_once(learning_rate=1e-3), whole, atol=2e-5)


def test_parameters_that_are_not_finite_are_named():
    engine = Engine(rollout_length=4)
    engine.learner.check_finite()
    engine.updater.flat_numpy()[7] = np.nan
    with pytest.raises(FloatingPointError, match="not finite after 0 steps"):
        engine.learner.check_finite()
