"""What the learner tells main, over a faster-fifo queue that main reads in a thread of its own.

faster-fifo's lock is not robust (a process killed while it holds it leaves it locked), so only
processes whose death ends the run write here, and nothing in main waits for the reading thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import faster_fifo
import faster_fifo_reduction  # noqa: F401  (lets a queue travel to a spawned process)


@dataclass(frozen=True)
class MetricsReport:
    """Means over some updates of the learner."""

    metrics: dict[str, float]
    updates: int
    """How many of them."""
    through: int
    """Updates of this run up to and including the last of them, those before a resume left out."""
    steps: int
    """Steps learned from up to there, over all resumes."""


@dataclass(frozen=True)
class SavedReport:
    """A checkpoint was written, or could not be."""

    path: str
    error: str | None

    def describe(self) -> str:
        """Say so in a line."""
        if self.error is None:
            return f"saved {self.path}"
        return f"no checkpoint could be written to {self.path}: {self.error}"


@dataclass(frozen=True)
class NoticeReport:
    """Something that happened while learning, for the console and the log."""

    text: str


@dataclass(frozen=True)
class EvaluationRequest:
    """A policy to be evaluated."""

    path: str
    """Of a file in the form of a checkpoint."""
    steps: int


@dataclass(frozen=True)
class EvaluationResult:
    """What the evaluator sends main: how a policy did in whole episodes."""

    steps: int
    """That it had learned from."""
    mean: float
    """Raw return."""
    margin: float
    """Half the width of its 95 % interval."""
    length: float
    episodes: int
    seconds: float
    is_best: bool
    """Whether best.pt is this policy now."""
    problem: str | None = None
    """What went wrong besides."""

    def describe(self) -> str:
        """Say so in a line."""
        best = ", the best so far" if self.is_best else ""
        between = "" if math.isnan(self.margin) else f" ± {self.margin:.2f} (95 %)"
        episodes = f"{self.episodes} episode{'s' if self.episodes > 1 else ''}"
        problem = "" if self.problem is None else f"; {self.problem}"
        return (
            f"evaluated after {self.steps:,} steps: return {self.mean:.2f}{between}, {episodes}, "
            f"{self.seconds:.1f} s{best}{problem}"
        )

    def metrics(self) -> dict[str, float]:
        """Metrics of the record at `steps`."""
        return {
            "eval/episodic_return": self.mean,
            "eval/margin": self.margin,
            "eval/episodic_length": self.length,
            "eval/seconds": self.seconds,
        }


@dataclass(frozen=True)
class EndReport:
    """The learner has finished; the last checkpoint is written."""

    steps: int
    through: int
    """Updates of this run, those before a resume left out."""


class ReportQueue:
    """Queue of reports: many writers that are fatal to lose, one reading thread."""

    def __init__(self) -> None:
        self.fifo = faster_fifo.Queue(max_size_bytes=1 << 20)
        self.arrival = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Descriptor that is readable while reports lie here."""
        self._received: deque[Any] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="fastrl-reports", daemon=True)

    def start(self) -> None:
        """Start the reading thread (after the children, which inherit no threads)."""
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                self._received.extend(self.fifo.get_many(block=True, timeout=0.2))
            except queue.Empty:
                continue
            os.eventfd_write(self.arrival, 1)

    def drain(self) -> list[Any]:
        """Return the reports that have come since the last call; never waits."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.arrival)
        reports = []
        while self._received:
            reports.append(self._received.popleft())
        return reports

    def stop(self) -> None:
        """Take in what is left and end the reading thread; bounded, whatever state the queue is
        in."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
            if not self._thread.is_alive():
                with contextlib.suppress(queue.Empty):
                    self._received.extend(self.fifo.get_many(block=False))

    def close(self) -> None:
        """Release the descriptor, after `stop`; a second call does nothing."""
        if self.arrival >= 0:
            os.close(self.arrival)
            self.arrival = -1


def send(fifo: faster_fifo.Queue, report: Any, timeout: float = 0.0) -> bool:
    """Put a report; False where the queue stays full, since no report is worth waiting for main."""
    try:
        fifo.put(report, block=timeout > 0, timeout=timeout)
    except queue.Full:
        return False
    return True
