"""What every runner has in common: its command line, and the records that it writes.

::

    runner WORK --seconds S --folder DIR ─▶ DIR/metrics.jsonl: a first record about itself, then
                                            (steps, seconds) as it trains, until S have passed

Nothing but the standard library is imported: each runner is executed by its peer's own Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path

FRAMES_PER_STEP = {"pong": 4, "cartpole": 1}
INTERVAL = 0.25
"""Seconds that lie between two records at least."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def made(packages: Sequence[str]) -> dict[str, object]:
    """When and where something was made: the day, processor and cores, versions of packages."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": date.today().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "cores": cores(),
        "versions": {name: metadata.version(name) for name in packages},
    }


def arguments(works: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the command line of a runner: work, seconds, folder and environments."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("work", choices=works)
    parser.add_argument("--seconds", type=float, required=True, help="of training, then it ends")
    parser.add_argument("--folder", type=Path, required=True, help="where metrics.jsonl goes")
    parser.add_argument("--environments", type=int, help="in place of the runner's own number")
    return parser.parse_args()


class Progress:
    """Writes the records of one run; told the peer's own count whenever that has grown.

    A record follows a growth at once or, where growths come fast, the first that lies INTERVAL
    after the record before. So the count of a record was true at its time.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        frames_per_step: int,
        environments: int,
        packages: Sequence[str],
    ) -> None:
        """Begin the file with the run's facts; `seconds` count from the first learned steps."""
        self._file = (folder / "metrics.jsonl").open("w", encoding="utf-8")
        self._start = self._last = time.perf_counter()
        self._end = float("inf")
        self._length = seconds
        self._steps = 0
        facts = {
            "frames_per_step": frames_per_step,
            "environments": environments,
            "versions": {name: metadata.version(name) for name in packages},
        }
        self._write(self._start, facts)

    def told(self, steps: int) -> bool:
        """Take the number of steps so far; return whether the time is over."""
        now = time.perf_counter()
        if steps > self._steps:
            first = self._steps == 0
            self._steps = steps
            if first:
                self._end = now + self._length
            if first or now - self._last >= INTERVAL:
                self._write(now, {})
        return now >= self._end

    def _write(self, now: float, more: dict[str, object]) -> None:
        record = {"steps": self._steps, "seconds": now - self._start, **more}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self._last = now
