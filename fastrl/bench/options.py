"""The sub-commands of `fastrl-bench` and their options; light, so that parsing imports nothing big.

Sub-command `x` is `fastrl.bench.x.run(options) -> int`, which returns the exit code and raises
ConfigError for what it refuses.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

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
class LearnOptions(CostOptions):
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


COMMANDS: dict[str, Callable[..., Any]] = {
    "sanity": SanityOptions,
    "envs": EnvsOptions,
    "rings": RingsOptions,
    "sample": SampleOptions,
    "infer": InferOptions,
    "learn": LearnOptions,
    "train": TrainOptions,
    "scale": ScaleOptions,
    "publish": PublishOptions,
}


def run(options: Any) -> int:
    """Run the bench that these options are of."""
    name = next(name for name, kind in COMMANDS.items() if type(options) is kind)
    code: int = importlib.import_module(f"fastrl.bench.{name}").run(options)
    return code
