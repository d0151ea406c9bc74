"""How fast the engine trains, and which share of the machine does the work itself.

``python benchmarks/throughput.py pong`` or ``cartpole``, with flags of ``fastrl-train`` after
``--``::

    [sweep] ─▶ c's on every core ─▶ fastrl-train, measured after its warm-up ─▶ c's again ─▶ table

Efficiency is learned steps/s x (c_env + c_inf + epochs·c_train) / cores, as docs/design.md has it
in section 7. A *step* is one action of one environment that had effect; *frames* are steps times
the frame skip. c_env is that of random play, which in CartPole ends its episodes after some 20
steps. The figures mean something on a machine that does nothing else.

Exit codes: 0 done, 1 failed or an efficiency over 1.0, 2 refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from budget import (
    KINDS,
    Arrangement,
    Cost,
    Kind,
    arrangements,
    cheapest,
    efficiency,
    measure,
    work_per_step,
)
from run_records import Rate, learned_rate, mean_of, sampled_rate
from timed_run import EngineFailed, EngineRun, run_engine

from fastrl.cli import parse_train
from fastrl.config import TrainConfig
from fastrl.envs import EnvSpec, describe
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError
from fastrl.resolve import resolve
from fastrl.workers.machine import available_cores, has_bf16

PACKAGES = ("fastrl", "torch", "numpy", "envpool")
REPEATS = 3
"""Measurements of each arrangement before the engine's run, and again after it."""

SWEEP_SECONDS, SWEEP_WARM_UP = 15.0, 5.0
"""Longest measured time and warm-up of one arrangement of a sweep."""

COMMON_FLAGS = ("--total-steps", str(10**15), "--seed", "1", "--log-every", "0.5")
"""Before the caller's: of a repeated flag the last one counts."""

MEANS = {
    "wait/rollout_action": "share of time that rollout workers wait for actions",
    "wait/rollout_slot": "share of time that rollout workers wait for a free slot",
    "wait/inference": "share of time that inference waits for ready groups",
    "wait/learner": "share of time that the learner waits for full slots",
    "lag/mean": "policy lag, versions",
    "lag/max": "largest policy lag, versions",
    "lag/masked_share": "share of steps too old to train on",
    "inference/batch": "rows in a batch of inference",
    "perf/update_ms": "ms per update",
}
"""Metrics whose means over the measured records are reported."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What is measured under one name."""

    flags: tuple[str, ...]
    group_sizes: tuple[int, ...]
    """Environments per group that c_env is tried with, besides the run's own."""
    batch_sizes: tuple[int, ...]
    """Rows that c_inf and c_train are tried with."""
    sweep: tuple[tuple[str, ...], ...]
    """Flags of the arrangements that `--sweep` compares."""


def _spread(workers: int, envs_per_worker: int, *more: str) -> tuple[str, ...]:
    return ("--workers", str(workers), "--envs-per-worker", str(envs_per_worker), *more)


PROFILES = {
    "pong": Profile(
        ("--env", "atari:Pong", "--workers", "64", "--preset", "atari-throughput"),
        group_sizes=(1, 8, 32),
        batch_sizes=(64, 256, 1024),
        sweep=tuple(
            _spread(workers, envs)
            for workers, envs in ((2, 64), (2, 128), (16, 8), (16, 16), (64, 2), (64, 4))
        ),
    ),
    "cartpole": Profile(
        (
            *("--env", "envpool:CartPole-v1", *_spread(1, 8192), "--rollout-length", "32"),
            *("--epochs", "1", "--minibatches", "4"),
        ),
        group_sizes=(256, 1024, 4096, 16384),
        batch_sizes=(512, 2048, 8192, 32768),
        sweep=tuple(
            _spread(workers, envs, "--minibatches", str(minibatches))
            for workers, envs, minibatches in itertools.product((1, 2), (1024, 4096, 16384), (1, 4))
        ),
    ),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure the engine's rate and its share of what the machine could do.

    Flags of fastrl-train may follow after --.
    """

    profile: tyro.conf.Positional[Literal["pong", "cartpole"]]
    """What to train."""
    seconds: float = 60.0
    """Measured time of the engine, after its warm-up."""
    warm_up: float = 20.0
    """Seconds between the first batch learned from and the measured time."""
    cost_seconds: float = 0.5
    """Time of each measurement of c_env, c_inf and c_train."""
    sweep: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """First compare the profile's arrangements of workers and environments, and measure the
    best."""
    json: Path | None = None
    """File for all results."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Everything that one measurement found."""

    machine: dict[str, Any]
    versions: dict[str, str]
    flags: list[str]
    config: TrainConfig
    frame_skip: int
    samples: dict[Arrangement, list[float]]
    costs: dict[Kind, Cost]
    learned: Rate
    sampled: Rate
    means: dict[str, float]

    @property
    def work_us(self) -> float:
        """Core time that a step must cost, in µs."""
        return work_per_step(self.costs, self.config.epochs)

    @property
    def limit(self) -> float:
        """Steps per second of a machine that does nothing but that work."""
        return float(self.machine["cores"] / (self.work_us * 1e-6))

    @property
    def efficiency(self) -> float:
        """Share of the machine that does that work."""
        return efficiency(self.learned.mean, self.work_us, self.machine["cores"])

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; costs in µs of a core per step."""
        plain = dataclasses.asdict(dataclasses.replace(self.config, run_dir=None))
        return {
            "machine": self.machine,
            "versions": self.versions,
            "flags": self.flags,
            "config": {name: value for name, value in plain.items() if value is not None},
            "units": {
                "step": "one action of one environment that had effect",
                "frame": f"steps x {self.frame_skip}",
                "cost": "µs of one core per step",
            },
            "costs": {f"c_{kind}": dataclasses.asdict(self.costs[kind]) for kind in KINDS},
            "samples": [
                {**dataclasses.asdict(arrangement), "us_per_step": values}
                for arrangement, values in self.samples.items()
            ],
            "work_us_per_step": self.work_us,
            "limit_steps_per_second": self.limit,
            "learned_steps_per_second": dataclasses.asdict(self.learned),
            "sampled_steps_per_second": dataclasses.asdict(self.sampled),
            "learned_frames_per_second": self.learned.mean * self.frame_skip,
            "means": self.means,
            "efficiency": self.efficiency,
        }

    def lines(self) -> list[str]:
        """All of it for a reader."""
        cores, epochs = self.machine["cores"], self.config.epochs
        lines = [
            f"machine   {self.machine['cpu']}, {cores} cores usable, "
            f"load {self.machine['load_before']:.1f} before the start",
            "versions  " + ", ".join(f"{name} {v}" for name, v in self.versions.items()),
            f"flags     fastrl-train {shlex.join(self.flags)}",
            f"units     a step is one action of one environment that had effect; "
            f"frames = steps x {self.frame_skip}",
            "",
            "core time per step (µs)                 median   lowest  highest   (* cheapest)",
        ]
        best = {cost.arrangement for cost in self.costs.values()}
        for arrangement in self.samples:
            cost = cheapest({arrangement: self.samples[arrangement]})[arrangement.kind]
            mark = "*" if arrangement in best else " "
            lines.append(
                f"{mark} c_{arrangement.kind:<6} {arrangement!s:<26} {cost.median:10.3f} "
                f"{cost.low:8.3f} {cost.high:8.3f}"
            )
        lines += [
            "",
            f"work      c_env + c_inf + {epochs}·c_train = {self.work_us:.2f} µs, "
            f"so at most {self.limit:,.0f} steps/s on {cores} cores",
            f"learned   {self.learned}",
            f"sampled   {self.sampled}",
            f"frames    {self.learned.mean * self.frame_skip:,.0f} frames/s learned",
            *(
                f"{self.means[name]:9.3f} {text}"
                for name, text in MEANS.items()
                if name in self.means
            ),
            "",
            f"efficiency {self.efficiency:.3f} = {self.learned.mean:,.0f} x {self.work_us:.2f} µs "
            f"/ {cores}",
        ]
        return lines


def judge(result: Result) -> int:
    """Return the exit code: 1, with the sentence, where the result cannot be true."""
    if result.efficiency > 1.0:
        print(
            f"The efficiency is {result.efficiency:.3f}, over 1.0: the c's are wrong.",
            file=sys.stderr,
        )
        return 1
    return 0


def plan(flags: list[str]) -> tuple[TrainConfig, EnvSpec, int]:
    """Resolve flags as the engine will; returns the configuration, the spaces and the cores.

    Raises ConfigError where this program cannot measure such a run.
    """
    config = parse_train(flags)
    if config.run_dir is not None:
        raise ConfigError("--run-dir cannot be given: the measured run is a temporary one.")
    if config.device != "cpu":
        raise ConfigError(
            f"--device is {config.device}; the budget is one of cores, so it must be cpu."
        )
    spec, cores = describe(config.env, config.section(EnvOptions)), available_cores()
    return resolve(config, spec, cores, has_bf16()), spec, cores


def check_same(planned: TrainConfig, run: TrainConfig) -> None:
    """Raise EngineFailed where the run was another one than what the c's were measured for."""
    run = dataclasses.replace(run, run_dir=planned.run_dir)
    if run != planned:
        names = [f.name for f in dataclasses.fields(run)]
        other = [n for n in names if getattr(run, n) != getattr(planned, n)]
        raise EngineFailed(
            f"The run resolved {', '.join(other)} otherwise than planned; are two versions of "
            "fastrl installed?"
        )


def find_best(profile: Profile, flags: list[str], options: Options) -> tuple[str, ...]:
    """Run every arrangement of the profile for a short time; return the fastest one's flags.

    One that fails, or is too slow to show a rate, is told and passed over. Raises EngineFailed
    where none is left.
    """
    rates: dict[tuple[str, ...], Rate] = {}
    for arrangement in profile.sweep:
        seconds = min(options.seconds, SWEEP_SECONDS)
        warm_up = min(options.warm_up, SWEEP_WARM_UP)
        try:
            run = run_engine([*profile.flags, *arrangement, *flags], warm_up, seconds)
            rates[arrangement] = learned_rate(run.records)
        except (EngineFailed, ValueError) as error:
            print(f"sweep  {shlex.join(arrangement)}: {error}", flush=True)
        else:
            print(f"sweep  {shlex.join(arrangement)}: {rates[arrangement]}", flush=True)
    if not rates:
        raise EngineFailed("No arrangement of the sweep gave a rate.")
    return max(rates, key=lambda arrangement: rates[arrangement].mean)


def measure_all(options: Options, more_flags: list[str]) -> Result:
    """Measure costs, engine, costs; raises ConfigError, EngineFailed or ValueError."""
    profile = PROFILES[options.profile]
    load_before = os.getloadavg()[0]
    common = [*COMMON_FLAGS, *more_flags]
    plan([*profile.flags, *common])  # refuses before anything is measured
    best = find_best(profile, common, options) if options.sweep else ()
    flags = [*profile.flags, *best, *common]
    config, spec, cores = plan(flags)
    group_size = config.envs_per_worker // config.groups_per_worker
    dtypes = ("f32", "bf16") if has_bf16() else ("f32",)
    tried = arrangements((*profile.group_sizes, group_size), profile.batch_sizes, dtypes)

    def costs() -> dict[Arrangement, list[float]]:
        print(f"c_env, c_inf and c_train on {cores} cores ...", flush=True)
        return measure(config, spec, tried, cores, options.cost_seconds, REPEATS)

    before = costs()
    print(f"fastrl-train {shlex.join(flags)} ...", flush=True)
    run: EngineRun = run_engine(flags, options.warm_up, options.seconds)
    check_same(config, run.config)
    learned, sampled = learned_rate(run.records), sampled_rate(run.records)
    after = costs()
    samples = {arrangement: before[arrangement] + after[arrangement] for arrangement in tried}
    means = {name: mean_of(run.records, name) for name in MEANS}
    return Result(
        machine={"cpu": cpu_model(), "cores": cores, "load_before": load_before},
        versions={
            **{name: metadata.version(name) for name in PACKAGES},
            "python": platform.python_version(),
        },
        flags=flags,
        config=run.config,
        frame_skip=spec.frame_skip,
        samples=samples,
        costs=cheapest(samples),
        learned=learned,
        sampled=sampled,
        means={name: value for name, value in means.items() if value is not None},
    )


def cpu_model() -> str:
    """Name of the processor as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write; return the exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, more_flags = list(arguments[:at]), list(arguments[at + 1 :])
    options = tyro.cli(Options, prog="throughput.py", args=own)
    try:
        result = measure_all(options, more_flags)
    except ConfigError as error:
        print(f"throughput.py: {error}", file=sys.stderr)
        return 2
    except (EngineFailed, ValueError) as error:
        print(f"throughput.py: {error}", file=sys.stderr)
        return 1
    print()
    print("\n".join(result.lines()))
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n")
    return judge(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
