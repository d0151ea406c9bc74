"""Each kept row goes through the loss `epochs` times, counted row by row; no other row ever does.

Every row of the run has a number of its own, in its observation, its reward and its stored
log-probability, so that what belongs together must also arrive together.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from engine import Engine

from fastrl.algo import appo
from fastrl.monitor.accounts import Control
from fastrl.workers import update

T, MAX_LAG = 6, 3
IGNORED, OLD, KEPT = range(3)


def stamped(number: np.ndarray) -> np.ndarray:
    """A log-probability that tells the number of its row, to the last bit, near that of 1 in 7."""
    return np.float32(-2.0) - number.astype(np.float32) / 2**16


class Numbered:
    """Numbers the rows of each batch and counts them where they enter the loss."""

    def __init__(self, engine: Engine, monkeypatch) -> None:
        self._engine = engine
        self._next = 0
        self.kinds: dict[int, int] = {}
        self.trained: Counter[int] = Counter()
        self.entered: Counter[int] = Counter()
        self._seen: dict[str, torch.Tensor] = {}
        engine.updater.network.encoder.register_forward_pre_hook(self._see_observations)
        for name, spy in (("vtrace_appo", self._see_rewards), ("appo_loss", self._count)):
            original = getattr(appo, name)
            monkeypatch.setattr(appo, name, self._before(spy, original))

    @staticmethod
    def _before(spy, original):
        def call(*args, **kwargs):
            spy(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    def number(self, slots: np.ndarray, rng: np.random.Generator) -> None:
        """Give the rows of a batch their numbers; the first rows of some columns are too old."""
        shared, version = self._engine.shared, self._engine.learner.version
        shape = (len(slots), T, self._engine.plan.envs_per_group)
        numbers = self._next + rng.permutation(np.prod(shape)).reshape(shape)
        self._next += numbers.size
        assert self._next < 2**16
        shared.obs["obs"][slots, :T, :, 0] = numbers
        shared.reward[slots] = numbers
        shared.log_prob[slots] = stamped(numbers)
        old = np.arange(T)[:, None] < rng.integers(-3, T, (len(slots), 1, shape[2]))
        lag = np.where(old, MAX_LAG + 1, rng.integers(0, MAX_LAG + 1, shape))
        shared.version[slots] = version - lag
        ignored = shared.ignored[slots, :T]
        kinds = np.where(ignored, IGNORED, np.where(old, OLD, KEPT))
        self.kinds |= dict(zip(numbers.ravel().tolist(), kinds.ravel().tolist(), strict=True))

    def _see_observations(self, module, args) -> None:
        if torch.is_grad_enabled():
            self._seen["obs"] = args[0]["obs"][:, 0].clone()

    def _see_rewards(self, ratio, reward, *args, **kwargs) -> None:
        self._seen["reward"] = reward.flatten()

    def _count(self, log_prob, entropy, value, behaviour, returns, weight, ignored, **kw) -> None:
        numbers = self._seen["obs"].numpy().astype(int)
        if self._engine.plan.config.targets == "minibatch":
            np.testing.assert_array_equal(self._seen["reward"], numbers)
        else:
            assert set(numbers.tolist()) <= set(self._seen["reward"].int().tolist())
        np.testing.assert_array_equal(behaviour.flatten(), stamped(numbers))
        assert set(weight.unique().tolist()) <= {0.0, 1.0}
        self.entered.update(numbers.tolist())
        self.trained.update(numbers[weight.flatten().numpy() > 0].tolist())


@pytest.mark.parametrize("targets", ["batch", "minibatch"])
@pytest.mark.parametrize("publish", ["batch", "step"])
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("minibatches", [1, 6])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_row_is_trained_on_once_per_epoch_or_not_at_all(
    monkeypatch, mode, publish, epochs, minibatches, targets
):
    engine = Engine(
        mode=mode,
        targets=targets,
        publish=publish,
        epochs=epochs,
        minibatches=minibatches,
        rollout_length=T,
        envs_per_worker=12,
        max_policy_lag=MAX_LAG,
        normalize_obs=True,
        normalize_returns=True,
    )
    rows = Numbered(engine, monkeypatch)
    rng = np.random.default_rng(7)
    assert engine.plan.sync == (mode == "sync")
    for batch in range(3):
        for group in (1, 0) if batch % 2 else (0, 1):
            engine.fill(group)
        slots, _ = engine.queue.take(engine.plan.batch_slots)
        rows.number(slots, rng)
        metrics = engine.train(slots)
        assert metrics["lag/max"] == MAX_LAG + 1
    numbers = {kind: {n for n, of in rows.kinds.items() if of == kind} for kind in range(3)}
    assert min(map(len, numbers.values())) > 10
    assert rows.trained == Counter(dict.fromkeys(numbers[KEPT], epochs))
    # The others are there for the trace alone, wherever their minibatch has a row to train on.
    assert set(rows.entered.values()) <= set(range(epochs + 1))
    assert set(rows.entered) <= set(rows.kinds)
    control = engine.shared.control
    assert control.load(Control.TRAINED) == len(numbers[KEPT])
    assert control.load(Control.MASKED) == len(numbers[OLD])


def test_columns_are_permuted_anew_in_each_epoch(monkeypatch):
    engine = Engine(rollout_length=4, epochs=3, minibatches=6, envs_per_worker=12)
    orders: list[list[int]] = []
    original = update.Updater._minibatch

    def spy(self, batch, reader, columns):
        orders.append(columns.tolist())
        return original(self, batch, reader, columns)

    monkeypatch.setattr(update.Updater, "_minibatch", spy)
    for group in (0, 1):
        engine.fill(group)
    metrics = engine.train(engine.queue.take(2)[0])
    assert set(metrics) >= set(update.METRICS)
    epochs = np.array(orders).reshape(3, 12)
    assert (np.sort(epochs) == np.arange(12)).all()
    assert len(np.unique(epochs, axis=0)) == 3


def test_losses_and_normalised_advantages_are_means_over_kept_rows_alone(monkeypatch):
    engine = Engine(rollout_length=T, envs_per_worker=12, epochs=1, max_policy_lag=MAX_LAG)
    rows = Numbered(engine, monkeypatch)
    calls = []
    original = appo.appo_loss

    def spy(*args, **kwargs):
        terms = original(*args, **kwargs)
        calls.append(
            ([x.detach().double().numpy() for x in (*args[:4], *args[4], *args[5:])], terms)
        )
        return terms

    monkeypatch.setattr(appo, "appo_loss", spy)
    for group in (0, 1):
        engine.fill(group)
    slots, _ = engine.queue.take(2)
    rows.number(slots, np.random.default_rng(3))
    engine.train(slots)
    ((log_prob, entropy, value, behaviour, vs, advantage, weight, ignored), terms) = calls[0]
    kept, num_valid = weight > 0, (ignored == 0).sum()
    assert kept.sum() < num_valid < kept.size
    A = advantage[kept]
    A = (A - A.mean()) / A.std(ddof=1)
    w, clip = np.exp(log_prob - behaviour)[kept], engine.plan.config.clip
    surrogate = np.minimum(w * A, np.clip(w, 1 - clip, 1 + clip) * A)
    np.testing.assert_allclose(terms.policy_loss, -surrogate.sum() / num_valid, rtol=1e-4)
    squared = 0.5 * np.square(value - vs)[kept].sum() / num_valid
    np.testing.assert_allclose(terms.value_loss, squared, rtol=1e-5)
    np.testing.assert_allclose(terms.entropy, entropy[kept].sum() / num_valid, rtol=1e-5)
