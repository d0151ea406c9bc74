"""The engine goes on by itself, and nothing that is outside of it can hold it up."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HANG, TINY, Command

from fastrl import checkpoint

pytestmark = pytest.mark.slow

CARTPOLE = ["--env", "envpool:CartPole-v1", "--run-dir", "run", "--seed", "1", *TINY]


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def pid_of(command: Command, name: str) -> int:
    """The process of a run that the kernel shows by this name."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        for pid in command.family():
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    return pid
            except OSError:
                continue
        time.sleep(0.02)
    raise AssertionError(f"no process {name}:\n{command.output}")


@pytest.mark.parametrize("name", ["fastrl-learn", "fastrl-infer"])
def test_the_engine_goes_on_from_its_checkpoint(tmp_path, name):
    train = Command(
        *CARTPOLE, "--total-steps", "60000", "--save-every", "1s", "--max-restarts", "1",
        cwd=tmp_path,
    )  # fmt: skip
    train.wait_for("saved ")
    os.kill(pid_of(train, name), signal.SIGKILL)
    train.wait_for("failed: ")
    train.wait_for("the engine is started again (1 of at most 1, --max-restarts)")
    train.wait_for("resumed after")
    assert train.finish() == 0, train.output
    assert train.wait_until_alone(2.0) == {}
    found = records(tmp_path / "run")
    assert any(record.get("resumed") for record in found)
    assert found[-1]["steps"] >= 60000
    for path in checkpoint.find_checkpoints(tmp_path / "run"):
        checkpoint.load(path)


def test_one_that_dies_before_its_first_checkpoint_begins_once_more(tmp_path):
    train = Command(
        *CARTPOLE, "--total-steps", "30000", "--max-restarts", "1", cwd=tmp_path
    )  # fmt: skip
    train.wait_for("all 2 workers step")
    os.kill(pid_of(train, "fastrl-learn"), signal.SIGKILL)
    assert train.finish() == 0, train.output
    assert "it begins once more" in train.output


def test_more_deaths_than_allowed_end_the_run_and_say_how_to_go_on(tmp_path):
    train = Command(*CARTPOLE, "--save-every", "1s", "--max-restarts", "1", cwd=tmp_path)
    for _ in range(2):
        train.wait_for("saved ")
        os.kill(pid_of(train, "fastrl-learn"), signal.SIGKILL)
        train.wait_for("failed: ")
    assert train.finish() == 1, train.output
    last = train.output.strip().splitlines()[-1]
    assert last.startswith("the run has ended; its newest checkpoint is ")
    assert last.endswith("fastrl-train --run-dir run --resume must")


def test_a_run_whose_folder_is_gone_is_not_begun_anew(tmp_path):
    train = Command(*CARTPOLE, "--save-every", "1s", "--max-restarts", "1", cwd=tmp_path)
    train.wait_for("saved ")
    shutil.rmtree(tmp_path / "run")
    os.kill(pid_of(train, "fastrl-learn"), signal.SIGKILL)
    assert train.finish() == 1, train.output
    assert "failed: the run could not go on: --run-dir run does not exist" in train.output
    assert not (tmp_path / "run").exists()


def test_a_stop_of_everyone_is_no_time_inside_a_step(tmp_path):
    """Ctrl-Z, and later fg."""
    train = Command(*CARTPOLE, "--env-timeout", "2", "--total-steps", "40000", cwd=tmp_path)
    train.wait_for("all 2 workers step")
    os.killpg(train.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(train.process.pid, signal.SIGCONT)
    assert train.finish() == 0, train.output
    assert "env-timeout" not in train.output


def test_output_that_nobody_reads_stops_nothing(tmp_path):
    """A pager that shows its first page, a terminal stopped by Ctrl-S."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    call = "import sys; from fastrl.cli import train_main; sys.exit(train_main())"
    train = subprocess.Popen(
        [sys.executable, "-c", call, *CARTPOLE, "--log-every", "0.1", "--total-steps", "60000"],
        cwd=tmp_path,
        stdout=writer,
    )
    os.close(writer)
    try:
        assert train.wait(HANG) == 0
    finally:
        os.close(reader)
        train.kill()
    said = (tmp_path / "run" / "log.txt").read_text()
    assert len(said) > 5000, "more than the pipe holds"
    assert "the learner has finished" in said


def test_memory_of_each_role_is_a_metric(tmp_path):
    train = Command(*CARTPOLE, "--total-steps", "30000", cwd=tmp_path)
    assert train.finish() == 0, train.output
    found = [record for record in records(tmp_path / "run") if "memory/learner_mb" in record]
    assert found
    for role in ("rollout", "inference", "learner", "main"):
        assert 5 < found[-1][f"memory/{role}_mb"] < 2000
