"""Running the engine as its user does, through ``fastrl-train``, for a given time.

::

    fastrl-train ─▶ first batch │ warm-up │ sample ...... measured time ...... sample │ SIGINT
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from fastrl.bench.processes import Sample, private_of, sample
from fastrl.bench.records import Record, read_records, steady, warm_at
from fastrl.config import TrainConfig
from fastrl.config_file import load_config

START_SECONDS = 300.0
"""Time for the first batch to be learned from."""
STOP_SECONDS = 90.0
LOOK_SECONDS = 0.25
INTERRUPTED = 130
ARENA = "memfd:fastrl-arena"
"""Name of the arena's mapping, which belongs to no process alone."""

COMMON_FLAGS = ("--total-steps", str(10**15), "--seed", "1", "--log-every", "0.5")
"""Of a run that is measured; before the caller's, since of a repeated flag the last one counts."""


class EngineFailed(RuntimeError):
    """The engine did not run as it was meant to; the message has the end of its output."""


class EngineRun(NamedTuple):
    """What a run leaves behind."""

    config: TrainConfig
    """Resolved, from its ``config.toml``."""
    records: list[Record]
    """Those of the measured time."""
    first: Sample
    """Its processes when the measured time began."""
    last: Sample
    """When it ended."""
    private: list[int]
    """Memory of its own of each rollout process at the end, in bytes."""
    log: str
    """Its ``log.txt``."""


def command_line(name: str, *arguments: str) -> list[str]:
    """Command line of a program that is installed beside this Python."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise EngineFailed(f"{name} is not installed beside {sys.executable}: pip install fastrl.")
    return [path, *arguments]


def run_engine(flags: list[str], warm_up: float, seconds: float) -> EngineRun:
    """Train until `seconds` have been measured after `warm_up`, then interrupt the run.

    `flags` are those of ``fastrl-train``, without ``--run-dir``, for a run that is not over before.
    Raises EngineFailed where it ends by itself, does not start, or does not stop.
    """
    with tempfile.TemporaryDirectory(prefix="fastrl-bench-") as folder:
        run, output = Path(folder) / "run", Path(folder) / "output.txt"
        command = command_line("fastrl-train", "--run-dir", str(run), *flags)
        with output.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
            watched = _Watched(process, run)
            try:
                code = watched.interrupt_after(warm_up, seconds)
            finally:
                process.kill()
                process.wait()
        if code != INTERRUPTED or watched.first is None or watched.last is None:
            tail = "\n".join(output.read_text().splitlines()[-20:])
            how = "did not start or stop in time" if code is None else f"ended with code {code}"
            raise EngineFailed(f"fastrl-train {how}. Its last lines:\n{tail}")
        return EngineRun(
            load_config(run / "config.toml"),
            steady(read_records(run), warm_up, seconds),
            watched.first,
            watched.last,
            watched.private,
            (run / "log.txt").read_text(encoding="utf-8"),
        )


def seconds_until_all_step(log: str) -> float | None:
    """When, after the start, every worker had stepped, as a run's log says; None: it does not."""
    found = re.search(r"workers? steps? after ([\d.]+) s", log)
    return None if found is None else float(found[1])


class _Watched:
    """A run while it is measured."""

    def __init__(self, process: subprocess.Popen[bytes], run: Path) -> None:
        self._process = process
        self._run = run
        self.first: Sample | None = None
        self.last: Sample | None = None
        self.private: list[int] = []

    def interrupt_after(self, warm_up: float, seconds: float) -> int | None:
        """Return the exit code; None where no batch was learned from, or the end did not come."""
        waited = 0.0
        while True:
            # Waiting for a process that is not meant to end: it is the clock, and sees a failure.
            try:
                return self._process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                waited += LOOK_SECONDS
            try:
                records = read_records(self._run)
            except ValueError:
                records = []
            begin = warm_at(records, warm_up)
            if begin is None:
                if waited > START_SECONDS:
                    return None
                continue
            now = records[-1]["seconds"]
            if self.first is None and now >= begin:
                self.first = sample(self._process.pid)
            elif self.first is not None and now > begin + seconds:
                break
        self.last = sample(self._process.pid)
        rollouts = [p for p, use in self.last.processes.items() if use.role == "rollout"]
        self.private = private_of(rollouts, without=ARENA)
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None
