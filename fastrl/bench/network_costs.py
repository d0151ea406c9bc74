"""What `infer` and `learn` share: the cost of one pass of the run's network, in every arrangement.

::

    flags ─▶ the network ─▶ dtypes x batches x threads, on busy cores (see `costs`) ─▶ report
"""

from __future__ import annotations

from typing import Any, Literal

from fastrl.bench import report
from fastrl.bench.command import check_numbers, dtypes, engine_flags, given, plan
from fastrl.bench.costs import Arrangement, Samples, cheapest, measure
from fastrl.bench.options import CostOptions
from fastrl.bench.report import Report, Spread, Table
from fastrl.errors import ConfigError

NetworkKind = Literal["inf", "train"]
BENCHES: dict[NetworkKind, str] = {"inf": "infer", "train": "update"}
PASSES: dict[NetworkKind, str] = {
    "inf": "one forward pass: encoder and heads",
    "train": "one forward and backward pass: encoder and heads, once per epoch",
}


def run(kind: NetworkKind, options: CostOptions) -> int:
    """Measure and report; return 0. Raises ConfigError."""
    check_numbers(options)
    report.check_outputs(options.json, options.plot)
    machine = report.machine()
    config, spec, cores = plan(engine_flags(["--env", options.env], options.flags))
    tried = choose(kind, options, cores)
    print(f"{len(tried)} arrangements of {cores} cores, {options.repeats} times ...", flush=True)
    samples = measure(config, spec, tried, cores, options.seconds, options.repeats)
    report_of(kind, options, samples, machine).deliver(options.json, options.plot)
    return 0


def choose(kind: NetworkKind, options: CostOptions, cores: int) -> list[Arrangement]:
    """Every arrangement that the options ask for; raises ConfigError where one cannot be had."""
    for threads in options.threads:
        if threads > cores:
            raise ConfigError(
                f"--threads has {threads}, but this process may use {cores} cores only."
            )
    return [
        Arrangement(kind, batch, dtype, threads)
        for dtype in dtypes()
        for threads in sorted(set(options.threads or (1, cores)))
        for batch in sorted(set(options.batches))
    ]


def report_of(
    kind: NetworkKind, options: CostOptions, samples: Samples, machine: dict[str, Any]
) -> Report:
    """The table, the figures and the plot of what was measured."""
    cores = int(machine["cores"])
    best = cheapest(samples)[kind]
    spreads = {arrangement: Spread.of(values) for arrangement, values in samples.items()}
    return Report(
        bench=BENCHES[kind],
        flags=given(options),
        units={
            "pass": PASSES[kind],
            "step": "one row of a batch",
            "µs": "of one core per step, with every core busy: cores used / (steps/s)",
            "ms": "from the start of a batch to its end",
        },
        tables=[_table(spreads, best.arrangement, cores)],
        values={
            "env": options.env,
            "costs": [
                _as_json(arrangement, spread, cores) for arrangement, spread in spreads.items()
            ],
            "cheapest": _as_json(best.arrangement, best.spread, cores),
        },
        draw=lambda axes: _draw(axes, spreads),
        machine=machine,
    )


def _copies(arrangement: Arrangement, cores: int) -> int:
    return cores // arrangement.threads


def _as_json(arrangement: Arrangement, spread: Spread, cores: int) -> dict[str, Any]:
    return {
        "dtype": arrangement.dtype,
        "batch": arrangement.size,
        "threads": arrangement.threads,
        "processes": _copies(arrangement, cores),
        "core_us_per_step": spread.as_json(),
    }


def _table(spreads: dict[Arrangement, Spread], best: Arrangement, cores: int) -> Table:
    rows = []
    for arrangement, spread in spreads.items():
        milliseconds = spread.median / arrangement.threads * arrangement.size * 1e-3
        rows.append(
            (
                arrangement.dtype,
                f"{arrangement.size:,}",
                f"{_copies(arrangement, cores)} x {arrangement.threads}",
                spread.text(",.3f"),
                f"{milliseconds:,.3f}",
                "*" if arrangement == best else "",
            )
        )
    columns = ("dtype", "batch", "processes x threads", "µs per step", "ms per batch", "cheapest")
    return Table("Cost of a pass", columns, rows)


def _draw(axes: Any, spreads: dict[Arrangement, Spread]) -> None:
    curves: dict[tuple[str, int], list[tuple[Arrangement, Spread]]] = {}
    for arrangement, spread in spreads.items():
        key = (arrangement.dtype, arrangement.threads)
        curves.setdefault(key, []).append((arrangement, spread))
    for (dtype, threads), points in curves.items():
        sizes = [arrangement.size for arrangement, _ in points]
        medians = [spread.median for _, spread in points]
        around = (
            [spread.median - spread.low for _, spread in points],
            [spread.high - spread.median for _, spread in points],
        )
        name = f"{dtype}, {threads} thread{'s' if threads > 1 else ''}"
        axes.errorbar(sizes, medians, around, marker="o", capsize=3, label=name)
    batches = sorted({arrangement.size for arrangement in spreads})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in a batch")
    axes.set_ylabel("µs of a core per step")
    axes.legend()
