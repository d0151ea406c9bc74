"""A run that was killed and resumed gives the bits of one that was not (`--exact-resume`)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import Command

from fastrl import checkpoint

pytestmark = pytest.mark.slow

RUN = [
    "--env", "envpool:CartPole-v1", "--mode", "sync", "--seed", "3", "--exact-resume",
    "--workers", "2", "--envs-per-worker", "8", "--rollout-length", "8", "--minibatches", "2",
    "--save-every", "10u", "--log-every", "5u",
]  # fmt: skip
UPDATES = 60
LENGTH = ["--total-steps", str(UPDATES * 16 * 8 - 700)]  # rows that only reset are no steps


def end_of(run: Path) -> dict:
    (*_, last) = checkpoint.find_checkpoints(run)
    return checkpoint.load(last)


def returns(run: Path) -> dict[int, float]:
    """Episode returns by steps; what was recorded after a checkpoint and is undone is left out."""
    found: dict[int, float] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("resumed"):
            found = {steps: value for steps, value in found.items() if steps <= record["steps"]}
        elif "charts/episodic_return" in record:
            found[record["steps"]] = record["charts/episodic_return"]
    return found


def assert_same(one: dict, other: dict) -> None:
    assert one["updates"] == other["updates"] and one["steps"] == other["steps"]
    assert one["rows"] == other["rows"]
    assert one["model"].keys() == other["model"].keys()
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name
    for name in ("exp_avg", "exp_avg_sq", "steps"):
        assert torch.equal(one["optimizer"][name], other["optimizer"][name]), name
    assert one["present_rate"] == other["present_rate"]
    for key, moments in one["moments"].items():
        for name, value in moments.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["moments"][key][name]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train = Command(*RUN, *LENGTH, "--run-dir", "run", cwd=folder)
    assert train.finish() == 0, train.output
    return folder / "run"


def test_killed_at_any_moment_and_resumed_it_gives_the_same_bits(tmp_path, whole):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    print("seed", seed)
    run, kills = tmp_path / "run", 0
    for _ in range(20):
        train = Command(*RUN, *LENGTH, "--run-dir", "run", "--resume", "auto", cwd=tmp_path)
        if kills < 3:
            # In the middle of a save as well: one is due every few hundredths of a second.
            train.wait_for("saved ")
            time.sleep(rng.uniform(0.0, 0.3))  # which moment it hits does not matter
            train.process.send_signal(signal.SIGKILL)
            kills += train.finish() == -signal.SIGKILL  # else it was over already
            assert train.wait_until_alone(5.0) == {}
        elif train.finish() == 0:
            break
    assert kills == 3
    assert_same(end_of(run), end_of(whole))
    assert returns(run) == returns(whole)


def test_the_spread_over_processes_changes_nothing(tmp_path, whole):
    one = ["--workers", "1", "--envs-per-worker", "16"]
    train = Command(*RUN, *one, *LENGTH, "--run-dir", "run", cwd=tmp_path)
    assert train.finish() == 0, train.output
    assert_same(end_of(tmp_path / "run"), end_of(whole))


def test_without_it_a_resumed_run_goes_another_way(tmp_path, whole):
    """The check above can fail."""
    plain = [flag for flag in RUN if flag != "--exact-resume"]
    train = Command(*plain, "--total-steps", "4000", "--run-dir", "run", cwd=tmp_path)
    assert train.finish() == 0, train.output
    train = Command("--run-dir", "run", "--resume", "must", *LENGTH, cwd=tmp_path)
    assert train.finish() == 0, train.output
    assert returns(tmp_path / "run") != returns(whole)


def test_an_engine_that_failed_goes_on_from_the_schedule(tmp_path, whole):
    """Inference dies: what the learner has beyond its last scheduled checkpoint is not saved."""
    train = Command(*RUN, *LENGTH, "--run-dir", "run", "--max-restarts", "1", cwd=tmp_path)
    train.wait_for("saved ")
    for pid in train.family():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "fastrl-infer":
                os.kill(pid, signal.SIGKILL)
    assert train.finish() == 0, train.output
    assert "the engine is started again" in train.output
    assert "this run is another one" not in train.output
    assert_same(end_of(tmp_path / "run"), end_of(whole))
    assert returns(tmp_path / "run") == returns(whole)


def test_a_checkpoint_off_the_schedule_says_so(tmp_path):
    train = Command(*RUN, "--run-dir", "run", cwd=tmp_path)
    train.wait_for("saved ")
    train.process.send_signal(signal.SIGINT)
    assert train.finish() == 130, train.output
    updates = end_of(tmp_path / "run")["updates"]
    if updates % 10:
        assert "is not on the schedule of --exact-resume" in train.output
