"""What each process of a run takes of the machine, read from outside: CPU time, switches, memory.

::

    pid of fastrl-train ─▶ all that descend from it ─▶ role by name (see `bodies.PROCESS_NAMES`)

What a child starts itself (an environment with a process of its own) has its role. What has no
name of its own is main's: the supervisor, the forkserver, multiprocessing's resource tracker.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastrl.workers.bodies import PROCESS_NAMES

MAIN = "main"
ROLES = ("rollout", "inference", "learner", MAIN)
"""Of the engine; an evaluator, which no bench asks for, is main's."""
_ROLE_OF = {name: role for role, name in PROCESS_NAMES.items() if role in ROLES}
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")


@dataclass(frozen=True)
class Use:
    """What one process has taken since its start."""

    role: str
    cpu_seconds: float
    """In user and kernel mode, of all its threads."""
    switches: int
    """Context switches of the threads that it still has."""


@dataclass(frozen=True)
class Held:
    """What one process has at one moment."""

    role: str
    private: int
    """Resident memory that belongs to no file, in bytes (RssAnon): its heap and stacks. Pages that
    a fork shares with its parent until one of them writes count in both; the arena does not."""
    files: int
    """Open file descriptors."""
    threads: int


@dataclass(frozen=True)
class Sample:
    """All processes of a run at one moment."""

    at: float
    """time.monotonic()"""
    processes: dict[int, Use]


@dataclass(frozen=True)
class RoleUse:
    """What the processes of one role took between two samples."""

    cores: float
    """CPU seconds per second."""
    switches_per_second: float


def sample(main: int, proc: Path = PROC) -> Sample:
    """Look at the process `main` and all its descendants; those that end meanwhile are left out."""
    stats: dict[int, tuple[str, int, float]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                stats[int(folder.name)] = _read_stat((folder / "stat").read_text())
    at = time.monotonic()
    roles = {main: MAIN}
    # Ancestors before descendants, whatever their numbers.
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    queue = [main]
    for pid in queue:
        for child in children.get(pid, ()):
            roles[child] = _ROLE_OF.get(stats[child][0], roles[pid])
            queue.append(child)
    return Sample(
        at,
        {
            pid: Use(role, stats[pid][2], _switches(proc / str(pid)))
            for pid, role in roles.items()
            if pid in stats
        },
    )


def held(main: int, proc: Path = PROC) -> dict[int, Held]:
    """What `main` and all its descendants have now; those that end meanwhile are left out."""
    found = {}
    for pid, use in sample(main, proc).processes.items():
        with contextlib.suppress(OSError, KeyError):
            lines = (proc / str(pid) / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines if ":" in line)
            files = len(os.listdir(proc / str(pid) / "fd"))
            private = int(status["RssAnon"].split()[0]) * 1024
            found[pid] = Held(use.role, private, files, int(status["Threads"]))
    return found


def resident_private(pid: int, proc: Path = PROC) -> int:
    """`Held.private` of one process, by one short read. Raises OSError where it is gone."""
    _, resident, shared, *_ = (proc / str(pid) / "statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE


def between(first: Sample, last: Sample) -> dict[str, RoleUse]:
    """What each role took from the first to the last sample, of processes alive in the last."""
    seconds = last.at - first.at
    cpu, switches = dict.fromkeys(ROLES, 0.0), dict.fromkeys(ROLES, 0)
    for pid, use in last.processes.items():
        before = first.processes.get(pid, Use(use.role, 0.0, 0))
        cpu[use.role] += use.cpu_seconds - before.cpu_seconds
        switches[use.role] += max(0, use.switches - before.switches)
    return {role: RoleUse(cpu[role] / seconds, switches[role] / seconds) for role in ROLES}


def private_bytes(pid: int, without: str = "", proc: Path = PROC) -> int:
    """Memory that the process alone has in use, in bytes.

    A page of a shared mapping counts as its own while nobody else has touched it; so mappings whose
    name contains `without`, where there is one, are left out.
    """
    total, counts = 0, True
    # Line by line: the text of a large process would be some of the memory that it tells of.
    with (proc / str(pid) / "smaps").open(encoding="utf-8") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key in ("Private_Clean", "Private_Dirty"):
                total += int(value.split()[0]) * 1024 if counts else 0
            elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                counts = not without or without not in line
    return total


def private_of(processes: Iterable[int], without: str) -> list[int]:
    """`private_bytes` of each process that can be looked at."""
    sizes = []
    for pid in processes:
        with contextlib.suppress(OSError):
            sizes.append(private_bytes(pid, without))
    return sizes


def _read_stat(text: str) -> tuple[str, int, float]:
    """Name, parent and CPU seconds of a process; the name may have spaces and brackets in it."""
    head, _, rest = text.rpartition(")")
    words = rest.split()
    return head.partition("(")[2], int(words[1]), (int(words[11]) + int(words[12])) * _TICK


def _switches(process: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for thread in (process / "task").iterdir():
            with contextlib.suppress(OSError):
                text = (thread / "status").read_text()
                total += sum(map(int, re.findall(r"voluntary_ctxt_switches:\s*(\d+)", text)))
    return total
