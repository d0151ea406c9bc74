"""Inference writes into the row that each group waits in, and nowhere else."""

from __future__ import annotations

import dataclasses

import counting
import numpy as np
import pytest
import torch
from engine import make_plan

from fastrl.models.acting import ActingPolicy
from fastrl.models.config import ModelConfig
from fastrl.models.flat import FlatParameters
from fastrl.models.policy import ActorCritic
from fastrl.monitor.accounts import ROW_SHIFT
from fastrl.shm import Arena
from fastrl.workers.inference import Inference, _patience
from fastrl.workers.plan import Start
from fastrl.workers.shared import Shared


@pytest.fixture
def engine():
    arena = Arena.create()
    spec = counting.spec("count:x")
    torch.manual_seed(0)
    network = ActorCritic(spec, ModelConfig(normalize_obs=True, normalize_returns=True))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-0.5, 0.5)
    flat = FlatParameters(network)
    plan = make_plan(arena, spec, flat.num_floats, workers=2)
    shared = Shared(plan, arena)
    rng = np.random.default_rng(0)
    shared.obs["obs"][...] = rng.normal(size=shared.obs["obs"].shape)
    for array in (shared.log_prob, shared.value):
        array[...] = np.nan
    shared.version[...] = -1
    shared.action["action"][...] = -1
    # Every group waits in another slot and row.
    for group in range(plan.num_groups):
        shared.filled.store(group, group + 1)
        shared.progress.store(group, (3 + group) << ROW_SHIFT | 1000 * group)
    return shared, network, flat, Inference(shared, ActingPolicy(plan.spec, plan.config))


def place(shared: Shared, group: int) -> tuple[int, int]:
    return group * 3 + (group + 1) % 3, 3 + group


def test_rows_get_what_the_network_says_about_their_observation(engine):
    shared, network, flat, inference = engine
    shared.weights().publish(flat.data.detach().numpy())
    assert inference.refresh() == 1
    inference.run(np.array([3, 0, 2]))
    for group in (3, 0, 2):
        slot, row = place(shared, group)
        obs = torch.from_numpy(shared.obs["obs"][slot, row])
        action = torch.from_numpy(shared.action["action"][slot, row])
        with torch.no_grad():
            output = network({"obs": obs})
            log_prob, _ = network.evaluate(output, {"action": action})
        np.testing.assert_allclose(shared.log_prob[slot, row], log_prob, rtol=1e-5)
        np.testing.assert_allclose(shared.value[slot, row], output.value, rtol=1e-5, atol=1e-6)
        assert (shared.version[slot, row] == 1).all()
    written = ~np.isnan(shared.value)
    assert written.sum() == 3 * shared.plan.envs_per_group
    assert (written == ~np.isnan(shared.log_prob)).all()
    assert (written == (shared.version == 1)).all()
    assert (written == (shared.action["action"] >= 0)).all()


def test_new_weights_are_used_and_named_once_they_are_published(engine):
    shared, _, flat, inference = engine
    weights = shared.weights()
    weights.publish(np.zeros(flat.num_floats, np.float32))
    inference.refresh()
    inference.run(np.array([0]))
    slot, row = place(shared, 0)
    np.testing.assert_allclose(shared.log_prob[slot, row], -np.log(counting.NUM_ACTIONS), rtol=1e-5)
    weights.publish(flat.data.detach().numpy())
    assert inference.refresh() == 2
    inference.run(np.array([0]))
    assert (shared.version[slot, row] == 2).all()
    assert not np.allclose(shared.log_prob[slot, row], -np.log(counting.NUM_ACTIONS))


def test_actions_do_not_depend_on_the_batch_that_a_group_is_in(engine):
    shared, _, flat, inference = engine
    shared.weights().publish(flat.data.detach().numpy())
    inference.refresh()
    inference.run(np.array([0, 1, 2, 3]))
    together = shared.action["action"].copy()
    again = Inference(shared, ActingPolicy(shared.plan.spec, shared.plan.config))
    again.refresh()
    for group in (2, 0, 3, 1):
        again.run(np.array([group]))
    np.testing.assert_array_equal(shared.action["action"], together)


def test_noise_is_keyed_by_the_row_and_by_those_before_a_resume(engine):
    shared, _, flat, inference = engine
    shared.weights().publish(flat.data.detach().numpy())
    inference.refresh()
    slot, row = place(shared, 0)
    drawn = []
    for later in range(3):
        shared.obs["obs"][slot, row + later] = shared.obs["obs"][slot, row]
        shared.progress.store(0, (row + later) << ROW_SHIFT)
        inference.run(np.array([0]))
        drawn.append(shared.action["action"][slot, row + later].tolist())
    assert len(set(map(tuple, drawn))) > 1, "new noise in each row"
    resumed = dataclasses.replace(shared.plan, start=Start(rows=2))
    shared.plan = resumed
    again = Inference(shared, ActingPolicy(resumed.spec, resumed.config))
    again.refresh()
    shared.progress.store(0, row << ROW_SHIFT)
    again.run(np.array([0]))
    assert shared.action["action"][slot, row].tolist() == drawn[2], "it goes on where it was"


@pytest.mark.parametrize(
    "options, expected",
    [({"workers": 2}, (2, 0.010)), ({"workers": 2, "inference_wait": 3.0}, (2, 0.003)),
     ({"workers": 2, "inference_wait": 0.0}, (1, 0.0))],
)  # fmt: skip
def test_patience_is_a_third_of_the_groups_where_processes_outnumber_cores(options, expected):
    assert _patience(make_plan(Arena.create(), counting.spec("count:x"), **options)) == expected
