"""On data of the policy's own, at lag 0, the ratio between learning and acting is 1.

The bodies of all processes run in turn, as with `--workers 0`; the ratios are those that the
learner's loss is computed from in the first minibatch of each batch.
"""

from __future__ import annotations

import everything
import numpy as np
import pytest
import torch
from engine import make_learner

from fastrl.algo import appo
from fastrl.algo.losses import importance_log_ratio
from fastrl.models.acting import ActingPolicy
from fastrl.shm import Arena
from fastrl.workers.inference import Inference
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.slot_queue import SlotQueue

BATCHES = 4


def first_minibatches(monkeypatch, spec, **options):
    """Ratios and ignored rows of each batch's first minibatch, and the batches' metrics."""
    shared, _, learner = make_learner(
        Arena.create(), spec, mode="sync", epochs=2, minibatches=2, rollout_length=8, **options
    )
    plan, taken = shared.plan, []
    plain = appo.appo_loss

    def loss(log_prob, entropy, value, behaviour, returns, weight, ignored, **keywords):
        ratio = importance_log_ratio(log_prob.detach(), behaviour, ignored).exp()
        taken.append((ratio, ignored.clone()))
        return plain(log_prob, entropy, value, behaviour, returns, weight, ignored, **keywords)

    monkeypatch.setattr(appo, "appo_loss", loss)
    E = plan.envs_per_group
    envs = [everything.EverythingEnv(spec, E, g * E) for g in range(plan.num_groups)]
    worker = RolloutWorker(shared, 0, envs)
    inference = Inference(shared, ActingPolicy(spec, plan.config))
    queue, groups, metrics = SlotQueue(shared), np.arange(plan.num_groups), []
    for group in groups.tolist():
        worker.begin(group)
    for _ in range(BATCHES):
        for _ in range(plan.rollout_length):
            inference.refresh()
            inference.run(groups)
            for group in groups.tolist():
                worker.step(group)
                queue.look_at(group)
        metrics.append(learner.train(*queue.take(plan.batch_slots)))
        for group in groups.tolist():
            worker.resume(group)
    per_batch = len(taken) // BATCHES
    assert per_batch == 4
    return taken[::per_batch], taken[per_batch - 1 :: per_batch], metrics


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("image", [False, True])
def test_the_ratio_is_1_in_f32(monkeypatch, masked, normalize, image):
    spec = everything.spec(image, masked)
    firsts, lasts, metrics = first_minibatches(
        monkeypatch, spec, normalize_obs=normalize, normalize_returns=normalize, dtype="f32"
    )
    for ratio, ignored in firsts:
        assert (~ignored).sum() > 10
        assert (ratio - 1.0).abs()[~ignored].max() < 1e-4
    # It is not so because nothing is learned.
    assert all((ratio - 1.0).abs()[~ignored].max() > 1e-3 for ratio, ignored in lasts)
    assert all(float(values["lag/ratio_error"]) < 1e-5 for values in metrics)


def test_in_bf16_the_median_distance_from_1_is_small_and_a_metric(monkeypatch):
    spec = everything.spec(image=True)
    firsts, _, metrics = first_minibatches(monkeypatch, spec, dtype="bf16", envs_per_worker=16)
    for (ratio, ignored), values in zip(firsts, metrics, strict=True):
        errors = (ratio - 1.0).abs()[~ignored]
        assert float(values["lag/ratio_error"]) == float(errors.median())
        assert errors.median() < 0.01


def test_the_metric_has_no_value_where_no_row_is_of_the_newest_policy(monkeypatch):
    from engine import Engine

    engine = Engine(envs_per_worker=4)
    for group in range(engine.plan.num_groups):
        engine.fill(group, version=0)
    metrics = engine.train(engine.queue.take(engine.plan.batch_slots)[0])
    assert torch.isnan(metrics["lag/ratio_error"])
