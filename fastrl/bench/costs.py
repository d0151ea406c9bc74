"""What the work of one step costs a core: the c's of docs/design.md, section 7.

Every core is busy at once (see `team`), with one process each or with fewer that have several
threads; all of them measure the same arrangement (a batch size, a dtype) over the same time::

    for each repeat: for each arrangement:  every core works for `seconds` ─▶ steps/s

    c = cores / sum of the rates;  of each kind of work the cheapest arrangement counts

Measured are the run's own environments (`fastrl.envs.make`, random actions, steps that had effect)
and the run's own network: one forward pass to act (encoder and heads, no sampling), one forward and
backward pass to learn (encoder in the learner's chunks, heads, no loss). The layout of images is
the encoder's own, channels-last.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fastrl.bench.report import Spread
from fastrl.bench.stepping import adapter_work
from fastrl.bench.team import Team, Work
from fastrl.config import TrainConfig
from fastrl.envs import EnvSpec
from fastrl.envs.options import EnvOptions
from fastrl.models.passes import forward_work, train_work

Kind = Literal["env", "inf", "train"]
KINDS: tuple[Kind, ...] = ("env", "inf", "train")


@dataclass(frozen=True)
class Arrangement:
    """One way of doing one kind of work."""

    kind: Kind
    size: int
    """Environments in the group, or rows in the batch."""
    dtype: str = ""
    """f32 or bf16; empty for environments."""
    threads: int = 1
    """Of each process; there are as many processes as fit on the cores."""

    def __str__(self) -> str:
        if self.kind == "env":
            return f"group of {self.size}"
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.dtype}, batch of {self.size}{threads}"


@dataclass(frozen=True)
class Cost:
    """Core time per step of one kind of work, in µs, in its cheapest arrangement."""

    arrangement: Arrangement
    spread: Spread

    @property
    def median(self) -> float:
        """The figure that counts."""
        return self.spread.median


Samples = dict[Arrangement, list[float]]
"""Core time per step in µs, one value per repetition."""


def efficiency(steps_per_second: float, work_us: float, cores: int) -> float:
    """Share of the cores' time that is spent on the work itself: rate x work per step / cores."""
    return steps_per_second * work_us * 1e-6 / cores


def work_per_step(costs: dict[Kind, Cost], epochs: int) -> float:
    """c_env + c_inf + epochs·c_train, in µs of one core."""
    return costs["env"].median + costs["inf"].median + epochs * costs["train"].median


def cheapest(samples: Samples) -> dict[Kind, Cost]:
    """Of each kind the arrangement with the lowest median of its samples (µs per step)."""
    costs: dict[Kind, Cost] = {}
    for arrangement, values in samples.items():
        cost = Cost(arrangement, Spread.of(values))
        best = costs.get(arrangement.kind)
        if best is None or cost.median < best.median:
            costs[arrangement.kind] = cost
    return costs


def arrangements(
    group_sizes: Iterable[int], batch_sizes: Iterable[int], dtypes: Iterable[str]
) -> list[Arrangement]:
    """List every arrangement of one thread to try, sizes ascending and without repetition."""
    sizes, dtypes = sorted(set(batch_sizes)), list(dtypes)
    tried = [Arrangement("env", size) for size in sorted(set(group_sizes))]
    for kind in KINDS[1:]:
        tried += [Arrangement(kind, size, dtype) for dtype in dtypes for size in sizes]
    return tried


class Meter:
    """Measures arrangements whenever it is asked; a context manager, whose processes wait in
    between."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        tried: Sequence[Arrangement],
        cores: int,
        seconds: float,
    ) -> None:
        """Start the processes.

        Args:
            config: resolved, of the run.
            spec: of its environment.
            tried: what to measure, each with at most `cores` threads.
            cores: how many of the cores that this process may use.
            seconds: of each measurement.
        """
        # As the learner has it; read when torch is loaded, so the processes must find it there.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._tried, self._seconds = tried, seconds
        self._teams: list[tuple[Team, list[Arrangement]]] = []
        with contextlib.ExitStack() as stack:
            for threads in sorted({arrangement.threads for arrangement in tried}):
                own = [arrangement for arrangement in tried if arrangement.threads == threads]
                build = functools.partial(_works, config, spec, own)
                team = stack.enter_context(Team(build, cores, threads, seconds))
                self._teams.append((team, own))
            self._stack = stack.pop_all()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def measure(self, repeats: int, only: Collection[Arrangement] | None = None) -> Samples:
        """Measure arrangements `repeats` times, interleaved, on all cores at once.

        Args:
            repeats: measurements of each.
            only: which; all where it is None.

        Returns:
            For each arrangement the core time of one step in µs, one value per repeat.
        """
        wanted = self._tried if only is None else only
        samples: Samples = {arrangement: [] for arrangement in self._tried if arrangement in wanted}
        for _ in range(repeats):
            for team, own in self._teams:
                for at, arrangement in enumerate(own):
                    if arrangement not in samples:
                        continue
                    rate = sum(pace.steps for pace in team.rates(at, self._seconds))
                    samples[arrangement].append(1e6 * team.copies * arrangement.threads / rate)
        return samples


def measure(
    config: TrainConfig,
    spec: EnvSpec,
    tried: Sequence[Arrangement],
    cores: int,
    seconds: float,
    repeats: int,
) -> Samples:
    """`Meter.measure`, once."""
    with Meter(config, spec, tried, cores, seconds) as meter:
        return meter.measure(repeats)


def _works(
    config: TrainConfig, spec: EnvSpec, tried: Sequence[Arrangement], copy: int
) -> list[Work]:
    """The works of one process; all arrangements have the same number of threads."""
    torch.set_num_threads(tried[0].threads)
    return [_work(arrangement, config, spec, copy) for arrangement in tried]


def _work(arrangement: Arrangement, config: TrainConfig, spec: EnvSpec, copy: int) -> Work:
    if arrangement.kind == "env":
        options = config.section(EnvOptions)
        return adapter_work(config.env, options, arrangement.size, seed=config.seed + copy)
    make_work = forward_work if arrangement.kind == "inf" else train_work
    return make_work(config, spec, arrangement.size, arrangement.dtype)
