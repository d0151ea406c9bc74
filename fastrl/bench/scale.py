"""`fastrl-bench scale`: few workers or many over the same environments.

::

    for each repeat: for each number of workers:
        fastrl-train ─▶ steps/s, memory of each rollout process, seconds until all of them step
        a bare process with one worker's environments ─▶ their memory, CPU time to construct them

What is left of the memory when the environments' own is taken away is what a worker costs; what is
left of the start, when constructing and importing torch (learner and inference do) are spread over
the cores, is the engine's own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastrl.bench import report
from fastrl.bench.command import check_numbers, engine_flags, given, plan
from fastrl.bench.engine_run import EngineFailed, EngineRun, run_engine, seconds_until_all_step
from fastrl.bench.footprint import Footprint, footprint, torch_import_seconds
from fastrl.bench.options import ScaleOptions
from fastrl.bench.records import NoRate, learned_rate
from fastrl.bench.report import Report, Spread, Table
from fastrl.config import TrainConfig
from fastrl.errors import ConfigError
from fastrl.flags import parse_train

MB = 1e6
TORCH_IMPORTS = 2
"""Processes of a run that import torch: the learner and inference."""


@dataclass(frozen=True)
class Scaled:
    """What was measured with one number of workers; one entry per repetition, or per worker."""

    workers: int
    groups_per_worker: int
    envs_per_worker: int
    rates: list[float] = field(default_factory=list)
    private: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    def add(self, run: EngineRun, bare: Footprint) -> None:
        """Take in one repetition."""
        self.rates.append(learned_rate(run.records).mean)
        self.private.extend(run.private)
        start = seconds_until_all_step(run.log)
        self.starts.extend([] if start is None else [start])
        self.footprints.append(bare)

    @property
    def env_bytes(self) -> float:
        """Memory of one worker's environments by themselves."""
        return float(np.median([bare.private_bytes for bare in self.footprints]))

    @property
    def construct_seconds(self) -> float:
        """CPU time of constructing the environments of all workers."""
        return self.workers * float(np.median([f.construct_seconds for f in self.footprints]))

    @property
    def aside_bytes(self) -> float:
        """Memory of its own of one worker, environments aside."""
        return float(np.median(self.private)) - self.env_bytes

    def start_floor(self, torch_seconds: float, cores: int) -> float:
        """Seconds that constructing and importing torch take where they are all that is done."""
        return (self.construct_seconds + TORCH_IMPORTS * torch_seconds) / cores


def run(options: ScaleOptions) -> int:
    """Measure and report; return the exit code: 1 where a run failed. Raises ConfigError."""
    check_numbers(options)
    report.check_outputs(options.json, options.plot)
    machine = report.machine()
    runs = choose(options)
    scaled = {
        n: Scaled(n, config.groups_per_worker, config.envs_per_worker)
        for n, (_, config) in runs.items()
    }
    torch_seconds: list[float] = []
    try:
        for _ in range(options.repeats):
            torch_seconds.append(torch_import_seconds())
            for workers, (flags, config) in runs.items():
                print(f"fastrl-train {shlex.join(flags)} ...", flush=True)
                engine = run_engine(flags, options.warm_up, options.seconds)
                scaled[workers].add(engine, footprint(config))
    except (EngineFailed, NoRate) as error:
        print(f"fastrl-bench: {error}", file=sys.stderr)
        return 1
    found = report_of(options, list(scaled.values()), torch_seconds, machine)
    found.deliver(options.json, options.plot)
    return 0


def choose(options: ScaleOptions) -> dict[int, tuple[list[str], TrainConfig]]:
    """Flags and configuration by number of workers, of those that divide the environments evenly.

    Raises ConfigError where none does, or where the user's flags say otherwise.
    """
    runs: dict[int, tuple[list[str], TrainConfig]] = {}
    for workers in sorted(set(options.workers)):
        if options.envs % workers:
            print(f"left out: {options.envs} environments are not shared evenly by {workers}")
            continue
        share = options.envs // workers
        spread = ["--workers", str(workers), "--envs-per-worker", str(share)]
        flags = engine_flags(["--env", options.env, *spread], options.flags)
        groups = parse_train(flags).groups_per_worker  # unset: the engine fits it to the share
        if groups and share % groups:
            print(
                f"left out: {workers} workers would have {share} environments each, which are not "
                f"shared evenly by {groups} groups"
            )
            continue
        config = plan(flags).config
        if (config.env, config.workers, config.envs_per_worker) != (options.env, workers, share):
            raise ConfigError(
                "--env, --workers and --envs-per-worker cannot be given after --: "
                "scale decides them by its own --env, --envs and --workers."
            )
        runs[workers] = (flags, config)
    if not runs:
        raise ConfigError(
            f"None of --workers {' '.join(map(str, options.workers))} shares --envs {options.envs} "
            "evenly over its groups; name others."
        )
    return runs


def further_worker_bytes(scaled: Sequence[Scaled]) -> float | None:
    """Slope of all rollout processes' memory over their number, environments aside.

    None where there is only one number of workers.
    """
    if len(scaled) < 2:
        return None
    workers = [one.workers for one in scaled]
    slope, _ = np.polyfit(workers, [one.workers * one.aside_bytes for one in scaled], 1)
    return float(slope)


def report_of(
    options: ScaleOptions,
    scaled: Sequence[Scaled],
    torch_seconds: Sequence[float],
    machine: dict[str, Any],
) -> Report:
    """The tables, the figures and the plot of what was measured."""
    cores = int(machine["cores"])
    torch = Spread.of(torch_seconds)
    slope = further_worker_bytes(scaled)
    return Report(
        bench="scale",
        flags=given(options),
        units={
            "step": "one action of one environment that had effect, learned from",
            "MB": "10^6 bytes that a rollout process alone has in use (private pages); the arena, "
            "which all share, is left out",
            "environments'": "MB that the same environments take in a bare process",
            "start": "seconds from the command to the first step of the last worker",
            "floor": "CPU seconds of constructing all environments and of importing torch twice, "
            f"divided by {cores} cores",
        },
        tables=[
            _table(scaled, torch.median, cores),
            Table(
                "Besides",
                ("figure", "value"),
                [
                    (
                        "memory per further worker, environments aside",
                        "-" if slope is None else f"{slope / MB:,.2f} MB",
                    ),
                    ("CPU time of importing torch", f"{torch.text()} s"),
                ],
            ),
        ],
        values={
            "env": options.env,
            "envs": options.envs,
            "runs": [_as_json(one, torch.median, cores) for one in scaled],
            "bytes_per_further_worker": slope,
            "torch_import_cpu_seconds": torch.as_json(),
        },
        draw=lambda axes: _draw(axes, scaled),
        machine=machine,
    )


def _as_json(one: Scaled, torch_seconds: float, cores: int) -> dict[str, Any]:
    return {
        "workers": one.workers,
        "groups_per_worker": one.groups_per_worker,
        "envs_per_worker": one.envs_per_worker,
        "steps_per_second": Spread.of(one.rates).as_json(),
        "private_bytes_per_worker": Spread.of(one.private).as_json(),
        "environment_bytes_per_worker": one.env_bytes,
        "aside_bytes_per_worker": one.aside_bytes,
        "start_seconds": Spread.of(one.starts).as_json() if one.starts else None,
        "construct_cpu_seconds": one.construct_seconds,
        "start_floor_seconds": one.start_floor(torch_seconds, cores),
    }


def _table(scaled: Sequence[Scaled], torch_seconds: float, cores: int) -> Table:
    rows = [
        (
            f"{one.workers}",
            f"{one.groups_per_worker} x {one.envs_per_worker // one.groups_per_worker}",
            Spread.of(one.rates).text(",.0f"),
            Spread.of([size / MB for size in one.private]).text(",.1f"),
            f"{one.env_bytes / MB:,.1f}",
            f"{one.aside_bytes / MB:,.1f}",
            Spread.of(one.starts).text(",.1f") if one.starts else "-",
            f"{one.start_floor(torch_seconds, cores):,.1f}",
        )
        for one in scaled
    ]
    columns = (
        *("workers", "groups x environments", "steps/s", "MB per worker", "environments'", "aside"),
        *("start, s", "floor, s"),
    )
    return Table("The same environments over few workers and many", columns, rows)


def _draw(axes: Any, scaled: Sequence[Scaled]) -> None:
    workers = [one.workers for one in scaled]
    rates = [Spread.of(one.rates) for one in scaled]
    around = (
        [spread.median - spread.low for spread in rates],
        [spread.high - spread.median for spread in rates],
    )
    medians = [spread.median for spread in rates]
    line = axes.errorbar(workers, medians, around, marker="o", capsize=3, label="steps/s")
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [str(n) for n in workers])
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("workers")
    axes.set_ylabel("steps per second")
    memory = axes.twinx()
    aside = [one.workers * one.aside_bytes / MB for one in scaled]
    (other,) = memory.plot(workers, aside, "s--", color="tab:orange", label="MB, all workers")
    memory.set_ylim(min(0.0, min(aside)), 1.15 * memory.get_ylim()[1])
    memory.set_ylabel("MB of all workers, environments aside")
    axes.legend(handles=[line, other])
