"""A run of `fastrl-bench chaos` as it is followed: small programs in the place of fastrl-train."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from fastrl.bench import chaos_run
from fastrl.bench.chaos_judge import judge
from fastrl.bench.chaos_plan import Fault, draw
from fastrl.bench.chaos_run import check_checkpoints, run_plan
from fastrl.checkpoint import save

PLAN = dataclasses.replace(draw(1, 9), restarts=0, worker_restarts=None, faults=(), resumes=False)
BEGINS = """
import json, os, pathlib, subprocess, sys, time
def says(text): print(text, flush=True)
def record(steps):
    pathlib.Path("run").mkdir(exist_ok=True)
    with open("run/metrics.jsonl", "a") as file: file.write(json.dumps({"steps": steps}) + chr(10))
says("all 3 workers step after 0.1 s")
"""


@pytest.fixture
def instead(monkeypatch, tmp_path):
    """Have a text run in the place of fastrl-train; returns what becomes of it."""

    def run(text, *faults, plan=PLAN):
        script = tmp_path / "script.py"
        script.write_text(BEGINS + text)
        monkeypatch.setattr(
            chaos_run, "command_line", lambda *words: [sys.executable, str(script), *words]
        )
        return run_plan(dataclasses.replace(plan, faults=faults), tmp_path)

    return run


def test_what_it_said_and_how_it_ended(instead):
    found = instead("record(5); says('the learner has finished'); sys.exit(3)")
    assert [line.text for line in found.lines][-1] == "the learner has finished"
    assert (found.code, found.hang, found.left, found.checkpoints) == (3, None, [], 0)
    assert found.command[:3] == ["fastrl-train", "--run-dir", "run"]
    assert "ended with exit code 3; expected 0" in judge(found)


def test_a_hang_is_found_and_ended(instead, monkeypatch):
    monkeypatch.setattr(chaos_run, "HANG_SECONDS", 0.5)
    # Progress lines without steps are none; neither are records of the same step.
    text = """
while True:
    record(7); says("  0:04        7 steps     0 steps/s"); time.sleep(0.05)
"""
    found = instead(text)
    assert found.code is None and "no progress for" in found.hang and "after 7 steps" in found.hang
    assert "python" in found.hang, "it says what its processes were doing"
    assert judge(found)[0].startswith("hang: ") and found.left == []


def test_steps_are_progress(instead, monkeypatch):
    monkeypatch.setattr(chaos_run, "HANG_SECONDS", 1.0)
    text = """
for step in range(20):
    record(step); time.sleep(0.1)
says("the learner has finished")
"""
    assert judge(instead(text)) == []


def test_a_start_may_take_longer_than_a_step(instead, monkeypatch, tmp_path):
    monkeypatch.setattr(chaos_run, "HANG_SECONDS", 0.3)
    text = "says('the engine is started again'); time.sleep(1.0); says('the learner has finished')"
    assert instead(text).hang is None


def test_a_process_that_lives_on_is_found_and_ended(instead):
    found = instead("subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)")
    assert found.code == 0 and len(found.left) == 1 and "sleep 60" in found.left[0]
    assert found.alone - found.ended >= chaos_run.ALONE_SECONDS


def test_signals_come_at_their_moments(instead, tmp_path):
    text = """
os.makedirs("run/checkpoints")
time.sleep(0.5)
open("run/checkpoints/.step_1.pt.5.partial", "w").close()
time.sleep(60)
"""
    faults = [
        Fault("main", "SIGSTOP", "training", 0.1, pause=0.2),
        Fault("main", "SIGKILL", "save", 0.0),
    ]
    found = instead(text, *faults)
    pause, kill = found.delivered
    assert [one.fault for one in found.delivered] == faults
    began = found.lines[0].at
    assert 0.1 <= pause.at - began < 0.4 and pause.training
    assert kill.at - began >= 0.5 and found.code == -9
    assert found.ended < 30


def test_a_run_that_was_killed_is_gone_on_with(instead, tmp_path):
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 1, {})
    text = """
if "--resume" in sys.argv:
    says("the learner has finished")
else:
    record(1); time.sleep(60)
"""
    kill = Fault("main", "SIGKILL", "training", 0.1)
    found = instead(text, kill, plan=dataclasses.replace(PLAN, resumes=True))
    assert found.code == -9 and found.checkpoints == 1
    assert found.resumed is not None and found.resumed.code == 0
    assert found.resumed.command[-2:] == ["--resume", "must"]
    assert judge(found) == []


def test_a_damaged_checkpoint_is_found(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / ".step_000000000001.pt.5.partial").write_bytes(b"half")
    assert check_checkpoints(tmp_path) == (0, [])
    (folder / "step_000000000001.pt").write_bytes(b"half")
    count, wrong = check_checkpoints(tmp_path)
    assert count == 1 and "is not a readable checkpoint" in wrong[0]
