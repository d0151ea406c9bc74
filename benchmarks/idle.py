"""What an engine costs that has nothing to do: its learner is held still, so all wait.

``python benchmarks/idle.py``, with flags of ``fastrl-train`` after ``--``::

    fastrl-train, no terminal ─▶ first batch learned ─▶ SIGSTOP to the learner ─▶ every slot fills
                               ─▶ CPU time of all processes over some seconds, in % of a core

Exit codes: 0 done, 1 the engine did not come so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from fastrl.bench.engine_run import command_line
from fastrl.bench.processes import MAIN, sample
from fastrl.bench.records import NoRate, read_records

START_SECONDS = 300.0
STOP_SECONDS = 90.0


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure the CPU time of an engine whose learner is stopped."""

    seconds: float = 20.0
    """Measured time."""
    settle: float = 10.0
    """Seconds between the learner's stop and the measured time."""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond: ticks of 10 ms are too coarse."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total * 1e-9


def measure(process: subprocess.Popen[bytes], run: Path, options: Options) -> dict[str, float]:
    """Percent of a core by role; raises NoRate where no batch was learned from in time."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(ValueError):  # nothing written yet
            if any(record["steps"] > 0 for record in read_records(run)):
                break
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoRate("fastrl-train has not learned from a batch.")
        time.sleep(0.5)
    roles = {pid: use.role for pid, use in sample(process.pid).processes.items()}
    learners = [pid for pid, role in roles.items() if role == "learner"]
    for pid in learners:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(options.settle)
        before, began = {pid: cpu_seconds(pid) for pid in roles}, time.monotonic()
        time.sleep(options.seconds)
        elapsed = time.monotonic() - began
        percent = dict.fromkeys(roles.values(), 0.0)
        for pid, role in roles.items():
            percent[role] += 100.0 * (cpu_seconds(pid) - before[pid]) / elapsed
    finally:
        for pid in learners:
            os.kill(pid, signal.SIGCONT)
    return percent


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = tyro.cli(Options, prog="idle.py", args=list(arguments[:at]))
    flags = ["--env", "atari:Pong", "--workers", "64", "--seed", "1", *arguments[at + 1 :]]
    with tempfile.TemporaryDirectory(prefix="fastrl-idle-") as folder:
        run = Path(folder) / "run"
        command = command_line("fastrl-train", *flags, "--run-dir", str(run))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            percent = measure(process, run, options)
        except NoRate as error:
            print(f"idle.py: {error}", file=sys.stderr)
            return 1
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
    print(f"fastrl-train {' '.join(flags)}, learner stopped, over {options.seconds:g} s")
    for role in sorted(percent, key=lambda role: role == MAIN):
        print(f"  {role:<10} {percent[role]:6.3f} % of a core")
    print(f"  {'together':<10} {sum(percent.values()):6.3f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
