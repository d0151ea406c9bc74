"""Console and log file: every line goes to both, and a terminal that takes none stops nothing."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import rich.console
from rich.table import Table
from rich.text import Text

from fastrl.monitor.terminal import Terminal


def discard_stdout() -> None:
    """Point the process's standard output at nothing, after its reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Console:
    """Prints lines to a stream and, once the run has a folder, to its ``log.txt`` as well."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._log: TextIO | None = None
        self._early: list[str] = []
        self._terminal = Terminal.of_stdout() if stream is None else None

    def open_log(self, path: Path) -> None:
        """Start the log file; it begins with the lines said so far. Raises OSError."""
        if self._log is not None:  # of the engine before this one
            self._log.close()
        self._log = path.open("a", encoding="utf-8")
        for line in self._early:
            self._log.write(line + "\n")
        self._log.flush()
        self._early.clear()

    def say(self, line: str) -> None:
        """Print one line (or several, joined by newlines) and log it."""
        self._print(line)
        if self._log is None:
            self._early.append(line)
            return
        with contextlib.suppress(OSError, ValueError):
            self._log.write(line + "\n")
            self._log.flush()

    def _print(self, line: str) -> None:
        if self._terminal is not None:
            self._terminal.put(line + "\n")
            return
        # A pager that was left or a full disk must not end a run that trains.
        try:
            print(line, file=self._stream or sys.stdout, flush=True)
        except BrokenPipeError:
            # The interpreter's own flush at exit must not fail either.
            discard_stdout()
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        """Show what still waits to be shown, and close the log file."""
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None
        if self._log is not None:
            # What a full disk did not take is flushed once more here.
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Lay (name, text) rows out in two columns, wrapped to the width of the terminal."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    # Rendered to text rather than printed by rich, which ends the process at a closed pipe.
    page = io.StringIO()
    width = shutil.get_terminal_size().columns
    # In a notebook rich would show the table by itself, and write nothing.
    rich.console.Console(file=page, width=width, force_jupyter=False).print(grid)
    lines = page.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def progress_line(
    metrics: dict[str, float], steps: int, seconds: float, recent_return: float | None
) -> str:
    """One plain line about the run: steps, rate, return, lag, and who waits.

    ``metrics`` are those of the record being written; what has no value yet is left out.
    """
    parts = [f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}", f"{steps:>11,} steps"]
    if "charts/SPS" in metrics:
        parts.append(f"{metrics['charts/SPS']:>8,.0f} steps/s")
    if recent_return is not None:
        parts.append(f"return {recent_return:8.2f}")
    for name, label, form in (
        ("losses/entropy", "entropy", "{:.3f}"),
        ("losses/approx_kl", "kl", "{:.4f}"),
        ("lag/mean", "lag", "{:.2f}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    waits = [
        f"{label} {metrics[name]:.0%}"
        for name, label in (
            ("wait/learner", "learner"),
            ("wait/inference", "inference"),
            ("wait/rollout_action", "action"),
            ("wait/rollout_slot", "slot"),
        )
        if name in metrics
    ]
    if waits:
        parts.append("waits: " + " ".join(waits))
    return "  ".join(parts)
