"""All processes of one command, found from outside: by a mark that they inherit, and by who they
are.

::

    FASTRL_FAMILY=<mark> fastrl-train ... ─▶ family(mark): every process of it, main's end survived
                                          ─▶ members(main): role of each, from its first moment

A process has the mark in its environment for as long as it lives, whoever its parent is by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fastrl.bench.processes import MAIN, PROC, ROLES
from fastrl.workers.bodies import PROCESS_NAMES

VARIABLE = "FASTRL_FAMILY"
FORKSERVER = "forkserver"
SHM = Path("/dev/shm")

_ROLE_OF = {name: role for role, name in PROCESS_NAMES.items()}
_SPAWNED = ("learner", "inference")
"""Children that main spawns, in the order in which it does."""


class Seen(NamedTuple):
    """One process as /proc shows it."""

    pid: int
    parent: int
    name: str
    state: str
    started: int
    """In clock ticks since the machine's start."""
    command: str


def look(pid: int, proc: Path = PROC) -> Seen | None:
    """Look at a process; None where it has ended, though nobody has reaped it yet."""
    folder = proc / str(pid)
    try:
        head, _, rest = (folder / "stat").read_text().rpartition(")")
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    words = rest.split()
    if words[0] in ("Z", "X"):
        return None
    name = head.partition("(")[2]
    return Seen(pid, int(words[1]), name, words[0], int(words[19]), command.strip())


def family(mark: str, proc: Path = PROC) -> dict[int, Seen]:
    """Every living process of the command that was started with this mark."""
    wanted = f"{VARIABLE}={mark}\0".encode()
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    seen = look(int(folder.name), proc)
                    if seen is not None:
                        found[seen.pid] = seen
    return found


def members(main: int, proc: Path = PROC) -> dict[str, list[int]]:
    """Process ids by role of the engine whose main process is `main`, oldest first.

    Roles are those of a run and the forkserver. A child that has not named itself yet is told by
    its place: main spawns the learner before inference, and the forkserver's children are rollouts.
    """
    seen = [
        one
        for folder in proc.iterdir()
        if folder.name.isdecimal() and (one := look(int(folder.name), proc)) is not None
    ]
    found: dict[str, list[int]] = {role: [] for role in (*ROLES, FORKSERVER)}
    children = sorted((one for one in seen if one.parent == main), key=lambda one: one.started)
    found[MAIN] = [one.pid for one in seen if one.pid == main]
    servers = [one.pid for one in children if "multiprocessing.forkserver" in one.command]
    found[FORKSERVER] = servers
    spawned = [one for one in children if "multiprocessing.spawn" in one.command]
    for place, one in enumerate(spawned):
        role = _ROLE_OF.get(one.name)
        if role is None and len(spawned) <= len(_SPAWNED):
            # The only nameless one beside a named one is the other.
            named = {_ROLE_OF.get(other.name) for other in spawned}
            left = [role for role in _SPAWNED if role not in named]
            role = left[0] if len(left) == 1 else _SPAWNED[place]
        if role is not None:
            found.setdefault(role, []).append(one.pid)
    workers = sorted((one for one in seen if one.parent in servers), key=lambda one: one.started)
    found["rollout"] = [one.pid for one in workers]
    return found


def kill_family(mark: str, proc: Path = PROC) -> None:
    """Kill all that is left of a command; for one that has failed or was given up."""
    for pid in family(mark, proc):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until_alone(mark: str, seconds: float) -> dict[int, Seen]:
    """Wait until no process of a command lives; return those that do after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := family(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def shared_files(folder: Path = SHM) -> dict[str, int]:
    """Bytes in use by each entry of /dev/shm."""
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                found[path.name] = path.stat().st_blocks * 512
    return found


def left_in_shared_memory(before: dict[str, int], folder: Path = SHM) -> list[str]:
    """Entries of /dev/shm that are new or larger than `before`, and that no living process uses.

    One that a process has open or mapped is another program's, whose business it is.
    """
    grown = [name for name, size in shared_files(folder).items() if size > before.get(name, -1)]
    if not grown:
        return []
    used = _used_files({str(folder / name) for name in grown})
    return sorted(name for name in grown if str(folder / name) not in used)


def _used_files(paths: Iterable[str], proc: Path = PROC) -> set[str]:
    """Those of `paths` that a living process has open or mapped."""
    wanted, used = set(paths), set()
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used |= wanted & {os.readlink(link)}
        with contextlib.suppress(OSError):
            for line in (folder / "maps").read_text(errors="replace").splitlines():
                used |= wanted & {line.rpartition(" ")[2]}
    return used
