"""Learning curves of finished or running runs: return against steps and against wall time.

``python benchmarks/curve.py RUN [RUN ...] --out curve.png --threshold -15``

The return of a record is the mean over the episodes that ended in its interval, as the environment
pays it (unclipped). The curve is the plain mean of the last ``--window`` such records, however many
episodes each had; a threshold is reached at the first record at which a full window's mean is at
least that.

Exit codes: 0 done, 2 refused.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

from fastrl.bench.records import read_records
from fastrl.config_file import load_config

RETURN = "charts/episodic_return"


class Curve(NamedTuple):
    """Returns of one run; arrays f64 [n], one entry per record in which episodes ended."""

    run: str
    env: str
    seed: int
    steps: np.ndarray
    """Environment steps learned from."""
    seconds: np.ndarray
    """Wall time since the run's start."""
    returns: np.ndarray

    @property
    def label(self) -> str:
        """For the legend: what was trained, and with which seed."""
        return f"{self.env}, seed {self.seed}"


def read_curve(run: Path) -> Curve:
    """Read a run's folder; ValueError says what it lacks."""
    config = load_config(run / "config.toml")
    rows = [(r["steps"], r["seconds"], r[RETURN]) for r in read_records(run) if RETURN in r]
    if not rows:
        raise ValueError(f"{run} has no finished episode yet.")
    steps, seconds, returns = np.array(rows, np.float64).T
    return Curve(str(run), config.env, config.seed, steps, seconds, returns)


def smooth(returns: np.ndarray, window: int) -> np.ndarray:
    """Mean of each entry and up to `window` - 1 before it; f64 [n] from f64 [n]."""
    total = np.concatenate([[0.0], np.cumsum(returns)])
    end = np.arange(1, len(returns) + 1)
    begin = np.maximum(end - window, 0)
    mean: np.ndarray = (total[end] - total[begin]) / (end - begin)
    return mean


def first_reached(returns: np.ndarray, window: int, threshold: float) -> int | None:
    """Index of the first entry whose full window has a mean of at least `threshold`, or None."""
    reached = smooth(returns, window) >= threshold
    reached[: window - 1] = False
    return int(reached.argmax()) if reached.any() else None


def summary(curve: Curve, window: int, threshold: float | None) -> dict[str, Any]:
    """One row of the table."""
    mean = smooth(curve.returns, window)
    row: dict[str, Any] = {
        "run": curve.run,
        "env": curve.env,
        "seed": curve.seed,
        "steps": int(curve.steps[-1]),
        "seconds": float(curve.seconds[-1]),
        "last_return": float(mean[-1]),
        "best_return": float(mean[window - 1 :].max()) if len(mean) >= window else None,
    }
    if threshold is not None:
        index = first_reached(curve.returns, window, threshold)
        row["steps_to_threshold"] = None if index is None else int(curve.steps[index])
        row["seconds_to_threshold"] = None if index is None else float(curve.seconds[index])
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Aligned lines, numbers to the right; a dash where there is no value."""
    names = list(rows[0])
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return [
        "  ".join(
            cell.ljust(width) if name in ("run", "env") else cell.rjust(width)
            for name, cell, width in zip(names, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def draw(curves: list[Curve], window: int, threshold: float | None, out: Path) -> None:
    """Write the picture: records as faint dots, their means as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    longest = max(float(curve.seconds[-1]) for curve in curves)
    unit, scale = ("minutes", 60.0) if longest > 180 else ("seconds", 1.0)
    for number, curve in enumerate(curves):
        color = f"C{number % 10}"
        for axis, x in zip(axes, (curve.steps, curve.seconds / scale), strict=True):
            axis.plot(x, curve.returns, ".", color=color, alpha=0.2, markersize=3)
            axis.plot(x, smooth(curve.returns, window), color=color, label=curve.label)
    for axis, name in zip(axes, ("environment steps", f"wall time, {unit}"), strict=True):
        axis.set_xlabel(name)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        if threshold is not None:
            axis.axhline(threshold, color="0.4", linewidth=1, linestyle="--")
    axes[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0].set_ylabel(f"episodic return, mean of {window} records")
    axes[0].legend(loc="best", fontsize="small")
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw the learning curves of runs, and say when each reached a return."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path
    """File of the picture; its suffix names the format."""
    json: Path | None = None
    """File for the table."""
    threshold: float | None = None
    """Return whose first reaching is reported."""
    window: int = 10
    """Records in the mean."""


def main(arguments: Sequence[str]) -> int:
    """Read, draw, print, write; return the exit code."""
    options = tyro.cli(Options, prog="curve.py", args=list(arguments))
    try:
        if not options.runs or options.window < 1:
            raise ValueError("name at least one run, and a --window of at least 1 record.")
        curves = [read_curve(run) for run in options.runs]
        draw(curves, options.window, options.threshold, options.out)
    except (OSError, ValueError) as error:
        print(f"curve.py: {error}", file=sys.stderr)
        return 2
    rows = [summary(curve, options.window, options.threshold) for curve in curves]
    print("\n".join(table(rows)))
    print(f"returns are means of {options.window} records", end="")
    print("" if options.threshold is None else f"; the threshold is {options.threshold:g}")
    if options.json is not None:
        report = {"window": options.window, "threshold": options.threshold, "runs": rows}
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
