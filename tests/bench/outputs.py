"""Running a bench through its command, and what it leaves behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fastrl.bench.engine_run import command_line
from fastrl.cli import bench_main

PNG = b"\x89PNG\r\n\x1a\n"
HANG = 120.0  # seconds; a bench that takes so long hangs


def run_bench(folder: Path, bench: str, *flags: str, program: bool = False) -> dict[str, Any]:
    """Run a bench to its end; its JSON. The picture is one, and no child is left.

    With `program` as the installed command: for a bench whose process must not have started
    multiprocessing's forkserver before.
    """
    own, more = list(flags), []
    if "--" in own:
        at = own.index("--")
        own, more = own[:at], own[at:]
    json_path, plot_path = folder / "out.json", folder / "out.png"
    files = ["--json", str(json_path), "--plot", str(plot_path)]
    arguments = [bench, *own, *files, *more]
    if program:
        command = command_line("fastrl-bench", *arguments)
        assert subprocess.run(command, timeout=HANG).returncode == 0
    else:
        assert bench_main(arguments) == 0
    assert plot_path.read_bytes().startswith(PNG)
    assert not multiprocessing.active_children()
    values: dict[str, Any] = json.loads(json_path.read_text())
    assert values["bench"] == bench and values["machine"]["cores"] >= 1
    assert values["command"].startswith(f"fastrl-bench {bench}")
    return values


def check_spread(values: dict[str, Any], repetitions: int) -> None:
    """Holds for what any Spread says of positive measurements."""
    assert 0 < values["low"] <= values["median"] <= values["high"]
    assert values["repetitions"] == repetitions


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which a bench refuses."""
    assert bench_main(arguments) == 2
    return capsys.readouterr().err


def descendants(pid: int) -> set[int]:
    """Processes that come from `pid`, itself left out."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(word) for word in task.read_text().split()}
        except OSError:
            continue
        found |= children
        for child in children:
            found |= descendants(child)
    return found


def interrupt(count: int, *arguments: str) -> tuple[int, set[int]]:
    """Run a bench until it has `count` processes below it, then press Ctrl-C.

    Returns its exit code, and which of them are left half a minute later.
    """
    process = subprocess.Popen(
        command_line("fastrl-bench", *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + HANG
    while len(below := descendants(process.pid)) < count:
        assert process.poll() is None and time.monotonic() < deadline, "it never started"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(HANG)
    deadline = time.monotonic() + HANG / 4
    while left := {pid for pid in below if alive(pid)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return code, left


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
