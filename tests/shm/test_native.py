"""Compiles and runs native/test_native.cpp: threads under ThreadSanitizer, deaths without it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HEADERS = HERE.parents[1] / "fastrl" / "shm" / "native"
LONG = os.environ.get("FASTRL_LONG_TESTS") == "1"
SLEEPS = 1_000_000 if LONG else 100_000
KILLS = 10_000 if LONG else 500


def build(to: Path, *flags: str) -> Path:
    subprocess.run(
        ["g++", "-std=c++20", "-g", "-Wall", "-Wextra", "-Werror", *flags]
        + [f"-I{HEADERS}", str(HERE / "native" / "test_native.cpp"), "-o", str(to), "-pthread"],
        check=True,
    )
    return to


def run(program: Path, what: str, count: int) -> None:
    deadline = 1200 if LONG else 120  # means that it hangs
    result = subprocess.run(
        [str(program), what, str(count)], capture_output=True, text=True, timeout=deadline
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_threads_under_thread_sanitizer(tmp_path: Path) -> None:
    run(build(tmp_path / "tsan", "-O1", "-fsanitize=thread"), "threads", SLEEPS)


def test_threads_and_deaths_at_full_speed(tmp_path: Path) -> None:
    # ThreadSanitizer changes the timing; a lost wake-up may show only without it.
    program = build(tmp_path / "plain", "-O2")
    run(program, "threads", SLEEPS)
    run(program, "kills", KILLS)
