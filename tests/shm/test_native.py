"""Compiles and runs native/*.cpp: threads under ThreadSanitizer and without it, and deaths."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HEADERS = HERE.parents[1] / "fastrl" / "shm" / "native"
LONG = os.environ.get("FASTRL_LONG_TESTS") == "1"
SLEEPS = 1_000_000 if LONG else 100_000
KILLS = 10_000 if LONG else 300


def build(name: str, folder: Path, *flags: str) -> Path:
    source, program = HERE / "native" / f"{name}.cpp", folder / name
    common = ["-std=c++20", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    subprocess.run(["g++", *common, *flags, source, "-o", program], check=True)
    return program


def run(program: Path, count: int) -> None:
    deadline = 1200 if LONG else 120  # means that it hangs
    result = subprocess.run([program, str(count)], capture_output=True, text=True, timeout=deadline)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_threads_under_thread_sanitizer(tmp_path: Path) -> None:
    # A memcpy that the compiler expands in place is one that ThreadSanitizer does not see.
    flags = ["-O1", "-fsanitize=thread", "-fno-builtin-memcpy"]
    run(build("test_threads", tmp_path, *flags), SLEEPS)


@pytest.mark.slow
def test_threads_at_full_speed(tmp_path: Path) -> None:
    # ThreadSanitizer changes the timing; a lost wake-up may show only without it.
    run(build("test_threads", tmp_path, "-O2"), SLEEPS)


@pytest.mark.slow
def test_deaths(tmp_path: Path) -> None:
    run(build("test_deaths", tmp_path, "-O2"), KILLS)
