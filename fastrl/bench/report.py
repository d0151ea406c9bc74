"""What every bench says of itself: the machine, versions, flags and units, then its figures.

::

    Report ─▶ show() a table per figure │ --json PATH │ --plot PATH (PNG)
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from fastrl.errors import ConfigError
from fastrl.workers.machine import available_cores

PACKAGES = ("fastrl", "torch", "numpy", "gymnasium", "envpool")


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and the load at this moment."""
    return {"cpu": _cpu_model(), "cores": available_cores(), "load": os.getloadavg()[0]}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {
        **{name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class Spread:
    """What several repetitions of one measurement gave, in the unit of the figure."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, form: str = ",.2f") -> str:
        """As median (lowest to highest), each in a format specification."""
        if self.count == 1:
            return f"{self.median:{form}}"
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"

    def as_json(self) -> dict[str, float]:
        """The four numbers."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "repetitions": self.count,
        }


@dataclass(frozen=True)
class Table:
    """Figures as they are printed: the first column is left-aligned, the others right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Title, head and rows, in columns as wide as their widest entry."""
        everything = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in everything) for at in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            first = row[0].ljust(widths[0])
            rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            return "  ".join([first, *rest]).rstrip()

        return [self.title, *(f"  {line(row)}" for row in everything)]


Draw = Callable[[Any], None]
"""Draws into a matplotlib Axes that already has the title."""


@dataclass(frozen=True)
class Report:
    """The result of one bench."""

    bench: str
    """The sub-command."""
    flags: Sequence[str]
    """The command line after the sub-command, exactly."""
    units: dict[str, str]
    """What each unit in the tables and in `values` means."""
    tables: Sequence[Table]
    values: dict[str, Any]
    """The figures for a program: what goes into the JSON file beside the machine and the flags."""
    draw: Draw
    machine: dict[str, Any] = field(default_factory=machine)
    """Where nothing says otherwise, that of the moment at which the report is made; a bench that
    cares for the load before it began passes its own."""
    versions: dict[str, str] = field(default_factory=versions)
    date: str = field(default_factory=lambda: date.today().isoformat())

    @property
    def command(self) -> str:
        """What was run."""
        return shlex.join(["fastrl-bench", self.bench, *self.flags])

    def lines(self) -> list[str]:
        """All of it for a reader."""
        where = self.machine
        head = [
            f"machine   {where['cpu']}, {where['cores']} cores usable, load {where['load']:.1f}",
            "versions  " + ", ".join(f"{name} {v}" for name, v in self.versions.items()),
            f"command   {self.command}",
            *(f"units     {name}: {meaning}" for name, meaning in self.units.items()),
        ]
        return head + [line for table in self.tables for line in ("", *table.lines())]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "bench": self.bench,
            "command": self.command,
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "units": self.units,
            **self.values,
        }

    def deliver(self, json_path: Path | None, plot_path: Path | None) -> None:
        """Print the tables; write the files that were asked for. Raises ConfigError."""
        print("\n" + "\n".join(self.lines()), flush=True)
        if json_path is not None:
            text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
            write_text(json_path, text)
        if plot_path is not None:
            self._plot(plot_path)

    def _plot(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
        axes.set_title(self.command, fontsize=8, wrap=True)
        self.draw(axes)
        told = f"{self.machine['cpu']}, {self.machine['cores']} cores; " + ", ".join(
            f"{name} {version}" for name, version in self.versions.items()
        )
        figure.supxlabel(told, fontsize=6)
        try:
            figure.savefig(path, format="png", dpi=150)
        except OSError as error:
            raise ConfigError(f"--plot {path} cannot be written: {error.strerror}.") from error
        finally:
            plt.close(figure)


def check_outputs(json_path: Path | None, plot_path: Path | None) -> None:
    """Refuse now, rather than after minutes, files that cannot be written; raises ConfigError."""
    for flag, path in (("--json", json_path), ("--plot", plot_path)):
        if path is not None:
            write_text(path, "", flag)


def write_text(path: Path, text: str, flag: str = "--json") -> None:
    """Write a result; ConfigError names the flag where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}.") from error


def _cpu_model() -> str:
    """Name of the processor as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
