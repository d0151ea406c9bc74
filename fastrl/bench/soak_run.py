"""The run of `fastrl-bench soak`: the engine for a given time, looked at every few seconds.

::

    fastrl-train ─▶ first batch │ look . look . look ...... look │ SIGINT ─▶ exit code, who is left
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastrl.bench.engine_run import (
    LOOK_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    EngineFailed,
    command_line,
)
from fastrl.bench.family import VARIABLE, kill_family, wait_until_alone
from fastrl.bench.processes import Held, held
from fastrl.bench.records import Record, read_records, warm_at

EVERY_SECONDS = 5.0
MANY = 30
"""Looks of a short soak, which come more often."""
ALONE_SECONDS = 2.0
TELL_SECONDS = 60.0


@dataclass(frozen=True)
class Look:
    """All processes at one moment."""

    at: float
    """Seconds since the first batch was learned from."""
    held: dict[int, Held]
    """By process id."""


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


def soak_engine(flags: list[str], seconds: float, tell: Callable[[str], None] = print) -> Soaked:
    """Train for `seconds` after the first batch, then interrupt the run.

    `flags` are those of ``fastrl-train``, without ``--run-dir``, for a run that is not over before.
    Raises EngineFailed where it does not start, or ends by itself.
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
            looks = _look_on(process, run, seconds, tell)
            if looks is None:
                tail = "\n".join(output.read_text().splitlines()[-20:])
                code = process.poll()
                how = "did not start" if code is None else f"ended with code {code}"
                raise EngineFailed(f"fastrl-train {how}. Its last lines:\n{tail}")
            process.send_signal(signal.SIGINT)
            code = _wait(process, STOP_SECONDS)
            left = wait_until_alone(mark, ALONE_SECONDS)
        finally:
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
        )


def _look_on(
    process: subprocess.Popen[bytes], run: Path, seconds: float, tell: Callable[[str], None]
) -> list[Look] | None:
    """Look until the time is over; None where the run did not last for so long."""
    looks: list[Look] = []
    waited_since, began = time.monotonic(), None
    every = min(EVERY_SECONDS, seconds / MANY)
    told = 0.0
    while began is None or looks[-1].at < seconds:
        if _wait(process, LOOK_SECONDS) is not None:
            return None
        now = time.monotonic()
        if began is None:
            if _has_learned(run):
                began = now
                looks.append(Look(0.0, held(process.pid)))
            elif now - waited_since > START_SECONDS:
                return None
        elif now - began >= looks[-1].at + every:
            looks.append(Look(now - began, held(process.pid)))
            if now - began >= told + TELL_SECONDS:
                told += TELL_SECONDS
                total = sum(one.private for one in looks[-1].held.values())
                tell(
                    f"{looks[-1].at:.0f} of {seconds:.0f} s: {len(looks[-1].held)} processes with "
                    f"{total / 1e6:,.0f} MB"
                )
    return looks


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
