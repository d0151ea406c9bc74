"""Memory of a run's processes, by role, and whether the kernel has killed one for lack of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from fastrl.workers.machine import available_memory, oom_kills, total_memory

MB = 1e6
LOOK_SECONDS = 1.0
"""Between two looks at what is free: a process that takes all of it is dead a moment later."""


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Resident memory of a process but for the pages of shared mappings (the arena); 0 where it has
    ended."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def by_role(processes: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Metrics `memory/ROLE_mb` of (role, pid) pairs: MB (10^6 bytes), summed over a role."""
    sums: dict[str, float] = {}
    for role, pid in processes:
        name = f"memory/{role}_mb"
        sums[name] = sums.get(name, 0.0) + resident_bytes(pid) / MB
    return sums


class FreeMemory:
    """What was free at the last looks: after a kill for lack of memory there is plenty again."""

    def __init__(self) -> None:
        self._kills = oom_kills()
        self._least = self._last = available_memory()
        self._next = time.monotonic() + LOOK_SECONDS

    def look(self) -> None:
        """Look again, if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        now = available_memory()
        self._least, self._last = min(self._last, now), now

    def describe_kill(self) -> str:
        """Say of a process that SIGKILL ended what is known of its cause."""
        kills = oom_kills()
        if kills > self._kills:
            self._kills = kills
            return "out of memory: the kernel chose it"
        free = f"{self._least / 2**30:.1f} of {total_memory() / 2**30:.1f} GiB"
        return f"often out of memory; {free} were free just before"
