"""Runs that go on from a checkpoint, and runs that begin with another's weights.

In this process (`workers=0`) where the claim is about state, from outside where it is about
processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from commands import TINY, Command
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_modes import assert_same_tensors

import fastrl
from fastrl import TrainConfig, checkpoint
from fastrl.config_file import load_config
from fastrl.envs import EnvOptions, EnvSpec, describe
from fastrl.errors import ConfigError
from fastrl.resolve import resolve
from fastrl.workers import run_folder
from fastrl.workers.run_folder import choose_run_folder

torch.set_num_threads(1)

SMALL = {
    "env": "envpool:CartPole-v1", "workers": 0, "envs_per_worker": 16, "rollout_length": 8,
    "seed": 4, "log_every": "2u", "save_every": "4u", "total_steps": 1400, "learning_rate": 1e-3,
}  # fmt: skip


def train(run: Path, **options) -> Path:
    assert fastrl.train(TrainConfig(**{**SMALL, "run_dir": run, **options})) == 0
    return run


def resume(run: Path, **options) -> Path:
    assert fastrl.train(TrainConfig(run_dir=run, resume="must", **options)) == 0
    return run


def copy_with(run: Path, path: Path, to: Path) -> Path:
    """The run as it was when its checkpoint `path` was the newest one."""
    (to / "checkpoints").mkdir(parents=True)
    shutil.copy(run / "config.toml", to)
    shutil.copy(run / "metrics.jsonl", to)
    shutil.copy(path, to / "checkpoints")
    return to


def newest(run: Path) -> dict:
    return checkpoint.load(checkpoint.find_checkpoints(run)[-1])


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "publish, schedule",
    [
        ("batch", "linear"),
        pytest.param("step", "kl", marks=pytest.mark.slow),
        pytest.param("batch", "kl", marks=pytest.mark.slow),
        pytest.param("step", "constant", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_has_the_state_of_the_uninterrupted_one(tmp_path, schedule, publish):
    run = train(tmp_path / "whole", lr_schedule=schedule, publish=publish)
    early = checkpoint.find_checkpoints(run)[0]
    then = checkpoint.load(early)
    assert 0 < then["updates"] == 4 < newest(run)["updates"]
    # Loaded, and saved again without a step: optimiser, schedule and normalisers, bit for bit.
    again = resume(copy_with(run, early, tmp_path / "again"), total_steps=1)
    assert_same_tensors(newest(again), then)
    # Gone on with: the same rate in the next update, and the rest of the steps.
    first, second = (
        resume(copy_with(run, early, tmp_path / name), log_every="1u") for name in ("a", "b")
    )
    assert_same_tensors(newest(first), newest(second))
    assert newest(first)["steps"] >= 1400
    if schedule != "kl":  # that one depends on what other environments show
        lines = records(first)
        mark = next(i for i, line in enumerate(lines) if line.get("resumed"))
        left = 1 - then["steps"] / 1400 if schedule == "linear" else 1.0
        assert lines[mark + 1]["charts/learning_rate"] == pytest.approx(1e-3 * left)
    assert newest(first)["rows"] == 8 * newest(first)["updates"]


def test_a_resumed_run_plays_other_episodes_and_draws_other_numbers(tmp_path):
    run = train(tmp_path / "run", total_steps=500)
    state = newest(run)
    state |= {"steps": 0, "updates": 0}
    zero = copy_with(run, checkpoint.find_checkpoints(run)[-1], tmp_path / "zero")
    for path in checkpoint.find_checkpoints(zero):
        path.unlink()
    # The same weights and the same counts of steps, once as if nothing had been played before.
    outcomes = []
    for name, rows in (("fresh", 0), ("later", state["rows"])):
        copy = tmp_path / name
        shutil.copytree(zero, copy)
        content = {k: v for k, v in state.items() if k not in ("format", "steps")}
        checkpoint.save(copy, 0, {**content, "rows": rows})
        outcomes.append(newest(resume(copy, total_steps=200)))
    with pytest.raises(AssertionError):
        assert_same_tensors(outcomes[0]["model"], outcomes[1]["model"])
    assert outcomes[1]["rows"] - state["rows"] == outcomes[0]["rows"]


def test_records_go_on_and_tensorboard_forgets_what_was_undone(tmp_path):
    run = train(tmp_path / "run", total_steps=1400)
    early, *later = checkpoint.find_checkpoints(run)
    for path in later:
        path.unlink()
    steps = checkpoint.load(early)["steps"]
    undone = {line["steps"] for line in records(run) if line["steps"] > steps}
    resume(run, log_every="3u")
    lines = records(run)
    mark = next(i for i, line in enumerate(lines) if line.get("resumed"))
    assert lines[mark]["steps"] == steps
    assert lines[mark - 1]["stopped_by"] == "total_steps"
    after = [line["steps"] for line in lines[mark + 1 :]]
    assert after == sorted(after) and after[0] > steps
    assert all(line["seconds"] >= lines[mark]["seconds"] for line in lines[mark + 1 :])
    events = EventAccumulator(str(run))
    events.Reload()
    shown = [event.step for event in events.Scalars("losses/entropy")]
    assert shown == sorted(shown)
    assert undone and not (undone - set(after)) & set(shown)


def test_a_new_run_begins_with_the_weights_and_normalisers_of_another(tmp_path):
    origin = newest(train(tmp_path / "origin", total_steps=600))
    # A rate of 0: what differs afterwards are statistics, and the value head that follows them.
    options = {"init_from": tmp_path / "origin", "learning_rate": 0.0, "seed": 9, "total_steps": 1}
    new = newest(train(tmp_path / "new", **options))
    assert new["updates"] == 1 and 0 < new["steps"] < origin["steps"]
    for name, tensor in new["model"].items():
        same = torch.equal(tensor, origin["model"][name])
        assert same != ("normalizer" in name or name.startswith("value_head")), name
    for statistics in ("moments", "return_moments"):
        found = new[statistics].get("obs", new[statistics])["num_rows"]
        before = origin[statistics].get("obs", origin[statistics])["num_rows"]
        assert found == before + new["steps"], "they go on"
    assert (load_config(tmp_path / "new" / "config.toml").init_from) == tmp_path / "origin"


def test_auto_begins_a_run_and_goes_on_with_it(tmp_path):
    run = tmp_path / "run"
    for total in (300, 600):
        train(run, resume="auto", total_steps=total)
        assert newest(run)["steps"] >= total
    assert load_config(run / "config.toml").resume == "never", "who resumes asks for it"
    for path in checkpoint.find_checkpoints(run):
        path.unlink()
    train(run, resume="auto", total_steps=300)
    assert 300 <= newest(run)["steps"] < 600, "without a checkpoint it begins once more"


def test_options_that_are_given_anew_count_and_the_others_stay(tmp_path):
    run = train(tmp_path / "run", total_steps=300, gamma=0.9, epochs=2, lr_schedule="kl")
    resume(run, total_steps=500, epochs=3, adam_eps=1e-3, learning_rate=1e-5, workers=0)
    config = load_config(run / "config.toml")
    assert (config.gamma, config.epochs, config.total_steps) == (0.9, 3, 500)
    assert config.adam_eps == 1e-3
    rate = newest(run)["present_rate"]
    assert 1e-6 < rate < 1e-4, "it began at the new rate"
    resume(run, total_steps=1)
    assert newest(run)["present_rate"] == rate, "and stays where it is"


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"publish": "step"}, {"max_policy_lag": 8 * 4 * 4}),
        ({"algorithm": "ppo"}, {"mode": "sync", "targets": "batch"}),
        ({"algorithm": "impala"}, {"targets": "minibatch"}),
        ({"rollout_length": 16}, {"batch_size": 256}),
        ({"envs_per_worker": 32}, {"batch_size": 256}),
        ({"workers": 2}, {"envs_per_worker": 8, "mode": "sync", "batch_size": 128}),
        ({"workers": 4, "envs_per_worker": 16}, {"workers": 4, "batch_size": 4 * 16 * 8}),
        ({"workers": 2, "mode": "async"}, {"mode": "async", "log_every": "5s"}),
        ({"learning_rate": 0.5}, {"max_policy_lag": 8, "batch_size": 128, "envs_per_worker": 16}),
    ],
)
def test_what_follows_from_a_changed_option_is_derived_anew(tmp_path, given, expected):
    run = train(tmp_path / "run", total_steps=1)
    spec = describe(SMALL["env"], EnvOptions())
    asked = TrainConfig(run_dir=run, resume="must", **given)
    config = resolve(choose_run_folder(asked, [*given, "resume"]).config, spec, 2, bf16_cpu=False)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    "first, given, expected",
    [
        ({}, {}, (0.01, 0.001, 0.02, 0.01, 600_000)),
        ({}, {"entropy_coef": 0.02}, (0.02, None, 0.02, 0.01, 600_000)),
        ({}, {"entropy_coef": 0.01}, (0.01, None, 0.02, 0.01, 600_000)),
        ({}, {"entropy_coef": 0.02, "entropy_final": 0.001}, (0.02, 0.001, 0.02, 0.01, 600_000)),
        (
            {},
            {"entropy_coef": 0.0, "barrier_coef": 0.0, "target_kl": 0.003},
            (0.0, None, 0.003, None, None),
        ),
        ({}, {"entropy_coef": 0.0, "target_kl": 0.003}, (0.0, None, 0.003, None, 600_000)),
        ({"entropy_final": 0.002}, {"entropy_coef": 0.02}, (0.02, 0.002, 0.02, 0.01, 600_000)),
        ({"entropy_final": 0.0}, {"target_kl": 0.01}, (0.01, 0.0, 0.01, None, 600_000)),
    ],
)
def test_a_resumed_run_sets_its_presets_fall_aside_as_a_new_one_does(
    tmp_path, first, given, expected
):
    run = train(tmp_path / "run", total_steps=1, preset="atari", **first)
    spec = describe(SMALL["env"], EnvOptions())
    asked = TrainConfig(run_dir=run, resume="must", **given)
    config = resolve(choose_run_folder(asked, [*given, "resume"]).config, spec, 2, bf16_cpu=False)
    names = ("entropy_coef", "entropy_final", "target_kl", "target_kl_final", "anneal_steps")
    assert tuple(getattr(config, name) for name in names) == expected


@pytest.mark.parametrize(
    "stored, given, groups",
    [
        ({"workers": 2, "envs_per_worker": 4}, {"mode": "async", "workers": 8}, 1),
        ({"workers": 8, "envs_per_worker": 1}, {"workers": 2}, 2),
        ({"workers": 2, "envs_per_worker": 4, "groups_per_worker": 4}, {"workers": 1}, 4),
    ],
)
def test_groups_are_derived_anew_unless_they_were_chosen(
    tmp_path, monkeypatch, stored, given, groups
):
    """On 2 cores; see `resolve.default_groups`."""
    monkeypatch.setattr(run_folder, "available_cores", lambda: 2)
    spec = EnvSpec("x:y", {}, {}, 1, None)
    config = resolve(TrainConfig(env="x:y", seed=1, preset="vector", **stored), spec, 2, False)
    changed = {"mode": "async", **given}
    found = run_folder._groups_anew(config, changed)
    assert found.get("groups_per_worker", config.groups_per_worker) == groups


def test_workers_that_do_not_divide_the_environments_are_refused(tmp_path):
    run = train(tmp_path / "run", total_steps=1)
    with pytest.raises(ConfigError, match="--workers 3 x --groups-per-worker 2 do not divide"):
        fastrl.train(TrainConfig(run_dir=run, resume="must", workers=3))


def test_a_job_may_make_the_folder_before_its_run(tmp_path):
    (tmp_path / "run").mkdir()
    run = train(tmp_path / "run", resume="auto", total_steps=300)
    assert newest(run)["steps"] >= 300
    with pytest.raises(ConfigError, match="exists already"):
        train(tmp_path / "run")


def test_time_goes_on_and_a_run_that_begins_once_more_says_so(tmp_path):
    run = train(tmp_path / "run", total_steps=300)
    for total in (600, 900):
        # The checkpoint's clock is that of the records: it was saved after the last of them but
        # the one that says what ended the run.
        *_, last, _end = records(run)
        # Records tell milliseconds, and this run takes some eighty of them.
        seconds = round(newest(run)["seconds"], 3)
        assert seconds >= last["seconds"]
        resume(run, total_steps=total)
        lines = records(run)
        mark = max(i for i, line in enumerate(lines) if line.get("resumed"))
        assert lines[mark]["seconds"] == pytest.approx(seconds, abs=1e-3)
        assert all(line["seconds"] >= seconds for line in lines[mark + 1 :])
    for path in checkpoint.find_checkpoints(run):
        path.unlink()
    train(run, resume="auto", total_steps=300)
    marks = [line["steps"] for line in records(run) if line.get("resumed")]
    assert len(marks) == 3 and marks[-1] == 0


def test_checkpoints_that_cannot_be_used_do_not_push_out_those_that_follow(tmp_path):
    run = train(tmp_path / "run", total_steps=1400)
    first, *later = checkpoint.find_checkpoints(run)
    for path in later:
        path.write_bytes(b"damaged")
    steps = checkpoint.load(first)["steps"]
    resume(run, total_steps=steps + 130)
    assert newest(run)["steps"] >= steps + 130
    assert len(list(run.glob("checkpoints/*.unusable"))) == len(later)


def test_the_lock_is_taken_before_a_checkpoint_is_read(tmp_path, monkeypatch):
    run = train(tmp_path / "run", total_steps=130)
    holder = os.open(run, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr("fastrl.workers.single.build", None)
    with pytest.raises(ConfigError, match="is going on in another process"):
        resume(run)
    os.close(holder)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"hidden": (32,)}, r"--hidden is \(32,\), but the run in .* has \(64, 64\)"),
        ({"env": "envpool:Acrobot-v1"}, "--env is envpool:Acrobot-v1, but the run in"),
        ({"seed": 5}, "--seed is 5, but the run in"),
        ({"max_episode_steps": 9}, "--max-episode-steps is 9, but"),
        ({"batch_size": 12}, "--batch-size"),
        ({"resume": "never"}, "go on with the run in it by --resume must"),
        ({"run_dir": "elsewhere"}, "elsewhere does not exist, so there is no run to resume"),
        ({"run_dir": None}, "--resume must needs --run-dir"),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path / "run", total_steps=130)
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*"))
    with pytest.raises(ConfigError, match=sentence):
        fastrl.train(TrainConfig(**{"run_dir": run, "resume": "must", **options}))
    assert sorted(path.stat().st_mtime_ns for path in run.rglob("*")) == before


def test_a_folder_that_holds_no_run_or_no_checkpoint_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").touch()
    for how in ("must", "auto"):
        with pytest.raises(ConfigError, match=r"it has no config\.toml"):
            train(empty, resume=how)
    run = train(tmp_path / "run", total_steps=130)
    for path in checkpoint.find_checkpoints(run):
        path.write_bytes(b"damaged")
    for how in ("must", "auto"):
        with pytest.raises(ConfigError, match="is not a readable checkpoint"):
            train(run, resume=how)
    for path in checkpoint.find_checkpoints(run):
        path.unlink()
    with pytest.raises(ConfigError, match="has no checkpoint yet; --resume auto begins"):
        resume(run)
    with pytest.raises(ConfigError, match=r"--init-from .* has no checkpoint yet"):
        train(tmp_path / "new", init_from=run)
    with pytest.raises(ConfigError, match=r"--init-from .* is not a run's folder"):
        train(tmp_path / "new", init_from=empty)


def test_a_network_of_another_shape_is_no_origin(tmp_path):
    run = train(tmp_path / "run", total_steps=130)
    with pytest.raises(ConfigError, match="does not fit the network of envpool:CartPole-v1"):
        train(tmp_path / "new", init_from=run, hidden=(32, 32))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_killed_run_goes_on_from_the_command_line(tmp_path):
    arguments = ["--env", "envpool:CartPole-v1", "--run-dir", "run", "--save-every", "20u"]
    train = Command(*arguments, *TINY, cwd=tmp_path)
    train.wait_for("saved")
    second = Command("--run-dir", "run", "--resume", "must", cwd=tmp_path)
    assert second.finish() == 2
    assert "is going on in another process" in second.output
    train.process.kill()
    train.finish()
    assert train.wait_until_alone(5.0) == {}
    steps = newest(tmp_path / "run")["steps"]
    again = Command(
        "--run-dir", "run", "--resume", "auto", "--total-steps", str(steps + 5000),
        "--workers", "1", cwd=tmp_path,
    )  # fmt: skip
    assert again.finish() == 0, again.output
    assert f"resumed after {steps:,} steps" in again.output
    state = newest(tmp_path / "run")
    assert steps + 5000 <= state["steps"] < steps + 5000 + 4096
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.workers, config.envs_per_worker) == (1, 16), "the same environments, one worker"
    assert again.wait_until_alone(2.0) == {}
