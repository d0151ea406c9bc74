"""A second process of a bench, which serves requests of the first until that ends it.

::

    Peer(launcher, arena, part) ──spawn──▶ part(lines): requests and answers over lines.pipe

It is killed with its bench, however that ends, and a bench does not wait for it for ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from fastrl.shm import Arena, CrashReport
from fastrl.workers.children import Child
from fastrl.workers.process import Launcher, Lines, child_of_main

Part = Callable[[Lines], None]
"""What the second process does; picklable. It ends by EOFError, when its pipe closes."""


class BenchFailed(RuntimeError):
    """A bench cannot give a figure; the message says why, in a sentence."""


class Peer:
    """The second process, owned by the first; used from its main thread."""

    def __init__(self, launcher: Launcher, arena: Arena, role: str, part: Part) -> None:
        """Start a process that calls `part`, named `role` in sentences."""
        ours, theirs = multiprocessing.Pipe()
        crash = CrashReport.create()
        lines = Lines(arena, crash, theirs, parent_pid=os.getpid())
        process = launcher.spawn(role, _peer_main, part, lines)
        theirs.close()
        self._child = Child(role, process, ours, crash)

    def ask(self, *request: Any) -> None:
        """Send a request; raises BenchFailed where the process has ended."""
        try:
            self._child.pipe.send(request)
        except OSError:
            self.fail()

    def answer(self) -> Any:
        """Wait for the answer to a request; raises BenchFailed where the process has ended."""
        try:
            return self._child.pipe.recv()
        except (EOFError, OSError):
            self.fail()

    def fail(self, otherwise: str = "") -> None:
        """Raise BenchFailed: with the story of the process, or where it still runs, `otherwise`."""
        if self._child.has_ended(0.0 if otherwise else 5.0):
            raise BenchFailed(self._child.story())
        raise BenchFailed(otherwise or f"{self._child.name} does not answer.")

    def end(self) -> None:
        """Kill the process and release what belongs to it."""
        self._child.kill()
        self._child.has_ended(5.0)
        self._child.close()


def _peer_main(part: Part, lines: Lines) -> None:
    with child_of_main(lines), contextlib.suppress(EOFError):
        part(lines)


class _Late(Exception):
    """The time of `within` is over."""


@contextlib.contextmanager
def within(seconds: float, peer: Peer, what: str) -> Iterator[None]:
    """Bound what the block waits for; BenchFailed after `seconds`. In the main thread alone."""

    def too_late(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late:
        peer.fail(f"{what} did not end within {seconds:.0f} s.")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
