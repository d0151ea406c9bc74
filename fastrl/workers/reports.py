"""What the learner tells main, over a faster-fifo queue that main reads in a thread of its own.

faster-fifo's lock is not robust (a process killed while it holds it leaves it locked), so only
processes whose death ends the run write here, and nothing in main waits for the reading thread.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class SavedReport:
    """A checkpoint was written, or could not be."""

    path: str
    error: str | None


@dataclass(frozen=True)
class EndReport:
    """The learner has finished; the last checkpoint is written."""

    steps: int


class ReportQueue:
    """Queue of reports: many writers that are fatal to lose, one reading thread."""

    def __init__(self) -> None:
        self.fifo = faster_fifo.Queue(max_size_bytes=1 << 20)
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

    def drain(self) -> list[Any]:
        """Return the reports that have come since the last call; never waits."""
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


def send(fifo: faster_fifo.Queue, report: Any, timeout: float = 0.0) -> bool:
    """Put a report; False where the queue stays full, since no report is worth waiting for main."""
    try:
        fifo.put(report, block=timeout > 0, timeout=timeout)
    except queue.Full:
        return False
    return True
