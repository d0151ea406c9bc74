"""One training of `fastrl-bench learn`: the command until its goal, then `fastrl-eval`."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastrl.bench.curves import Curve, curve_of
from fastrl.bench.engine_run import STOP_SECONDS, EngineFailed, command_line
from fastrl.bench.records import read_records
from fastrl.bench.tasks import Task

EVALUATION_EPISODES = 100
GOAL = re.compile(r"the mean return of the last 100 episodes is (-?[\d.]+), the goal")
STEP = re.compile(r"workers? steps? after ([\d.]+) s")
EVALUATION_SECONDS = 1800.0


@dataclass(frozen=True)
class Trained:
    """What one seed did."""

    seed: int
    command: str
    curve: Curve
    """With ``seconds`` since the command's start."""
    goal_seconds: float | None
    """From the command's start to the line that says that the goal is reached; None: it was
    not."""
    steps: int
    stopped_by: str
    evaluation: dict[str, Any]
    """What `fastrl-eval --json` says of the final checkpoint."""
    made: dict[str, Any] | None = None
    """The command of `fastrl-bench` that made it, its date, machine and versions, where that is not
    the present one."""

    def reaches(self, task: Task) -> bool:
        """Whether it kept all that the task asks for."""
        if task.threshold is None:
            return self.steps >= task.max_steps
        # Where the goal is more than the threshold, all the time to the goal counts.
        in_time = self.goal_seconds is not None and self.goal_seconds <= task.seconds
        return in_time and self.evaluation["mean"] >= task.least_evaluation


def training_of(task: Task, seed: int, flags: tuple[str, ...]) -> list[str]:
    """What says what is trained, and until when: flags of `fastrl-train`."""
    return [
        *("--env", task.env, "--seed", str(seed)),
        *([] if task.stop_at is None else ["--stop-at-return", f"{task.stop_at:g}"]),
        *("--total-steps", str(task.max_steps)),
        *task.flags,
        *flags,
    ]


def command_of(training: Sequence[str]) -> str:
    """What of a command is shown and kept."""
    return " ".join(["fastrl-train", *training])


def train_task(task: Task, seed: int, patience: float, flags: tuple[str, ...]) -> Trained:
    """Train one seed to its goal or last step, or until it has had `patience` times its time, and
    evaluate it.

    Raises EngineFailed where a command fails.
    """
    training = training_of(task, seed, flags)
    with tempfile.TemporaryDirectory(prefix="fastrl-learn-") as folder:
        run = Path(folder) / "run"
        own = ["--run-dir", str(run), "--log-every", "1"]
        watch = _Watch(command_line("fastrl-train", *own, *training))
        code = watch.wait(patience * task.seconds)
        if code not in (0, 128 + signal.SIGINT):
            raise EngineFailed(
                f"fastrl-train ended with code {code}. Its last lines:\n"
                + "\n".join(watch.lines[-20:])
            )
        try:
            records = read_records(run)
        except ValueError as error:
            raise EngineFailed(str(error)) from error
        curve = curve_of(records)
        return Trained(
            seed,
            command_of(training),
            watch.whole(curve, int(records[-1]["steps"])),
            watch.goal_seconds,
            int(records[-1]["steps"]),
            str(records[-1].get("stopped_by", "")),
            _evaluate(run, seed),
        )


def _evaluate(run: Path, seed: int) -> dict[str, Any]:
    path = run.parent / "evaluation.json"
    flags = ["--episodes", str(EVALUATION_EPISODES), "--seed", str(seed + 1000)]
    try:
        done = subprocess.run(
            command_line("fastrl-eval", str(run), *flags, "--json", str(path)),
            capture_output=True,
            text=True,
            timeout=EVALUATION_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailed(f"fastrl-eval did not end in {EVALUATION_SECONDS:g} s.") from error
    if done.returncode:
        raise EngineFailed(f"fastrl-eval ended with code {done.returncode}: {done.stderr}")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


class _Watch:
    """A training whose lines are read as they come."""

    def __init__(self, command: list[str]) -> None:
        self.lines: list[str] = []
        self.goal_seconds: float | None = None
        self.goal_return = 0.0
        self.late = 0.0
        """Seconds from the command's start to that of the run's own clock, once that was told."""
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now = time.monotonic() - self._began
            step = STEP.search(line)
            if step:
                self.late = max(0.0, now - float(step[1]))
            reached = GOAL.search(line)
            if reached and self.goal_seconds is None:
                self.goal_seconds, self.goal_return = now, float(reached[1])
            self.lines.append(line.rstrip("\n"))

    def whole(self, curve: Curve, steps: int) -> Curve:
        """The curve by the command's clock, and the goal at its end, which lies between records."""
        curve = Curve(curve.steps, curve.seconds + self.late, curve.returns)
        if self.goal_seconds is None:
            return curve
        before = curve.seconds < self.goal_seconds
        return Curve(
            np.append(curve.steps[before], steps),
            np.append(curve.seconds[before], self.goal_seconds),
            np.append(curve.returns[before], self.goal_return),
        )

    def wait(self, seconds: float) -> int | None:
        """Wait for the end, from `seconds` on by an interrupt; None where it does not come."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(seconds)
            self._process.send_signal(signal.SIGINT)
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(10.0)
