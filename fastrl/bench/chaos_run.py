"""One run of `fastrl-bench chaos`: the command, the signals it is sent, and what came of it.

::

    fastrl-train ─▶ output (a thread reads it, with times)  ┐
                    metrics.jsonl, checkpoints/             ├─▶ Watch ─▶ moment of each fault, hang
    /proc        ─▶ who is there                            ┘
    ... the end ─▶ processes left, /dev/shm, checkpoints ─▶ Outcome

Nothing is judged here but a hang, which has to be ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastrl.bench.chaos_plan import Fault, RunPlan
from fastrl.bench.engine_run import command_line
from fastrl.bench.family import (
    VARIABLE,
    Seen,
    family,
    kill_family,
    left_in_shared_memory,
    look,
    members,
    shared_files,
    wait_until_alone,
)
from fastrl.bench.records import read_records

HANG_SECONDS = 10.0
"""Time without progress while training, after which a run counts as hung."""
START_SECONDS = 120.0
"""The same while it starts, where it imports torch, on whatever machine this is."""
ALONE_SECONDS = 2.0
"""Time for the last process to be gone after main."""
END_SHARE = 5 / 6
"""Share of the steps from which on a run is at its end."""
LOOK_SECONDS = 0.004

STEPS = re.compile(r"all \d+ workers? steps? after|the worker steps after")
AGAIN = "the engine is started again"
FINISHED = "the learner has finished"
_PROGRESS_LINE = re.compile(r"\s*\d+:\d\d +[\d,]+ steps")


@dataclass(frozen=True)
class Line:
    """A line of output and when it came, in seconds after the command's start."""

    at: float
    text: str


@dataclass(frozen=True)
class Delivered:
    """A fault that reached a living process; times in seconds after the command's start."""

    fault: Fault
    at: float
    training: bool
    """Whether all workers of the engine had stepped by then."""
    answered: float | None = None
    """Of a pause: when the first step after SIGCONT was recorded."""

    @property
    def over(self) -> float:
        """When the process was itself again: SIGCONT's time, of a pause."""
        return self.at + self.fault.pause


@dataclass
class Outcome:
    """What one run did, for the judge."""

    plan: RunPlan
    command: list[str]
    code: int | None = None
    """None: it hung, and was killed."""
    ended: float = 0.0
    """When main had ended, in seconds after the command's start."""
    alone: float = 0.0
    """When the last process of the family was gone, or when that was given up."""
    lines: list[Line] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    hang: str | None = None
    left: list[str] = field(default_factory=list)
    """Processes that outlived main by 2 s."""
    shared_memory: list[str] = field(default_factory=list)
    """Entries that it left in /dev/shm."""
    damaged: list[str] = field(default_factory=list)
    """What is wrong with checkpoints."""
    checkpoints: int = 0
    resumed: Outcome | None = None

    def tail(self, lines: int = 25) -> list[str]:
        """The end of the output."""
        return [line.text for line in self.lines[-lines:]]

    def said(self, text: str) -> Iterator[Line]:
        """Lines that hold `text`."""
        return (line for line in self.lines if text in line.text)


def run_plan(plan: RunPlan, folder: Path) -> Outcome:
    """Carry out a plan in an empty folder; a run that a fault ended may be resumed."""
    outcome = attack(plan, ["--run-dir", "run", *plan.flags()], plan.faults, folder)
    ended = outcome.code not in (0, None) and outcome.delivered
    if plan.resumes and ended and outcome.checkpoints and not outcome.left:
        more = ["--run-dir", "run", "--resume", "must"]
        outcome.resumed = attack(plan, more, (), folder)
    return outcome


def attack(plan: RunPlan, flags: Sequence[str], faults: Sequence[Fault], folder: Path) -> Outcome:
    """Run fastrl-train in `folder` and send it its faults; return what it did."""
    mark, before = uuid.uuid4().hex, shared_files()
    command = command_line("fastrl-train", *flags)
    outcome = Outcome(plan, ["fastrl-train", *flags])
    began = time.monotonic()
    with _no_core_dumps():
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    watched = _Watched(process, outcome, folder / "run", began)
    try:
        watched.follow(faults)
        if outcome.hang is not None:
            outcome.hang += "; " + describe(family(mark))
            kill_family(mark)
        left = wait_until_alone(mark, ALONE_SECONDS)
        outcome.alone = time.monotonic() - began
        outcome.left = [f"{seen.pid} {seen.name}: {seen.command[:120]}" for seen in left.values()]
    finally:
        kill_family(mark)
        process.wait()
        watched.close()
    outcome.shared_memory = left_in_shared_memory(before)
    outcome.checkpoints, outcome.damaged = check_checkpoints(folder / "run")
    return outcome


def describe(seen: dict[int, Seen]) -> str:
    """Say what the processes of a hung run were doing."""
    told = []
    for one in seen.values():
        where = "?"
        with contextlib.suppress(OSError):
            where = Path(f"/proc/{one.pid}/wchan").read_text() or "?"
        told.append(f"{one.name} ({one.pid}) {one.state} in {where}")
    return ", ".join(told) or "no process was left"


def check_checkpoints(run: Path) -> tuple[int, list[str]]:
    """Load every checkpoint of a run; return how many there are, and what is wrong with them."""
    from fastrl.checkpoint import FOLDER, load  # torch, which is imported once for all runs

    paths = sorted((run / FOLDER).glob("*.pt"))
    wrong = []
    for path in paths:
        try:
            load(path)
        except ValueError as error:
            wrong.append(str(error))
    return len(paths), wrong


@contextlib.contextmanager
def _no_core_dumps() -> Iterator[None]:
    """Have children of this block write no core file: SIGSEGV is sent on purpose."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


class _Watched:
    """A run while it is followed; used from one thread, beside the one that reads its output."""

    def __init__(
        self, process: subprocess.Popen[str], outcome: Outcome, run: Path, began: float
    ) -> None:
        self._process = process
        self._outcome = outcome
        self._run = run
        self._began = began
        self._steps = 0
        self._moved = 0.0
        """When there was progress last."""
        self._looked = 0.0
        self._seen_lines = 0
        self._training_since: float | None = None
        self._end_since: float | None = None
        self._files: set[str] | None = None
        """Of the checkpoints' folder, since a fault waits for the next one."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Take in the rest of the output; all that could write it have ended."""
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def follow(self, faults: Sequence[Fault]) -> None:
        """Deliver the faults, each at its moment, and wait for the run's end or a hang."""
        waiting = list(faults)
        due: float | None = None
        while self._process.poll() is None:
            self._take_in()
            if waiting:
                due = self._due(waiting[0]) if due is None else due
                if due is not None and self._now() >= due and self._deliver(waiting[0]):
                    waiting.pop(0)
                    due, self._files = None, None
            starting = self._training_since is None
            still = self._now() - self._moved
            if still > (START_SECONDS if starting else HANG_SECONDS):
                doing = "it was starting" if starting else f"after {self._steps:,} steps"
                self._outcome.hang = f"no progress for {still:.0f} s, {doing}"
                return
            # Short, so that a file that is there for milliseconds is seen.
            time.sleep(LOOK_SECONDS)
        self._outcome.code = self._process.returncode
        self._outcome.ended = self._now()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._outcome.lines.append(Line(self._now(), text.rstrip("\n")))

    def _take_in(self) -> None:
        """See what is new: lines, and now and then the steps that were recorded."""
        lines = self._outcome.lines
        for line in lines[self._seen_lines : len(lines)]:
            self._seen_lines += 1
            if _PROGRESS_LINE.match(line.text):
                continue  # it comes whether or not there are steps
            self._moved = max(self._moved, line.at)
            if STEPS.search(line.text):
                self._training_since = line.at
            elif AGAIN in line.text:
                self._training_since, self._end_since = None, None
            elif FINISHED in line.text and self._end_since is None:
                self._end_since = line.at
        if self._now() - self._looked < 0.05:
            return
        self._looked = self._now()
        with contextlib.suppress(ValueError):
            steps = read_records(self._run)[-1]["steps"]
            if steps != self._steps:
                self._steps, self._moved = steps, self._now()
                self._answer(self._now())
        near = self._steps >= END_SHARE * self._outcome.plan.total_steps
        if near and self._end_since is None:
            self._end_since = self._now()

    def _answer(self, now: float) -> None:
        """Note the first steps after each pause."""
        for place, one in enumerate(self._outcome.delivered):
            if one.fault.signal == "SIGSTOP" and one.answered is None:
                self._outcome.delivered[place] = Delivered(one.fault, one.at, one.training, now)

    def _due(self, fault: Fault) -> float | None:
        """When a fault is to be sent; None while its moment has not come."""
        if fault.moment == "start":
            return fault.delay
        if self._training_since is None:
            return None
        if fault.moment == "training":
            return self._training_since + fault.delay
        if fault.moment == "end":
            return None if self._end_since is None else self._end_since + fault.delay
        files = {path.name for path in (self._run / "checkpoints").glob("*")}
        files |= {path.name for path in (self._run / "checkpoints").glob(".*")}
        if self._files is None:
            self._files = files
        return self._now() + fault.delay if files - self._files else None

    def _deliver(self, fault: Fault) -> bool:
        """Send a fault to a process of its role; False while there is none."""
        pids = members(self._process.pid)[fault.role]
        if not pids:
            return False
        pid = pids[int(fault.pick * len(pids))]
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if look(pid) is None:
                return False
            self._take_in()
            at, training = self._now(), self._training_since is not None
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.Signals[fault.signal])
            if fault.pause:
                # Main may end meanwhile: the others go on.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(fault.pause)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                self._moved = self._now()
        finally:
            os.close(pidfd)
        self._outcome.delivered.append(Delivered(fault, at, training))
        return True
