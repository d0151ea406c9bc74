import dataclasses
import json

import numpy as np
import pytest
from budget import (
    Arrangement,
    Cost,
    arrangements,
    cheapest,
    efficiency,
    env_work,
    forward_work,
    measure,
    train_work,
    work_per_step,
)
from run_records import learned_rate, mean_of, read_records, sampled_rate, steady
from synthetic_rows import OBSERVATIONS, spec_of
from throughput import PROFILES, Result, check_same, judge, main, plan
from timed_run import EngineFailed, run_engine

from fastrl.config import TrainConfig
from fastrl.envs import ActionSpec, EnvSpec, FunctionEnvs, register_family
from fastrl.errors import ConfigError


def cost(kind, median):
    return Cost(Arrangement(kind, 8, "" if kind == "env" else "f32"), median, median, median)


COSTS = {"env": cost("env", 300.0), "inf": cost("inf", 100.0), "train": cost("train", 200.0)}


def records_of(rate, batch, interval, seconds, start=10.0, phase=0.0):
    """A run that learns `rate` steps/s from second `start` on, counted one batch at a time."""
    records = []
    for at in np.arange(interval, start + seconds, interval):
        learned = max(0.0, (at - start) * rate + phase * batch)
        record = {"steps": int(learned // batch) * batch, "seconds": float(at)}
        records.append(record | {"charts/SPS": float(rate)})
    return records


class EndsEverySecondStep:
    """An episode has two steps; the row after it is a reset row."""

    def __init__(self, num_envs):
        self.spec = EnvSpec(
            "two", {"obs": OBSERVATIONS["vector"]}, {"action": _MOVE}, 1, reward_threshold=None
        )
        self.num_envs = num_envs
        self.rows = 0

    def reset(self, obs, stagger_steps=None, rngs=None):
        pass

    def step(self, action, out):
        self.rows += 1
        out.terminated[...] = self.rows % 3 == 2
        out.truncated[...] = False

    def close(self):
        pass


_MOVE = ActionSpec("discrete", (), "int32", "int32", n=2)


# --- the budget -----------------------------------------------------------------------------------


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
    costs = cheapest(samples)
    assert costs["inf"] == Cost(large, 4.0, 3.0, 9.0)
    assert costs["env"] == Cost(other, 7.0, 7.0, 7.0)
    assert set(costs) == {"env", "inf"}


def test_arrangements_are_tried_once_each():
    tried = arrangements([8, 1, 8], [256, 64, 64], ["f32", "bf16"])
    assert len(tried) == len(set(tried)) == 2 + 2 * 2 * 2


def test_only_steps_that_had_effect_are_counted():
    two = FunctionEnvs(
        lambda env_id, options: EndsEverySecondStep(1).spec,
        lambda env_id, options, num_envs, first, seed: EndsEverySecondStep(num_envs),
    )
    register_family("two", two)
    spec = EndsEverySecondStep(1).spec
    work = env_work(TrainConfig(env="two:two"), spec, num_envs=5, seed=1)
    assert [work() for _ in range(7)] == [5, 5, 0, 5, 5, 0, 5]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("observation", ["image", "vector"])
def test_network_work_is_counted_in_rows(observation, dtype):
    config, spec = TrainConfig(env="check:check"), spec_of(observation, "discrete")
    assert forward_work(config, spec, 7, dtype)() == 7
    assert train_work(config, spec, 7, dtype)() == 7


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


# --- records --------------------------------------------------------------------------------------


def test_a_line_that_is_being_written_is_no_record(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"steps": 1, "seconds": 2.0}\n{"steps": 2, "sec')
    assert read_records(tmp_path) == [{"steps": 1, "seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="no record"):
        read_records(tmp_path)
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        read_records(tmp_path / "none")


def test_start_warm_up_and_end_are_dropped():
    records = [{"steps": max(0, second - 4), "seconds": float(second)} for second in range(20)]
    records[-1]["stopped_by"] = "SIGINT"
    # The first learned step is seen at second 5.
    assert [r["seconds"] for r in steady(records, 3.0, 4.0)] == [8.0, 9.0, 10.0, 11.0, 12.0]
    assert steady(records, 3.0, 100.0)[-1]["seconds"] == 18.0
    assert steady(records[:5], 3.0, 4.0) == []


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("batch", [16, 4096, 16384])
def test_batches_that_are_rarer_than_records_do_not_bend_the_rate(batch, phase):
    interval, seconds = 0.5, 60.0
    records = records_of(2000.0, batch, interval, seconds, phase=phase)
    measured = steady(records, 5.0, seconds)
    rate = learned_rate(measured)
    batches = {record["steps"] for record in measured}
    # Each end of the time is off by less than one interval; at most two batches lie outside it.
    length = seconds - 5.0 - 2 * batch / 2000.0 - 2 * interval
    assert rate.mean == pytest.approx(2000.0, rel=interval / length)
    assert rate.low <= rate.median <= rate.high
    assert len(batches) > rate.parts >= 2


def test_a_rate_takes_two_batches():
    records = records_of(100.0, 4096, 0.5, 60.0)
    with pytest.raises(ValueError, match="longer"):
        learned_rate(steady(records, 5.0, 10.0))
    with pytest.raises(ValueError, match="longer"):
        sampled_rate(records[:1])


def test_sampled_steps_are_weighted_by_time():
    records = [
        {"steps": 0, "seconds": 0.0, "charts/SPS": 77.0},
        {"steps": 0, "seconds": 1.0, "charts/SPS": 100.0},
        {"steps": 0, "seconds": 4.0, "charts/SPS": 300.0},
    ]
    rate = sampled_rate(records)
    assert rate.mean == pytest.approx((1 * 100 + 3 * 300) / 4)
    assert (rate.low, rate.high, rate.parts) == (100.0, 300.0, 2)


def test_a_metric_that_is_missing_has_no_mean():
    records = [{"lag/mean": 1.0}, {}, {"lag/mean": 2.0}]
    assert mean_of(records, "lag/mean") == 1.5
    assert mean_of(records, "wait/learner") is None


# --- the report -----------------------------------------------------------------------------------


def result_of(rate):
    records = records_of(rate, 16, 0.5, 30.0)
    return Result(
        machine={"cpu": "a processor", "cores": 2, "load_before": 0.0},
        versions={"fastrl": "1"},
        flags=["--env", "two:two"],
        config=TrainConfig(env="two:two", epochs=2),
        frame_skip=4,
        samples={c.arrangement: [c.median] for c in COSTS.values()},
        costs=COSTS,
        learned=learned_rate(records),
        sampled=sampled_rate(records),
        means={"lag/mean": 1.0},
    )


@pytest.mark.parametrize("rate, code", [(2000.0, 0), (3000.0, 1)])
def test_an_efficiency_over_one_fails(rate, code, capsys):
    result = result_of(rate)
    # 800 µs a step on 2 cores: 2,500 steps/s at most.
    assert result.limit == pytest.approx(2500.0)
    assert result.efficiency == pytest.approx(rate / 2500.0, rel=0.05)
    assert judge(result) == code
    assert ("the c's are wrong" in capsys.readouterr().err) == bool(code)


def test_the_report_names_its_units_and_is_json():
    result = result_of(2000.0)
    text = "\n".join(result.lines())
    for words in ("a step is", "frames = steps x 4", "µs", "efficiency", "2·c_train"):
        assert words in text
    report = json.loads(json.dumps(result.as_json()))
    assert report["efficiency"] == pytest.approx(result.efficiency)
    assert report["learned_frames_per_second"] == pytest.approx(4 * result.learned.mean)
    assert report["costs"]["c_env"]["median"] == 300.0


# --- the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.slow
def test_profiles_and_their_sweeps_are_runs_that_the_engine_takes(name):
    profile = PROFILES[name]
    for arrangement in ((), *profile.sweep):
        config, spec, cores = plan([*profile.flags, *arrangement, "--seed", "1"])
        assert config.epochs == 1 and config.env == spec.env_id and cores >= 1


def test_runs_that_cannot_be_measured_are_refused(capsys):
    assert main(["cartpole", "--", "--run-dir", "here"]) == 2
    assert "--run-dir" in capsys.readouterr().err
    assert main(["cartpole", "--", "--device", "cuda"]) == 2
    assert "--device" in capsys.readouterr().err


def test_another_run_than_planned_is_noticed(tmp_path):
    planned = TrainConfig(env="two:two", seed=1)
    check_same(planned, dataclasses.replace(planned, run_dir=tmp_path))
    with pytest.raises(EngineFailed, match="epochs"):
        check_same(planned, dataclasses.replace(planned, epochs=7))


@pytest.mark.slow
def test_the_end_of_a_run_that_fails_is_told():
    with pytest.raises(EngineFailed, match=r"code 2(.|\n)*There is no environment"):
        run_engine(["--env", "envpool:Nothing-v9"], warm_up=0.0, seconds=1.0)
