"""A soak as a user runs it, shorter."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from commands import HANG

from fastrl.bench.engine_run import command_line


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
