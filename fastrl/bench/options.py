"""The sub-commands of `fastrl-bench` and their options; light, so that parsing imports nothing big.

Sub-command `x` is `fastrl.bench.x.run(options) -> int`, which returns the exit code and raises
ConfigError for what it refuses.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro

from fastrl.errors import ConfigError
from fastrl.flags import declared_as, described, parse
from fastrl.option_types import shown

EngineFlags = Annotated[tuple[str, ...], tyro.conf.Suppress]


@dataclass(frozen=True)
class Outputs:
    """Where a bench's figures go besides the terminal."""

    json: Path | None = None
    """Write the figures there as JSON."""
    plot: Path | None = None
    """Draw them there as PNG."""


@dataclass(frozen=True)
class SanityOptions:
    """Train on small environments that each fail for one reason, and say which passed."""

    seeds: tuple[int, ...] = (1,)
    """Every environment is trained once per seed."""
    only: tuple[str, ...] = ()
    """Names of the environments to take; all by default."""
    json: Path | None = None
    """Write the results there as well."""


@dataclass(frozen=True)
class EnvsOptions(Outputs):
    """Raw stepping: how fast the backend alone steps an environment, the engine's ceiling."""

    env: str = "atari:Pong"
    """The environment, as for fastrl-train --env."""
    sizes: tuple[int, ...] = (1, 2, 4, 8, 32, 128)
    """Environments of a group that are tried."""
    seconds: float = 2.0
    """Of each measurement."""
    repeats: int = 5
    """Measurements of each arrangement, interleaved."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class RingsOptions(Outputs):
    """Queues between processes: ours, faster-fifo, multiprocessing.Queue and a pipe, in one run."""

    words: int = 200_000
    """8-byte words per measurement of throughput."""
    trips: int = 5_000
    """Round trips per measurement; a fifth as many where both sides sleep, 1 ms each."""
    repeats: int = 5
    """Measurements of each queue, interleaved."""


@dataclass(frozen=True)
class SampleOptions(Outputs):
    """The whole engine with a random policy, in rows: its share of raw stepping."""

    env: str = "atari:Pong"
    """The environment, as for fastrl-train --env."""
    seconds: float = 10.0
    """Of each measurement."""
    repeats: int = 3
    """Measurements of both sides, in turn."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class CostOptions(Outputs):
    """What one step of a network costs a core."""

    env: str = "atari:Pong"
    """The environment whose network it is, as for fastrl-train --env."""
    batches: tuple[int, ...] = (16, 64, 256, 1024)
    """Rows of a batch that are tried."""
    threads: tuple[int, ...] = ()
    """Threads that are tried; by default 1 and the cores."""
    seconds: float = 0.5
    """Of each measurement."""
    repeats: int = 5
    """Measurements of each arrangement, interleaved."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class InferOptions(CostOptions):
    """The forward pass: what acting costs per step, by dtype, batch and threads."""


@dataclass(frozen=True)
class UpdateOptions(CostOptions):
    """The training pass: what learning costs per step, by dtype, batch and threads."""


@dataclass(frozen=True)
class TrainOptions(Outputs):
    """The whole engine: steps per second, and the share of the cores that does the work itself."""

    profile: Literal["pong", "cartpole"] = "pong"
    """The flags to begin with."""
    seconds: float = 60.0
    """Measured time of the engine, after its warm-up."""
    warm_up: float = 20.0
    """Seconds between the first batch learned from and the measured time."""
    cost_seconds: float = 0.5
    """Of each measurement of the work's cost."""
    repeats: int = 3
    """Measurements of each cost before the engine's run, and again after it."""
    sweep: bool = False
    """First try several arrangements of workers and environments for a short time, and take the
    fastest."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class ScaleOptions(Outputs):
    """Few workers or many over the same environments: rate, memory of its own, start-up time."""

    env: str = "atari:Pong"
    """The environment, as for fastrl-train --env."""
    envs: int = 256
    """Environments in all."""
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of workers that are tried."""
    seconds: float = 20.0
    """Measured time of each run, after its warm-up."""
    warm_up: float = 10.0
    """Seconds between the first batch learned from and the measured time."""
    repeats: int = 1
    """Runs of each number of workers, interleaved."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class PublishOptions(Outputs):
    """Weights: from publication to the first use by inference."""

    params: tuple[int, ...] = (10_000, 1_700_000)
    """Sizes of the network, in parameters."""
    versions: int = 200
    """Publications per measurement."""
    repeats: int = 5
    """Measurements of each size, interleaved."""


@dataclass(frozen=True)
class ChaosOptions:
    """Kill and stop processes of many short trainings at random moments, and see what comes of it.

    Exit code 1 where a run did anything but what docs/reliability.md promises.
    """

    kills: int = 200
    """Signals that reach a process, over all runs: SIGKILL, SIGSEGV, and SIGSTOP with SIGCONT."""
    seed: int | None = None
    """What the runs and their faults are drawn from; run number n from this number plus n. Drawn
    and printed if unset."""
    minutes: float = 60.0
    """No run begins after this time."""
    write: Path | None = None
    """Markdown page whose section of this bench is replaced by the result."""
    json: Path | None = None
    """Write the result there, with all that was sent and the output of the runs that failed."""


@dataclass(frozen=True)
class SoakOptions(Outputs):
    """Train for long, and see whether memory, open files, threads and efficiency stay.

    Exit code 1 where one of them does not.
    """

    profile: Literal["pong", "cartpole"] = "pong"
    """pong: 16 workers. cartpole: 4,096 environments."""
    seconds: float = 600.0
    """From the first batch learned from to the end."""
    write: Path | None = None
    """Markdown page whose section of this profile is replaced by the result."""
    flags: EngineFlags = ()


@dataclass(frozen=True)
class LearnOptions:
    """Train tasks with their presets until their thresholds: steps and wall time, and the curves.

    Exit code 1 where a seed does not reach its threshold in its time, or its final checkpoint not
    95 % of it.
    """

    tasks: tuple[str, ...] = ("cartpole", "acrobot")
    """Of: cartpole, acrobot, lunarlander, pendulum, minigrid, halfcheetah, pong, breakout."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Each task is trained once with each, one after the other."""
    patience: float = 2.0
    """A run is given this many times its task's time: how late it comes is worth knowing."""
    beside: tuple[Path, ...] = ()
    """JSON files of other trainers' curves, from benchmarks/peers/learn.py, for the same plots."""
    folder: Path | None = None
    """Folder for a JSON file and a PNG of the curves per task."""
    redraw: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train nothing: the runs are those of --folder's JSON files, with their command and machine,
    and so is what stood beside them, but for what --beside names anew."""
    add: tuple[Path, ...] = ()
    """JSON files as --folder gets them, of the same training with other seeds: theirs are shown as
    well, with the command that made them, and stay in --folder's file."""
    write: Path | None = None
    """Markdown page whose section of each task is replaced by the result; it shows the PNGs."""
    flags: EngineFlags = ()


COMMANDS: dict[str, type] = {
    "sanity": SanityOptions,
    "envs": EnvsOptions,
    "rings": RingsOptions,
    "sample": SampleOptions,
    "infer": InferOptions,
    "update": UpdateOptions,
    "train": TrainOptions,
    "scale": ScaleOptions,
    "publish": PublishOptions,
    "chaos": ChaosOptions,
    "soak": SoakOptions,
    "learn": LearnOptions,
}


def parse_bench(arguments: Sequence[str]) -> Any:
    """Parse a command line without the flags of fastrl-train; raises as `fastrl.flags.parse`, and
    ConfigError where it names no bench."""
    first = arguments[0] if arguments else "--help"
    if first not in COMMANDS and not first.startswith("-"):
        close = difflib.get_close_matches(first, COMMANDS, n=1)
        nearest = f"perhaps you meant {close[0]}" if close else f"there are {', '.join(COMMANDS)}"
        raise ConfigError(f"There is no bench {shown(first)}; {nearest}.")
    kinds = {name: described(kind) for name, kind in COMMANDS.items()}
    choices = [Annotated[kind, tyro.conf.subcommand(name=name)] for name, kind in kinds.items()]
    parsed = parse(
        Union[tuple(choices)],  # noqa: UP007 - they are known only here
        "fastrl-bench",
        arguments,
        [COMMANDS[first]] if first in COMMANDS else [],
        "Measure, and check, what this installation does on this machine. Where a bench trains or "
        "steps an environment, flags of fastrl-train may follow after --.",
    )
    return declared_as(COMMANDS[first], parsed)


def run(options: Any) -> int:
    """Run the bench that these options are of."""
    name = next(name for name, kind in COMMANDS.items() if type(options) is kind)
    code: int = importlib.import_module(f"fastrl.bench.{name}").run(options)
    return code
