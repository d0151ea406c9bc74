"""One run of one peer: start its runner, wait for the measured time, end all that it started.

::

    runner ─▶ metrics.jsonl: first steps │ warm-up │ ...... the measured time ...... │ it ends
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import TOKEN, Peer, environment_of

from fastrl.bench.records import Rate, Record, learned_rate, read_records, steady, warm_at

START_SECONDS = 300.0
"""Time for the first steps to be learned from; some compile, some start slowly."""
STOP_SECONDS = 30.0
"""Time to end by itself once the measured time is over."""
LOOK_SECONDS = 0.5
LAST_LINES = 15


class PeerFailed(RuntimeError):
    """A peer did not run as it was meant to; the message has the end of its output."""


@dataclass(frozen=True)
class PeerRun:
    """What one run has shown."""

    rate: Rate
    environments: int
    versions: dict[str, str]


def run_peer(python: Path, peer: Peer, work: str, warm_up: float, seconds: float) -> PeerRun:
    """Train until `seconds` have been measured after `warm_up`; raises PeerFailed.

    Args:
        python: of the environment that the peer is installed in.
        peer: which one.
        work: pong or cartpole.
        warm_up: seconds between the first steps learned from and the measured time.
        seconds: of the measured time.
    """
    with tempfile.TemporaryDirectory(prefix="fastrl-peer-") as name:
        folder = Path(name)
        command = [str(python), str(peer.runner), work, "--folder", name]
        command += ["--seconds", str(warm_up + seconds)]
        output = folder / "output.txt"
        token = uuid.uuid4().hex
        with output.open("w") as stream:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_of(token),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                fault = _wait(process, folder, warm_up + seconds)
            finally:
                end_all(process, token)
        try:
            if fault is not None:
                raise ValueError(fault)
            records = read_records(folder)
            return result_of(records, warm_up, seconds)
        except ValueError as error:
            lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = "\n".join(lines[-LAST_LINES:])
            raise PeerFailed(f"{error} Its last lines:\n{tail}") from error


def result_of(records: list[Record], warm_up: float, seconds: float) -> PeerRun:
    """Measure a run by its records, of which the first has its facts; raises ValueError."""
    facts: dict[str, Any] = records[0]
    rate = learned_rate(steady(records, warm_up, seconds))
    return PeerRun(rate, facts["environments"], facts["versions"])


def _wait(process: subprocess.Popen[bytes], folder: Path, length: float) -> str | None:
    """Wait until the time is over or the runner is; return what went wrong, as a sentence."""
    started = time.monotonic()
    end = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(LOOK_SECONDS)
            return None if code == 0 else f"The runner ended with code {code}."
        now = time.monotonic()
        if end is None and _has_begun(folder):
            end = now + length + STOP_SECONDS
        if end is None and now - started > START_SECONDS:
            return f"Nothing was learned from within {START_SECONDS:.0f} s."
        if end is not None and now > end:
            return None  # the records are there, and what does not end is ended


def _has_begun(folder: Path) -> bool:
    try:
        return warm_at(read_records(folder), 0.0) is not None
    except ValueError:
        return False


def end_all(process: subprocess.Popen[bytes], token: str) -> None:
    """End the runner's process group and every process with its token; wait for the runner."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        for pid in with_token(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3.0)
        deadline = time.monotonic() + 3.0
        while with_token(token) and time.monotonic() < deadline:
            time.sleep(0.1)
        if process.returncode is not None and not with_token(token):
            return


def with_token(token: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes in whose environment the token is, zombies aside."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
