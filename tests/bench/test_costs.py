"""The c's: their arithmetic, what counts as a step, and the processes that measure them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastrl.bench import costs, team
from fastrl.bench.costs import (
    Arrangement,
    Cost,
    arrangements,
    cheapest,
    efficiency,
    measure,
    work_per_step,
)
from fastrl.bench.report import Spread
from fastrl.bench.synthetic_rows import spec_of
from fastrl.config import TrainConfig
from fastrl.envs.spaces import with_masks
from fastrl.errors import ConfigError
from fastrl.models.passes import forward_work, train_work
from fastrl.models.policy import ActorCritic

MEDIANS = {"env": 300.0, "inf": 100.0, "train": 200.0}
COSTS = {kind: Cost(Arrangement(kind, 8), Spread.of([us])) for kind, us in MEDIANS.items()}


def test_efficiency_is_the_share_of_the_cores_that_the_work_takes():
    # 2,000 steps/s of 800 µs keep 1.6 of 2 cores busy.
    assert efficiency(2000.0, 800.0, cores=2) == pytest.approx(0.8)
    assert efficiency(2000.0, 800.0, cores=4) == pytest.approx(0.4)


@pytest.mark.parametrize("epochs, expected", [(1, 600.0), (3, 1000.0)])
def test_work_counts_training_once_per_epoch(epochs, expected):
    assert work_per_step(COSTS, epochs) == pytest.approx(expected)


def test_the_cheapest_arrangement_of_each_kind_counts_by_its_median():
    small, large = Arrangement("inf", 64, "f32"), Arrangement("inf", 256, "bf16")
    other = Arrangement("env", 8)
    samples = {small: [1.0, 5.0, 6.0], large: [4.0, 3.0, 9.0], other: [7.0]}
    found = cheapest(samples)
    assert found["inf"] == Cost(large, Spread(4.0, 3.0, 9.0, 3))
    assert found["env"] == Cost(other, Spread(7.0, 7.0, 7.0, 1))
    assert set(found) == {"env", "inf"}


def test_arrangements_are_tried_once_each():
    tried = arrangements([8, 1, 8], [256, 64, 64], ["f32", "bf16"])
    assert len(tried) == len(set(tried)) == 2 + 2 * 2 * 2


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("observation", ["image", "vector"])
def test_network_work_is_counted_in_rows(observation, dtype):
    config, spec = TrainConfig(env="check:check"), spec_of(observation, "discrete")
    assert forward_work(config, spec, 7, dtype)() == 7
    assert train_work(config, spec, 7, dtype)() == 7


def test_a_network_whose_actions_have_masks_is_measured_with_them(monkeypatch):
    spec = spec_of("vector", "discrete")
    spec = replace(spec, action=with_masks(spec.action))
    assert spec.masks == {"action": 6}
    seen = []
    heads = ActorCritic.heads
    monkeypatch.setattr(
        ActorCritic, "heads", lambda self, f, m=None: seen.append(m) or heads(self, f, m)
    )
    assert train_work(TrainConfig(env="check:check"), spec, 5, "f32")() == 5
    assert [tuple(masks["action"].shape) for masks in seen] == [(5, 6)] * 2


def test_cores_and_threads_are_what_a_step_costs(monkeypatch):
    class Made:
        """A team whose every process does `threads` x 1000 steps per second."""

        def __init__(self, build, cores, threads, warm_up):
            self.copies, self.threads = cores // threads, threads

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def rates(self, at, seconds):
            return [team.Pace(1.0, 1000.0 * self.threads)] * self.copies

    monkeypatch.setattr(costs, "Team", Made)
    tried = [Arrangement("inf", 8, "f32", threads) for threads in (1, 2, 3)]
    samples = measure(TrainConfig(env="a:b"), spec_of("vector", "discrete"), tried, 4, 0.1, 2)
    # 3 threads on 4 cores are one process: the fourth core is nobody's cost.
    assert samples == {arrangement: [1000.0] * 2 for arrangement in tried}


@pytest.mark.slow
def test_every_core_measures_and_the_first_failure_is_told():
    spec = spec_of("vector", "discrete")
    config = TrainConfig(env="nothing:here", seed=1)
    forward = Arrangement("inf", 64, "f32")
    samples = measure(config, spec, [forward], cores=1, seconds=0.01, repeats=2)
    assert list(samples) == [forward]
    assert len(samples[forward]) == 2 and min(samples[forward]) > 0
    with pytest.raises(ConfigError, match="nothing"):
        measure(config, spec, [Arrangement("env", 4)], cores=1, seconds=0.01, repeats=1)
