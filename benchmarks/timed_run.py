"""Running the engine as its user does, through ``fastrl-train``, for a given time."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from run_records import Record, read_records, steady, warm_at

from fastrl.config import TrainConfig
from fastrl.config_file import load_config

START_SECONDS = 300.0
"""Time for the first batch to be learned from."""
STOP_SECONDS = 90.0
INTERRUPTED = 130


class EngineFailed(RuntimeError):
    """The engine did not run as it was meant to; the message has the end of its output."""


class EngineRun(NamedTuple):
    """What a run leaves behind."""

    config: TrainConfig
    """Resolved, from its ``config.toml``."""
    records: list[Record]
    """Those of the measured time."""


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
            try:
                code = _interrupt_after(process, run, warm_up, seconds)
            finally:
                process.kill()
                process.wait()
        if code != INTERRUPTED:
            tail = "\n".join(output.read_text().splitlines()[-20:])
            how = "did not start or stop in time" if code is None else f"ended with code {code}"
            raise EngineFailed(f"fastrl-train {how}. Its last lines:\n{tail}")
        return EngineRun(
            load_config(run / "config.toml"), steady(read_records(run), warm_up, seconds)
        )


def _interrupt_after(
    process: subprocess.Popen[bytes], run: Path, warm_up: float, seconds: float
) -> int | None:
    """Return the exit code; None where no batch was learned from, or the end did not come."""
    waited = 0.0
    while True:
        # Waiting for a process that is not meant to end: it is the clock, and sees a failure.
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            waited += 1.0
        try:
            records = read_records(run)
        except ValueError:
            records = []
        begin = warm_at(records, warm_up)
        if begin is not None and records[-1]["seconds"] > begin + seconds:
            break
        if begin is None and waited > START_SECONDS:
            return None
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
