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
    train = Command(*CARTPOLE, "--save-every", "1s", "--max-restarts", "1", cwd=tmp_path)
    train.wait_for("saved ")
    os.kill(pid_of(train, name), signal.SIGKILL)
    code = train.interrupt_after(
        "failed: ",
        "the engine is started again (1 of at most 1, --max-restarts)",
        "resumed after",
    )
    assert code == 130, train.output
    assert train.wait_until_alone(2.0) == {}
    found = records(tmp_path / "run")
    (resumed,) = [record for record in found if record.get("resumed")]
    assert found[-1]["steps"] > resumed["steps"] > 0
    for path in checkpoint.find_checkpoints(tmp_path / "run"):
        checkpoint.load(path)


def test_one_that_dies_before_its_first_checkpoint_begins_once_more(tmp_path):
    train = Command(*CARTPOLE, "--max-restarts", "1", cwd=tmp_path)
    train.wait_for("all 2 workers step")
    os.kill(pid_of(train, "fastrl-learn"), signal.SIGKILL)
    assert train.interrupt_after("it begins once more") == 130, train.output


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
    train = Command(*CARTPOLE, "--env-timeout", "2", cwd=tmp_path)
    train.wait_for("all 2 workers step")
    os.killpg(train.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(train.process.pid, signal.SIGCONT)
    # For longer than the timeout: a line every half second.
    assert train.interrupt_after(*["steps/s"] * 6) == 130, train.output
    assert "env-timeout" not in train.output


def test_output_that_nobody_reads_stops_nothing(tmp_path):
    """A pager that shows its first page, a terminal stopped by Ctrl-S."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    call = "import sys; from fastrl.cli import train_main; sys.exit(train_main())"
    train = subprocess.Popen(
        [sys.executable, "-c", call, *CARTPOLE, "--log-every", "0.1"],
        cwd=tmp_path,
        stdout=writer,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(writer)
    log = tmp_path / "run" / "log.txt"
    deadline = time.monotonic() + HANG
    try:
        while not (log.exists() and log.stat().st_size > 6000):  # more than the pipe holds
            assert train.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        train.send_signal(signal.SIGINT)
        assert train.wait(HANG) == 130
    finally:
        os.close(reader)
        train.kill()
    assert "steps: " in log.read_text().splitlines()[-1], "it came to its last line"


def test_a_hangup_under_nohup_stops_nothing(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does, and children inherit
    try:
        train = Command(*CARTPOLE, cwd=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    train.wait_for("all 2 workers step")
    os.killpg(train.process.pid, signal.SIGHUP)
    assert train.interrupt_after() == 130, train.output
    assert "SIGHUP" not in train.output and train.wait_until_alone(2.0) == {}


def test_64_workers_on_two_cores_are_slow_and_nothing_else(tmp_path):
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    flags = ["--run-dir", "run", "--seed", "1", "--workers", "64", "--envs-per-worker", "1"]
    train = Command(
        *("--env", "envpool:CartPole-v1", *flags, "--rollout-length", "8", "--log-every", "0.5"),
        cwd=tmp_path,
        cores=cores,
    )
    assert train.interrupt_after("all 64 workers step") == 130, train.output
    for word in ("replaced", "killed", "failed", "inside one step"):
        assert word not in train.output
    assert train.wait_until_alone(2.0) == {}


def test_a_temporary_folder_of_no_use_is_said(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    train = Command(*CARTPOLE, "--max-restarts", "3", cwd=tmp_path)
    assert train.finish() == 1, train.output
    assert "could not be started: AF_UNIX path too long. Its socket lies in the" in train.output
    assert "started again" not in train.output and train.wait_until_alone(2.0) == {}


def test_memory_of_each_role_is_a_metric(tmp_path):
    train = Command(*CARTPOLE, cwd=tmp_path)
    assert train.interrupt_after("steps/s") == 130, train.output
    found = [record for record in records(tmp_path / "run") if "memory/learner_mb" in record]
    assert found
    for role in ("rollout", "inference", "learner", "main"):
        assert 5 < found[-1][f"memory/{role}_mb"] < 2000
