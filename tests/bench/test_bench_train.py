"""`fastrl-bench train`: efficiency, and where the core time of a step goes."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
from made_records import records_of
from outputs import run_bench

from fastrl.bench import train
from fastrl.bench.command import engine_flags, plan
from fastrl.bench.costs import Arrangement
from fastrl.bench.engine_run import EngineFailed
from fastrl.bench.processes import RoleUse
from fastrl.bench.profiles import PROFILES, Profile
from fastrl.bench.records import learned_rate, sampled_rate
from fastrl.bench.train import check_same, judge
from fastrl.bench.train_result import Result
from fastrl.cli import bench_main
from fastrl.config import TrainConfig

SAMPLES = {
    Arrangement("env", 8): [300.0],
    Arrangement("inf", 64, "f32"): [100.0],
    Arrangement("train", 64, "f32"): [200.0],
}


def result_of(rate):
    records = records_of(rate, 16, 0.5, 30.0)
    cores = {"rollout": 0.8, "inference": 0.3, "learner": 0.6, "main": 0.1}
    return Result(
        machine={"cpu": "a processor", "cores": 2, "load": 0.0},
        command=["--profile", "pong"],
        flags=["--env", "two:two"],
        config=TrainConfig(env="two:two", epochs=2),
        frame_skip=4,
        samples=SAMPLES,
        learned=learned_rate(records),
        sampled=sampled_rate(records),
        roles={role: RoleUse(share, 3 * rate) for role, share in cores.items()},
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


def test_the_core_time_of_a_step_is_accounted_for():
    result = result_of(2000.0)
    rate = result.learned.mean
    assert result.work_of("rollout") == 300.0 and result.work_of("inference") == 100.0
    assert result.work_of("learner") == 400.0 and result.work_of("main") == 0.0
    assert result.cpu_of("rollout") == pytest.approx(0.8e6 / rate)
    assert result.idle_cores == pytest.approx(2 - 1.8)
    everything = sum(result.cpu_of(role) for role in result.roles) + result.idle_us
    assert everything == pytest.approx(result.step_us) == pytest.approx(2e6 / rate)
    assert result.switches_of("main") == pytest.approx(3.0, rel=0.05)
    assert sum(result.work_of(role) for role in result.roles) == pytest.approx(result.work_us)


def test_the_report_names_its_units_and_is_json():
    result = result_of(2000.0)
    text = "\n".join(result.report().lines())
    for words in ("one action of one", "frames = steps x 4", "µs", "efficiency", "2·c_train"):
        assert words in text
    for role in ("rollout", "inference", "learner", "main", "idle", "all cores"):
        assert f"\n  {role}" in text
    report = json.loads(json.dumps(result.report().as_json()))
    assert report["efficiency"] == pytest.approx(result.efficiency)
    assert report["learned_frames_per_second"] == pytest.approx(4 * result.learned.mean)
    assert report["costs"]["c_env"]["median"] == 300.0
    assert report["roles"]["learner"]["work_us_per_step"] == 400.0


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.slow
def test_profiles_and_their_sweeps_are_runs_that_the_engine_takes(name):
    profile = PROFILES[name]
    for arrangement in ((), *profile.sweep):
        config, spec, cores = plan(engine_flags([*profile.flags, *arrangement], []))
        assert config.epochs == 1 and config.env == spec.env_id and cores >= 1


def test_another_run_than_planned_is_noticed(tmp_path):
    planned = TrainConfig(env="two:two", seed=1, epochs=1)
    check_same(planned, dataclasses.replace(planned, run_dir=tmp_path, dtype="bf16"))
    with pytest.raises(EngineFailed, match="epochs"):
        check_same(planned, dataclasses.replace(planned, epochs=7))


def test_a_run_that_fails_is_told_and_ends_with_1(monkeypatch, capsys):
    def fail(options):
        raise EngineFailed("fastrl-train ended with code 3.")

    monkeypatch.setattr(train, "measure_all", fail)
    assert bench_main(["train"]) == 1
    assert "fastrl-bench: fastrl-train ended with code 3." in capsys.readouterr().err


@pytest.fixture
def tiny(monkeypatch):
    """A profile that is measured in a moment."""
    flags = ("--env", "envpool:CartPole-v1", "--workers", "2", "--envs-per-worker", "16")
    more = ("--rollout-length", "8", "--epochs", "1", "--minibatches", "1")
    monkeypatch.setitem(PROFILES, "cartpole", Profile((*flags, *more), (8,), (32,), ()))


QUICK = [
    *("train", "--profile", "cartpole", "--seconds", "2", "--warm-up", "0"),
    *("--cost-seconds", "0.05", "--repeats", "5"),  # the other tests' noise passes
]


@pytest.mark.slow
def test_from_the_command_line(tiny, tmp_path):
    values = run_bench(tmp_path, *QUICK, "--", "--hidden", "32", "--log-every", "0.1")
    assert 0 < values["efficiency"] <= 1
    assert values["config"]["hidden"] == [32]
    roles = values["roles"]
    assert set(roles) == {"rollout", "inference", "learner", "main"}
    for role in ("rollout", "inference", "learner"):
        assert roles[role]["cores"] > 0 and roles[role]["context_switches_per_step"] > 0
    used = sum(role["cores"] for role in roles.values()) + values["idle"]["cores"]
    assert used == pytest.approx(values["machine"]["cores"])
    work = values["work_us_per_step"] * values["learned_steps_per_second"]["mean"]
    share = work * 1e-6 / values["machine"]["cores"]
    assert values["efficiency"] == pytest.approx(share)
    assert all(len(sample["us_per_step"]) == 2 * 5 for sample in values["samples"])


def test_a_sweep_passes_over_what_fails_and_takes_the_fastest(monkeypatch, capsys):
    rates = {"8": 1000.0, "16": 3000.0, "32": 2000.0}
    sweep = tuple(("--envs-per-worker", envs) for envs in ("4", *rates, "64"))

    def run_engine(flags, warm_up, seconds):
        assert flags[-2:] == ["--epochs", "1"] and (warm_up, seconds) == (5.0, 15.0)
        envs = flags[flags.index("--envs-per-worker") + 1]
        if envs == "4":
            raise EngineFailed("fastrl-train ended with code 2.")
        # One that is too slow for a second batch.
        records = records_of(rates.get(envs, 0.0), 16, 0.5, 30.0)
        return SimpleNamespace(records=records)

    monkeypatch.setattr(train, "run_engine", run_engine)
    options = train.TrainOptions(sweep=True, flags=("--epochs", "1"))
    assert train.find_best(Profile((), (), (), sweep), options) == ("--envs-per-worker", "16")
    told = capsys.readouterr().out
    assert "ended with code 2" in told and "measure for longer" in told
    with pytest.raises(EngineFailed, match="No arrangement"):
        train.find_best(Profile((), (), (), sweep[:1]), options)
