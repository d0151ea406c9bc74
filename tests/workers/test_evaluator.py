"""The evaluator: a best checkpoint that cannot be written, and one that hangs inside a step."""

from __future__ import annotations

import errno
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastrl import checkpoint, evaluate
from fastrl.shm import CrashReport
from fastrl.workers import evaluator as module
from fastrl.workers.children import Child
from fastrl.workers.evaluator import Evaluator, EvaluatorOfMain, EvaluatorStart
from fastrl.workers.reports import EvaluationRequest


class Played:
    """An evaluation that is over."""

    def __init__(self, mean: float) -> None:
        self.mean = mean
        self.lengths = np.ones(4)

    def margin(self) -> float:
        return 1.0


def test_a_full_disk_at_best_pt_is_told_and_the_next_one_is_tried(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    means = iter([5.0, 3.0])
    monkeypatch.setattr(evaluate, "evaluate", lambda *args, **more: Played(next(means)))
    written = checkpoint.write
    full = True

    def write(path: Path, steps: int, state: dict) -> None:
        if full and path == checkpoint.best_path(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, steps, state)

    monkeypatch.setattr(checkpoint, "write", write)
    playing = Evaluator(tmp_path, seed=1, episodes=4, keep_best=True)
    results = []
    for steps in (100, 200):
        path = checkpoint.evaluation_path(tmp_path, steps)
        written(path, steps, {"steps": steps})
        results.append(playing.play(EvaluationRequest(str(path), steps)))
        assert not path.exists()
        full = False
    first, second = results
    assert first.mean == 5.0 and not first.is_best
    assert "best.pt could not be written" in first.problem and "No space" in first.problem
    # What is not on the disk is not the best one: 3 is better than nothing.
    assert second.is_best and second.problem is None
    best = checkpoint.load(checkpoint.best_path(tmp_path))
    assert best["score"] == 3.0 and best["steps"] == 200


def hang(pipe) -> None:
    """An evaluator that takes its first step, and no other."""
    pipe.recv()
    pipe.recv()
    pipe.send(("alive", None))
    time.sleep(60)


class Launcher:
    """Launches evaluators that hang."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.discharged = 0

    def launch_evaluator(self) -> Child:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=hang, args=(theirs,))
        process.start()
        theirs.close()
        self.children.append(Child("evaluator", process, ours, CrashReport.create()))
        return self.children[-1]

    def discharge(self, child: Child) -> None:
        self.discharged += 1
        child.close()

    def end(self) -> None:
        for child in self.children[self.discharged :]:
            child.kill()
            child.has_ended(10.0)
            child.close()


@pytest.fixture
def launcher():
    one = Launcher()
    yield one
    one.end()


def attended(tmp_path, launcher, env_timeout: float | None, until) -> SimpleNamespace:
    """What main says of an evaluator that hangs, until a condition holds."""
    seen = SimpleNamespace(said=[], done=[])
    start = EvaluatorStart(tmp_path, 1, 4, False, env_timeout, 0, b"", b"")
    of_main = EvaluatorOfMain(launcher, start, seen.said.append, seen.done.append)
    path = tmp_path / "evaluate_100.pt"
    path.touch()
    of_main.take(EvaluationRequest(str(path), 100))
    deadline = time.monotonic() + 20.0
    while not until(seen):
        assert time.monotonic() < deadline, seen
        assert of_main.attend() is None
        time.sleep(0.01)
    assert of_main.busy == (not seen.done)
    of_main.end()
    assert not path.exists()
    return seen


def test_an_evaluator_that_hangs_is_named_with_its_age(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(module, "SLOW_SECONDS", 1.0)
    seen = attended(tmp_path, launcher, None, lambda seen: len(seen.said) == 2)
    assert seen.said[0] == "the evaluator has been inside one step of its environments for 1 s"
    assert seen.said[1] == "the evaluator has been inside one step of its environments for 2 s"
    assert not seen.done


def test_an_evaluator_that_hangs_longer_than_env_timeout_loses_one_evaluation(tmp_path, launcher):
    seen = attended(tmp_path, launcher, 0.5, lambda seen: seen.done)
    assert seen.done == [None]
    assert "inside one step of its environments (--env-timeout 0.5)" in seen.said[0]
    assert "The evaluation after 100 steps is lost." in seen.said[0]
