"""A soak as a user runs it, shorter."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from commands import HANG

from fastrl.bench.engine_run import command_line
from fastrl.bench.family import look
from fastrl.bench.processes import held


@pytest.mark.slow
def test_a_minute_of_training_leaves_size_and_files_as_they_are(tmp_path):
    out = tmp_path / "out.json"
    # On one core, where the learner takes no second thread: its heap is a step of 5 %, at any time.
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        command_line(
            *("fastrl-bench", "soak", "--profile", "cartpole", "--seconds", "60"),
            *("--json", str(out), "--plot", str(tmp_path / "out.png")),
        ),
        capture_output=True,
        text=True,
        timeout=5 * HANG,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    said = done.stdout + done.stderr
    assert out.exists(), said
    verdicts = {one["name"]: one for one in json.loads(out.read_text())["verdicts"]}
    # Told, not judged: a test says nothing about speed, and others may share this machine.
    rate = verdicts.pop("efficiency")
    assert "steps/s of" in rate["found"], said
    assert all(one["kept"] for one in verdicts.values()), said
    assert done.returncode == (0 if rate["kept"] else 1), said
    assert len(verdicts) == 9


@pytest.mark.slow
def test_a_soak_that_is_ended_ends_its_run():
    # Not tmp_path: a socket of the run lies in there, whose path must be short.
    with tempfile.TemporaryDirectory() as folder:
        soak = subprocess.Popen(
            command_line("fastrl-bench", "soak", "--profile", "cartpole", "--seconds", "60"),
            stdout=subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": folder},
        )
        try:
            deadline = time.monotonic() + HANG
            while not list(Path(folder).glob("fastrl-soak-*/run/metrics.jsonl")):
                assert time.monotonic() < deadline and soak.poll() is None
                time.sleep(0.1)
            family = held(soak.pid)
            assert {"learner", "inference", "rollout"} <= {one.role for one in family.values()}
            soak.terminate()
            soak.terminate()  # as timeout(1) does, to the process and to its group
            assert soak.wait(HANG) == 143
            deadline = time.monotonic() + 5
            while (left := [pid for pid in family if look(pid)]) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not left and not list(Path(folder).iterdir())
        finally:
            soak.kill()
            soak.wait()
