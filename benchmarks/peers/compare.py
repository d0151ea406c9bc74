"""fastrl and other trainers on the same work in one run, each in an environment of its own.

``python benchmarks/peers/compare.py pong --seconds 60 --repeats 3`` (or ``cartpole``), with flags
of ``fastrl-train`` after ``--``::

    environments ─▶ for each repetition: fastrl, then each peer, one at a time ─▶ table, JSON, PNG

Measured are environment steps per second in steady state, from each trainer's own count. README.md
beside this file says what was set for each, and why.

Exit codes: 0 done, 1 a trainer failed (the table says which, and why), 2 refused.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from catalogue import FASTRL, FASTRL_DIFFERS, FASTRL_FLAGS, HERE, PEERS, Peer, peer
from peer_run import PeerFailed, PeerRun, run_peer
from runner_lines import FRAMES_PER_STEP
from venvs import VenvFailed, ensure

from fastrl.bench import report
from fastrl.bench.command import check_numbers, engine_flags, given, plan
from fastrl.bench.engine_run import EngineFailed, run_engine
from fastrl.bench.records import NoRate, learned_rate
from fastrl.bench.report import Report, Spread, Table
from fastrl.errors import ConfigError

Work = Literal["pong", "cartpole"]
KEYS = tuple(one.key for one in PEERS)
FASTRL_PACKAGES = ("fastrl", "torch", "envpool")


@dataclass(frozen=True)
class Options:
    """Train the same work with fastrl and with other trainers, and compare steps per second."""

    work: tyro.conf.Positional[Work]
    """What is trained."""
    seconds: float = 60.0
    """Measured time of each run, after its warm-up."""
    repeats: int = 3
    """Runs of each trainer, interleaved."""
    warm_up: float = 20.0
    """Seconds between the first steps learned from and the measured time."""
    peers: tuple[str, ...] = KEYS
    """Those to compare with; all by default."""
    venvs: Path = Path("~/.cache/fastrl-peers")
    """Folder of the peers' environments, which are made there where they are missing."""
    torch: str = "torch==2.13.0"
    """What pip installs first into each of them."""
    results: Path = HERE.parent / "results"
    """Folder of the JSON and PNG files."""
    flags: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()


@dataclass(frozen=True)
class PeerReport(Report):
    """A report whose command is this program's."""

    @property
    def command(self) -> str:
        """What was run."""
        return shlex.join(["python", "benchmarks/peers/compare.py", *self.flags])


Outcome = PeerRun | str
"""What a run has shown, or why it failed."""


@dataclass(frozen=True)
class Trainer:
    """One row of the table."""

    key: str
    title: str
    differs: str
    outcomes: list[Outcome]
    """One per repetition."""

    @property
    def runs(self) -> list[PeerRun]:
        """Those that gave a rate."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, PeerRun)]

    @property
    def failures(self) -> list[str]:
        """Why the others failed."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, str)]

    @property
    def rate(self) -> Spread | None:
        """Steps per second over the repetitions; None where all failed."""
        runs = self.runs
        return Spread.of([run.rate.mean for run in runs]) if runs else None

    @property
    def difference(self) -> str:
        """What its numbers were made with, and where its work is another."""
        versions = self.runs[-1].versions if self.runs else {}
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        return f"{self.title}{f' ({told})' if told else ''}: {self.differs}"

    def row(self, fastrl: Trainer) -> tuple[str, ...]:
        """Its line of the table."""
        if not self.runs:
            return (self.title, "", "", "failed", "")
        run = self.runs[-1]
        version = next(f"{name} {version}" for name, version in run.versions.items())
        ratio = ratio_of(fastrl, self)
        assert self.rate is not None
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return (
            self.title,
            version,
            f"{run.environments:,}",
            self.rate.text(",.0f") + failed,
            "" if ratio is None else ratio.text(".2f"),
        )

    def as_json(self, fastrl: Trainer) -> dict[str, Any]:
        """Everything about it, as plain values."""
        rate, ratio = self.rate, ratio_of(fastrl, self)
        return {
            "trainer": self.title,
            "differs": self.differs,
            "versions": self.runs[-1].versions if self.runs else {},
            "environments": self.runs[-1].environments if self.runs else None,
            "steps_per_second": None if rate is None else rate.as_json(),
            "fastrl_ratio": None if ratio is None else ratio.as_json(),
            "runs": [
                {"failed": outcome}
                if isinstance(outcome, str)
                else {"steps_per_second": dataclasses.asdict(outcome.rate)}
                for outcome in self.outcomes
            ],
        }


def ratio_of(fastrl: Trainer, other: Trainer) -> Spread | None:
    """fastrl's rate over another's, of the repetitions in which both gave one; or None."""
    ratios = [
        ours.rate.mean / theirs.rate.mean
        for ours, theirs in zip(fastrl.outcomes, other.outcomes, strict=True)
        if isinstance(ours, PeerRun) and isinstance(theirs, PeerRun)
    ]
    return Spread.of(ratios) if ratios else None


def tables(work: str, trainers: Sequence[Trainer]) -> list[Table]:
    """Figures, differences and, where there are any, failures; fastrl is the first trainer."""
    head = ("trainer", "version", "environments", "steps/s", "fastrl / it")
    made = [
        Table(
            f"{work}: median (lowest to highest)",
            head,
            [trainer.row(trainers[0]) for trainer in trainers],
        ),
        Table(
            "what differs",
            ("trainer (all versions): what it does otherwise than the work asks",),
            [(trainer.difference,) for trainer in trainers],
        ),
    ]
    failures = [
        (line,)
        for trainer in trainers
        for failure in trainer.failures
        for line in f"{trainer.title}: {failure}".splitlines()
    ]
    return (
        [*made, Table("failures", ("trainer: why, and its last lines",), failures)]
        if failures
        else made
    )


def drawing(trainers: Sequence[Trainer]) -> Callable[[Any], None]:
    """Return what draws a bar per trainer, with the spread of its repetitions."""

    def draw(axes: Any) -> None:
        for at, trainer in enumerate(reversed(trainers)):
            rate = trainer.rate
            if rate is None:
                axes.text(0, at, " failed", va="center")
                continue
            error = [[rate.median - rate.low], [rate.high - rate.median]]
            colour = "tab:orange" if trainer.key == FASTRL else "tab:blue"
            axes.barh(at, rate.median, xerr=error, color=colour, capsize=3)
            axes.text(rate.high, at, f" {rate.median:,.0f}", va="center")
        axes.set_yticks(range(len(trainers)), [t.title for t in reversed(trainers)])
        axes.margins(x=0.15)
        axes.set_xlabel("environment steps per second (median, lowest to highest)")

    return draw


def run_fastrl(flags: Sequence[str], options: Options) -> PeerRun:
    """Measure fastrl through its own metrics.jsonl; raises EngineFailed or NoRate."""
    run = run_engine(list(flags), options.warm_up, options.seconds)
    workers, envs = run.config.workers, run.config.envs_per_worker
    versions = report.versions()
    return PeerRun(
        learned_rate(run.records),
        max(1, int(workers)) * int(envs or 0),
        {name: versions[name] for name in FASTRL_PACKAGES},
    )


def measure(options: Options, flags: Sequence[str], chosen: Sequence[Peer]) -> list[Trainer]:
    """Run each trainer once per repetition, never two at once; fastrl is the first of the result.

    What fails is kept as the sentence that says why, and tried again in the next repetition.
    """
    pythons: dict[str, Path | str] = {}
    for one in chosen:
        try:
            pythons[one.key] = (
                ensure(options.venvs.expanduser() / one.key, one.requirements, options.torch)
                if one.own_environment
                else Path(sys.executable)
            )
        except VenvFailed as error:
            pythons[one.key] = str(error)
    work = options.work
    trainers = [Trainer(FASTRL, FASTRL, FASTRL_DIFFERS[work], [])]
    trainers += [Trainer(one.key, one.title, one.differs[work], []) for one in chosen]

    def run_once(trainer: Trainer) -> Outcome:
        try:
            if trainer.key == FASTRL:
                return run_fastrl(flags, options)
            python = pythons[trainer.key]
            if isinstance(python, str):
                return python
            return run_peer(python, peer(trainer.key), work, options.warm_up, options.seconds)
        except (EngineFailed, NoRate, PeerFailed) as error:
            return str(error)

    for repetition in range(1, options.repeats + 1):
        for trainer in trainers:
            outcome = run_once(trainer)
            trainer.outcomes.append(outcome)
            told = outcome.splitlines()[0] if isinstance(outcome, str) else str(outcome.rate)
            print(f"{repetition}/{options.repeats}  {trainer.title}: {told}", flush=True)
    return trainers


def report_of(
    options: Options, machine: dict[str, Any], flags: Sequence[str], trainers: Sequence[Trainer]
) -> PeerReport:
    """Put everything together."""
    frames = FRAMES_PER_STEP[options.work]
    words = [options.work, *given(options)[2:]]  # it begins with --work, which is positional
    return PeerReport(
        bench="peers",
        flags=words,
        units={
            "steps/s": "environment steps (actions that had effect) per second, learned from",
            "frames": f"steps x {frames}",
            "fastrl / it": "fastrl's steps/s over the trainer's, each in the same repetition",
        },
        tables=tables(options.work, trainers),
        values={
            "date": datetime.date.today().isoformat(),
            "work": options.work,
            "seconds": options.seconds,
            "warm_up": options.warm_up,
            "frames_per_step": frames,
            "fastrl_flags": list(flags),
            "trainers": {trainer.key: trainer.as_json(trainers[0]) for trainer in trainers},
        },
        draw=drawing(trainers),
        machine=machine,
    )


def result_stem(work: str, cpu: str) -> str:
    """Name of the result's files, without their endings: date, work and processor."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")
    return f"{datetime.date.today().isoformat()}-{work}-{slug}"


def choose(keys: Sequence[str]) -> list[Peer]:
    """Return the peers of these keys, in the catalogue's order; raises ConfigError."""
    for key in keys:
        if key not in KEYS:
            raise ConfigError(f"--peers: there is no peer {key!r}, only {', '.join(KEYS)}.")
    return [one for one in PEERS if one.key in keys]


def compare(options: Options) -> int:
    """Measure, print, write; return the exit code. Raises ConfigError."""
    check_numbers(options)
    chosen = choose(options.peers)
    machine = report.machine()
    flags = engine_flags(FASTRL_FLAGS[options.work], options.flags)
    plan(flags)  # refuses before anything is measured
    try:
        options.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--results {options.results} cannot be made: {error}.") from error
    trainers = measure(options, flags, chosen)
    stem = options.results / result_stem(options.work, machine["cpu"])
    made = report_of(options, machine, flags, trainers)
    made.deliver(stem.with_suffix(".json"), stem.with_suffix(".png"))
    print(f"\nwritten to {stem}.json and .png")
    return 1 if any(trainer.failures for trainer in trainers) else 0


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = tyro.cli(Options, prog="compare.py", args=list(arguments[:at]))
    try:
        return compare(dataclasses.replace(options, flags=tuple(arguments[at + 1 :])))
    except ConfigError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
