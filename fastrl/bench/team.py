"""One copy of a piece of work on every core at once: the state in which a busy machine works.

::

    Team(build, cores, threads) ─▶ cores // threads processes, each pinned to `threads` cores
    rates(at, seconds)          ─▶ all work at piece `at` for `seconds` ─▶ what each of them did

Alone on a machine a core has the caches and the clock rate of all; together they have what an
engine finds. Main is the barrier: a round begins when every process has ended the one before.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NamedTuple

WARM_UP_SECONDS = 0.2

Work = Callable[[], int]
"""Does one piece of work and returns the steps in it that had effect."""

Build = Callable[[int], Sequence[Work]]
"""Makes the works of one process, given its number; called there, so it travels by pickle."""


class Pace(NamedTuple):
    """What one process did, per second."""

    pieces: float
    steps: float


class Team:
    """Pinned processes that measure the same works at the same time; a context manager."""

    def __init__(self, build: Build, cores: int, threads: int, warm_up: float) -> None:
        """Start the processes and wait until each has its works and has tried them.

        Args:
            build: called in each process, which is pinned by then: threads inherit its cores.
            cores: how many of the cores that this process may use.
            threads: cores of each process.
            warm_up: seconds that each work is tried for, at most WARM_UP_SECONDS.

        Raises:
            Exception: what the first process to fail raised.
        """
        self.copies = cores // threads
        if self.copies < 1:
            raise ValueError(f"{threads} threads do not fit on {cores} cores.")
        usable = sorted(os.sched_getaffinity(0))
        spawn = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        try:
            for copy in range(self.copies):
                ours, theirs = spawn.Pipe()
                own = usable[copy * threads : (copy + 1) * threads]
                seconds = min(warm_up, WARM_UP_SECONDS)
                process = spawn.Process(
                    target=_member, args=(build, copy, own, seconds, theirs), daemon=True
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
            self._collect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def rates(self, at: int, seconds: float) -> list[Pace]:
        """Have every process do the work number `at` for `seconds`; raises what one of them did."""
        for pipe in self._pipes:
            pipe.send((at, seconds))
        return self._collect()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []

    def _collect(self) -> list[Any]:
        """The answer of every process, in their order; of several failures the first to come."""
        answers: dict[int, Any] = {}
        while len(answers) < self.copies:
            for pipe in wait([p for i, p in enumerate(self._pipes) if i not in answers]):
                assert isinstance(pipe, Connection)
                copy = self._pipes.index(pipe)
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    process = self._processes[copy]
                    process.join()
                    raise RuntimeError(
                        f"A process that measured has died (exit code {process.exitcode})."
                    ) from None
                if kind == "failed":
                    raise value
                answers[copy] = value
        return [answers[copy] for copy in range(self.copies)]


def _member(build: Build, copy: int, cores: list[int], warm_up: float, pipe: Connection) -> None:
    """Body of one process; it ends when main closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to main as well
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            # Before anything is built: the threads of a pool or of a kernel inherit the cores.
            os.sched_setaffinity(0, cores)
            works = build(copy)
            for work in works:
                pace(work, warm_up, at_least=2)
            pipe.send(("ready", None))
            while True:
                at, seconds = pipe.recv()
                pipe.send(("pace", pace(works[at], seconds)))
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send(("failed", error))


def pace(work: Work, seconds: float, at_least: int = 1) -> Pace:
    """Work for `seconds`, and for `at_least` pieces."""
    steps = pieces = 0
    started = time.perf_counter()
    while True:
        steps += work()
        pieces += 1
        elapsed = time.perf_counter() - started
        if elapsed >= seconds and pieces >= at_least:
            return Pace(pieces / elapsed, steps / elapsed)
