"""A process's last words reach the one that asks for them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal

import pytest
from regions import HANG, start

from fastrl.shm import CrashReport


def crash(report: CrashReport) -> None:
    faulthandler.enable(file=report)
    report.write("γ is lost\n")
    ctypes.string_at(0)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_dead_process_left_its_traceback(method: str) -> None:
    report = CrashReport.create()
    for _ in range(2):  # once more for its replacement
        child = start(crash, report, method=method)
        child.join(HANG)
        assert child.exitcode == -signal.SIGSEGV
        text = report.read()
        assert text.startswith("γ is lost\n")
        assert "in crash" in text
        assert text == report.read()
        report.clear()
        assert report.read() == ""


def test_it_appends_and_starts_over() -> None:
    report = CrashReport.create()
    report.write("one ")
    report.write("two")
    assert report.read() == "one two"
    report.clear()
    report.write("three")
    assert report.read() == "three"
    os.write(report.fileno(), b"\xff")
    assert report.read() == "three\ufffd"
    report.write("\ud800")  # what cannot be encoded must not hide the rest
    assert report.read() == "three\ufffd\\ud800"


def test_travels_only_to_a_process_being_started_and_closes_once() -> None:
    report = CrashReport.create()
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(report)
    report.close()
    report.close()
    with pytest.raises(ValueError, match="closed"):
        report.read()
