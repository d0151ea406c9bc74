"""The run of `fastrl-bench soak`: the engine for a given time, looked at every few seconds.

::

    fastrl-train ─▶ first batch │ look . look . look ...... look │ SIGINT ─▶ exit code, who is left
                                         SIGSTOP, work alone, SIGCONT

The speed of a machine that others share changes from second to second. So what the work of a step
costs it (`costs`) is measured again and again, while the engine is stopped as a whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastrl.bench.engine_run import (
    LOOK_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    EngineFailed,
    command_line,
)
from fastrl.bench.family import VARIABLE, kill_family, wait_until_alone
from fastrl.bench.processes import Held, held, resident_private
from fastrl.bench.records import Record, read_records, warm_at

EVERY_SECONDS = 5.0
MANY = 30
"""Looks of a short soak, which come more often."""
POLL_SECONDS = 0.05
"""Between two readings of memory alone. After the learner has given unused pages back it has them
again with its next batch, a fraction of a second later."""
ALONE_SECONDS = 2.0
TELL_SECONDS = 60.0


@dataclass(frozen=True)
class Look:
    """All processes at one moment."""

    at: float
    """Seconds since the first batch was learned from."""
    held: dict[int, Held]
    """By process id; the memory of each is the least since the look before."""


@dataclass(frozen=True)
class Pause:
    """A time in which the engine stood still, and the work of a step was measured."""

    begin: float
    end: float
    """Seconds since the first batch, as of a look."""
    work_us: float
    """Core time that a step must cost."""


@dataclass(frozen=True)
class Soaked:
    """What one run showed."""

    seconds: float
    """That it was meant to train for, from the first batch on."""
    looks: list[Look]
    records: list[Record]
    """With ``seconds`` since the first batch."""
    code: int | None
    """Exit code after SIGINT; None: it did not end."""
    left: list[str]
    """Processes that outlived main by 2 s."""
    pauses: list[Pause]
    """In their order."""


def soak_engine(
    flags: list[str],
    seconds: float,
    measure: Callable[[], float],
    pause_at: Sequence[float],
    tell: Callable[[str], None] = print,
) -> Soaked:
    """Train for `seconds` after the first batch, then interrupt the run.

    `flags` are those of ``fastrl-train``, without ``--run-dir``, for a run that is not over before.
    At each of `pause_at`, in seconds since the first batch, `measure` says what a step costs, in µs
    of a core. Raises EngineFailed where the engine does not start, or ends by itself.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="fastrl-soak-") as folder:
        run, output = Path(folder) / "run", Path(folder) / "output.txt"
        command = command_line("fastrl-train", "--run-dir", str(run), *flags)
        variables = {**os.environ, VARIABLE: mark}
        with output.open("w") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, env=variables
            )
        try:
            looked = _look_on(process, run, seconds, measure, pause_at, tell)
            if looked is None:
                tail = "\n".join(output.read_text().splitlines()[-20:])
                code = process.poll()
                how = "did not start" if code is None else f"ended with code {code}"
                raise EngineFailed(f"fastrl-train {how}. Its last lines:\n{tail}")
            looks, pauses = looked
            process.send_signal(signal.SIGINT)
            code = _wait(process, STOP_SECONDS)
            left = wait_until_alone(mark, ALONE_SECONDS)
        finally:
            if process.poll() is None:  # this program is being ended; its run tidies up
                process.terminate()
                _wait(process, STOP_SECONDS)
            kill_family(mark)
            process.wait()
        records = read_records(run)
        first = warm_at(records, 0.0) or 0.0
        return Soaked(
            seconds,
            looks,
            [
                record | {"seconds": record["seconds"] - first}
                for record in records
                if record["seconds"] >= first and "stopped_by" not in record
            ],
            code,
            [f"{seen.pid} {seen.name}: {seen.command[:120]}" for seen in left.values()],
            pauses,
        )


def _look_on(
    process: subprocess.Popen[bytes],
    run: Path,
    seconds: float,
    measure: Callable[[], float],
    pause_at: Sequence[float],
    tell: Callable[[str], None],
) -> tuple[list[Look], list[Pause]] | None:
    """Look until the time is over; None where the run did not last for so long."""
    looks: list[Look] = []
    pauses: list[Pause] = []
    waited_since, began = time.monotonic(), None
    every = min(EVERY_SECONDS, seconds / MANY)
    told = 0.0
    least: dict[int, int] = {}
    while began is None or looks[-1].at < seconds:
        if _wait(process, LOOK_SECONDS if began is None else POLL_SECONDS) is not None:
            return None
        now = time.monotonic()
        if began is None:
            if _has_learned(run):
                began = now
                looks.append(Look(0.0, held(process.pid)))
            elif now - waited_since > START_SECONDS:
                return None
            continue
        for pid in looks[-1].held:
            with contextlib.suppress(OSError):
                least[pid] = min(resident_private(pid), least.get(pid, sys.maxsize))
        if len(pauses) < len(pause_at) and now - began >= pause_at[len(pauses)]:
            with stopped(process.pid):
                work_us = measure()
            pauses.append(Pause(now - began, time.monotonic() - began, work_us))
        elif now - began >= looks[-1].at + every:
            looks.append(Look(now - began, _with_least(held(process.pid), least)))
            least.clear()
            if now - began >= told + TELL_SECONDS:
                told += TELL_SECONDS
                total = sum(one.private for one in looks[-1].held.values())
                tell(
                    f"{looks[-1].at:.0f} of {seconds:.0f} s: {len(looks[-1].held)} processes with "
                    f"{total / 1e6:,.0f} MB"
                )
    return looks, pauses


def _with_least(now: dict[int, Held], least: dict[int, int]) -> dict[int, Held]:
    return {
        pid: replace(one, private=min(one.private, least.get(pid, one.private)))
        for pid, one in now.items()
    }


@contextlib.contextmanager
def stopped(main: int) -> Iterator[None]:
    """Have a run stand still, all its processes: main first, which watches the others, and last."""
    pids = [main]
    try:
        _signal(main, signal.SIGSTOP)
        # Until nobody is left who could start another.
        while new := [pid for pid in held(main) if pid not in pids]:
            for pid in new:
                pids.append(pid)
                _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(pids):
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _has_learned(run: Path) -> bool:
    try:
        return warm_at(read_records(run), 0.0) is not None
    except ValueError:
        return False


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the end; None where it has not come."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
