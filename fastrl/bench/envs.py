"""`fastrl-bench envs`: how fast the backend alone steps an environment, and our adapter beside it.

::

    for each repeat: for each group size:
        backend, one thread per process, a process on every core
        backend, one pool with a thread per core (envpool alone can)
        adapter, one thread per process, a process on every core: VectorEnv.step into arrays

No network, no queues: what the engine reaches is at most this.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastrl.bench import report
from fastrl.bench.command import check_numbers, engine_flags, given
from fastrl.bench.options import EnvsOptions
from fastrl.bench.report import Report, Spread, Table
from fastrl.bench.stepping import adapter_work, raw_backend, raw_work
from fastrl.bench.team import Team, Work
from fastrl.envs import describe
from fastrl.envs.options import EnvOptions
from fastrl.flags import parse_train

Side = Literal["backend", "pool", "adapter"]


@dataclass(frozen=True)
class Stepped:
    """One arrangement: who steps, and how many environments together."""

    side: Side
    group: int
    """Environments of a process; of the one pool: of each of its threads."""


@dataclass(frozen=True)
class Rates:
    """Of the whole machine, per second."""

    rows: Spread
    steps: Spread


def run(options: EnvsOptions) -> int:
    """Measure and report; return 0. Raises ConfigError."""
    check_numbers(options)
    report.check_outputs(options.json, options.plot)
    machine = report.machine()
    config = parse_train(engine_flags(["--env", options.env], options.flags))
    env_options = config.section(EnvOptions)
    describe(options.env, env_options)  # refuses before a process starts
    backend = raw_backend(options.env, env_options)
    cores = int(machine["cores"])
    tried = choose(backend, options.sizes, cores)
    print(f"{len(tried)} arrangements of {cores} cores, {options.repeats} times ...", flush=True)
    rates = measure(options, env_options, tried, cores, config.seed)
    report_of(options, backend, rates, machine).deliver(options.json, options.plot)
    return 0


def choose(backend: str | None, sizes: Sequence[int], cores: int) -> list[Stepped]:
    """Every arrangement there is for such a backend, by size."""
    sides: list[Side] = ["adapter"]
    if backend is not None:
        sides.insert(0, "backend")
    if backend == "envpool" and cores > 1:
        sides.insert(1, "pool")
    return [Stepped(side, size) for size in sorted(set(sizes)) for side in sides]


def measure(
    options: EnvsOptions,
    env_options: EnvOptions,
    tried: Sequence[Stepped],
    cores: int,
    seed: int,
) -> dict[Stepped, Rates]:
    """Measure every arrangement `options.repeats` times, interleaved."""
    rows: dict[Stepped, list[float]] = {stepped: [] for stepped in tried}
    steps: dict[Stepped, list[float]] = {stepped: [] for stepped in tried}
    with contextlib.ExitStack() as stack:
        places: dict[Stepped, tuple[Team, int]] = {}
        for threads, own in (
            (1, [stepped for stepped in tried if stepped.side != "pool"]),
            (cores, [stepped for stepped in tried if stepped.side == "pool"]),
        ):
            if own:
                build = functools.partial(_works, options.env, env_options, own, threads, seed)
                team = stack.enter_context(Team(build, cores, threads, options.seconds))
                places |= {stepped: (team, at) for at, stepped in enumerate(own)}
        for _ in range(options.repeats):
            for stepped in tried:
                team, at = places[stepped]
                paces = team.rates(at, options.seconds)
                together = stepped.group * (cores if stepped.side == "pool" else 1)
                rows[stepped].append(together * sum(pace.pieces for pace in paces))
                steps[stepped].append(sum(pace.steps for pace in paces))
    return {
        stepped: Rates(Spread.of(rows[stepped]), Spread.of(steps[stepped])) for stepped in tried
    }


def _works(
    env_id: str, options: EnvOptions, tried: Sequence[Stepped], threads: int, seed: int, copy: int
) -> list[Work]:
    return [
        adapter_work(env_id, options, stepped.group, seed + copy)
        if stepped.side == "adapter"
        else raw_work(env_id, options, stepped.group * threads, threads, seed + copy)
        for stepped in tried
    ]


def report_of(
    options: EnvsOptions,
    backend: str | None,
    rates: dict[Stepped, Rates],
    machine: dict[str, Any],
) -> Report:
    """The tables, the figures and the plot of what was measured."""
    cores = int(machine["cores"])
    raw = [rate for stepped, rate in rates.items() if stepped.side != "adapter"]
    ceiling = max((rate.rows.median for rate in raw), default=None)
    return Report(
        bench="envs",
        flags=given(options),
        units={
            "group": "environments that are stepped together by one thread",
            "row": "one environment stepped once, or only reset",
            "step": "a row whose action had effect; rows that only reset are none",
            "rate": f"of all {cores} cores together, with random actions",
        },
        tables=[
            _rows_table(options.sizes, backend, rates, cores),
            _steps_table(options.sizes, backend, rates, cores),
        ],
        values={
            "env": options.env,
            "backend": backend,
            "largest_raw_rows_per_second": ceiling,
            "rates": [
                {
                    "side": stepped.side,
                    "group": stepped.group,
                    "rows_per_second": rate.rows.as_json(),
                    "steps_per_second": rate.steps.as_json(),
                }
                for stepped, rate in rates.items()
            ],
        },
        draw=lambda axes: _draw(axes, backend, rates, cores),
        machine=machine,
    )


def _names(backend: str | None, cores: int) -> dict[Side, str]:
    return {
        "backend": f"{backend}, {cores} x 1 thread",
        "pool": f"{backend}, 1 x {cores} threads",
        "adapter": f"our adapter, {cores} x 1 thread",
    }


def _sides(rates: dict[Stepped, Rates]) -> list[Side]:
    there = {stepped.side for stepped in rates}
    return [side for side in _names(None, 1) if side in there]


def _rows_table(
    sizes: Sequence[int], backend: str | None, rates: dict[Stepped, Rates], cores: int
) -> Table:
    sides, names = _sides(rates), _names(backend, cores)
    rows = []
    for size in sorted(set(sizes)):
        found = {side: rates[Stepped(side, size)].rows for side in sides}
        row = [f"{size:,}", *(spread.text(",.0f") for spread in found.values())]
        if "backend" in found:
            row.append(f"{found['adapter'].median / found['backend'].median:.3f}")
        rows.append(row)
    share = (f"adapter / {backend}",) if "backend" in sides else ()
    return Table("Rows per second", ("group", *(names[side] for side in sides), *share), rows)


def _steps_table(
    sizes: Sequence[int], backend: str | None, rates: dict[Stepped, Rates], cores: int
) -> Table:
    sides, names = _sides(rates), _names(backend, cores)
    rows = [
        [f"{size:,}", *(rates[Stepped(side, size)].steps.text(",.0f") for side in sides)]
        for size in sorted(set(sizes))
    ]
    return Table("Steps per second", ("group", *(names[side] for side in sides)), rows)


def _draw(axes: Any, backend: str | None, rates: dict[Stepped, Rates], cores: int) -> None:
    names = _names(backend, cores)
    for side in _sides(rates):
        points = [(s.group, rate.rows) for s, rate in rates.items() if s.side == side]
        axes.errorbar(
            [group for group, _ in points],
            [spread.median for _, spread in points],
            (
                [spread.median - spread.low for _, spread in points],
                [spread.high - spread.median for _, spread in points],
            ),
            marker="o",
            capsize=3,
            label=names[side],
        )
    groups = sorted({stepped.group for stepped in rates})
    axes.set_xscale("log", base=2)
    axes.set_xticks(groups, [f"{group:,}" for group in groups])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("environments in a group")
    axes.set_ylabel("rows per second")
    axes.legend()
