"""The learner's side: what it takes, what it counts, what it trains on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from engine import Engine

from fastrl.algo import appo
from fastrl.monitor.accounts import Clock, Control
from fastrl.shm import Counters
from fastrl.workers import learner
from fastrl.workers.batch import BatchReader
from fastrl.workers.update import Updater


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


def update_once(**options) -> np.ndarray:
    """Parameters after one update on the same rows."""
    engine = Engine(rollout_length=12, epochs=2, minibatches=2, **options)
    for group in (0, 1):
        engine.fill(group)
    engine.train(engine.queue.take(2)[0])
    return engine.updater.flat_numpy().copy()


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


def test_targets_of_a_batch_are_those_of_the_policy_at_its_start(monkeypatch):
    engine = Engine(
        rollout_length=4, envs_per_worker=12, epochs=3, minibatches=3, targets="batch",
        learning_rate=0.05, normalize_returns=False,
    )  # fmt: skip
    config, reader = engine.plan.config, BatchReader(engine.shared, chunk_rows=64)
    by_minibatch = Updater(engine.plan.spec, dataclasses.replace(config, targets="minibatch"))
    seen: list[list[torch.Tensor]] = []
    original = appo.appo_loss

    def spy(log_prob, entropy, value, behaviour, returns, *args, **kwargs):
        arrays = (behaviour, returns.vs, returns.advantage, kwargs["proximal_log_prob"], log_prob)
        seen.append([x.detach().flatten().clone() for x in arrays])
        return original(log_prob, entropy, value, behaviour, returns, *args, **kwargs)

    for _ in range(2):  # a batch knows nothing of the one before
        for group in (0, 1):
            engine.fill(group, version=engine.learner.version)
        slots = engine.queue.take(2)[0]
        # A number of its own for each row, by which it is told.
        stored = engine.shared.log_prob[slots]
        numbers = engine.rng.permutation(stored.size) / stored.size - 2.0
        engine.shared.log_prob[slots] = numbers.reshape(stored.shape)
        by_minibatch.load_weights(engine.updater.state())
        batch = reader.read(slots, engine.learner.version, config.max_policy_lag)
        start = by_minibatch.backward(batch, reader, np.arange(batch.num_columns))
        expected = torch.stack([*start.returns, start.log_prob]).flatten(1)
        ignored = batch.ignored.flatten()
        where = {number: at for at, number in enumerate(batch.log_prob.flatten().tolist())}
        assert len(where) == stored.size
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(appo, "appo_loss", spy)
            engine.train(slots)
        assert len(seen) == 9
        for epoch in range(3):
            found = [
                torch.cat(parts) for parts in zip(*seen[3 * epoch : 3 * epoch + 3], strict=True)
            ]
            order = torch.tensor([where[number] for number in found[0].tolist()])
            assert not torch.equal(order, order.sort().values)
            assert torch.equal(order.sort().values, torch.arange(stored.size))
            used = ~ignored[order]
            torch.testing.assert_close(
                torch.stack(found[1:4])[:, used], expected[:, order][:, used], rtol=1e-4, atol=1e-5
            )
        assert float((found[4] - found[3])[used].abs().max()) > 0.01, "nothing was learned"


@pytest.mark.parametrize("full, arrive, before", [(3, 0, 3), (1, 2, 1), (0, 2, 0), (2, 0, 2)])
def test_what_was_full_before_the_learner_waited_is_known(full, arrive, before):
    """Of it depends whether the learner takes another thread: a batch is always full after that."""
    queue: list[int] = []
    clock = Counters(np.zeros(len(Clock), np.int64))
    # Of each call, those that there are at once, and those that come while it waits.
    coming = [(full, 0), (0, 0), *([(0, arrive)] if arrive else []), (0, 0)]

    class Inbox:
        def pop_many(self, words, sources, timeout):
            at_once, later = coming.pop(0) if len(coming) > 1 else coming[0]
            assert timeout > 0 or not later
            return at_once + later

    class Queue:
        def look_at(self, group):
            queue.append(group)

        def __len__(self):
            return len(queue)

    words, sources = np.zeros(8, np.uint64), np.zeros(8, np.uint32)
    seen, waited = learner._wait_for_slots(Inbox(), Queue(), 2, words, sources, clock)
    assert (seen, len(queue)) == (before, full + arrive)
    assert clock.load(Clock.WAIT) == waited >= 0
