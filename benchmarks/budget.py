"""What the work of one step costs a core: the c's of docs/design.md, section 7.

One process per core, pinned to it, one thread each; all of them measure the same arrangement (a
batch size, a dtype) over the same time::

    for each repeat: for each arrangement:  barrier ─▶ every core works for `seconds` ─▶ steps/s

    c = cores / sum of the cores' rates;  of each kind of work the cheapest arrangement counts

Measured are the run's own environments (`fastrl.envs.make`, random actions, steps that had effect)
and the run's own network: one forward pass to act (encoder and heads, no sampling), one forward and
backward pass to learn (encoder in the learner's chunks, heads, no loss). The layout of images is
the encoder's own, channels-last.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from synthetic_rows import sample_observations
from torch import Tensor

from fastrl.config import TrainConfig
from fastrl.envs import EnvSpec, StepOut, make
from fastrl.envs.options import EnvOptions
from fastrl.envs.spec import sample_actions
from fastrl.models.acting import chunk_rows
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.policy import ActorCritic

Kind = Literal["env", "inf", "train"]
KINDS: tuple[Kind, ...] = ("env", "inf", "train")
WARM_UP_SECONDS = 0.2
PLANNED_STEPS = 64
BARRIER_SECONDS = 600.0
"""A core that is not there after so long has died; the others then give up."""

Work = Callable[[], int]
"""Does one piece of work and returns the steps in it that had effect."""


@dataclass(frozen=True)
class Arrangement:
    """One way of doing one kind of work."""

    kind: Kind
    size: int
    """Environments in the group, or rows in the batch."""
    dtype: str = ""
    """f32 or bf16; empty for environments."""

    def __str__(self) -> str:
        if self.kind == "env":
            return f"group of {self.size}"
        return f"{self.dtype}, batch of {self.size}"


@dataclass(frozen=True)
class Cost:
    """Core time per step of one kind of work, in µs, in its cheapest arrangement."""

    arrangement: Arrangement
    median: float
    low: float
    high: float


def efficiency(steps_per_second: float, work_us: float, cores: int) -> float:
    """Share of the cores' time that is spent on the work itself: rate x work per step / cores."""
    return steps_per_second * work_us * 1e-6 / cores


def work_per_step(costs: dict[Kind, Cost], epochs: int) -> float:
    """c_env + c_inf + epochs·c_train, in µs of one core."""
    return costs["env"].median + costs["inf"].median + epochs * costs["train"].median


def cheapest(samples: dict[Arrangement, list[float]]) -> dict[Kind, Cost]:
    """Of each kind the arrangement with the lowest median of its samples (µs per step)."""
    costs: dict[Kind, Cost] = {}
    for arrangement, values in samples.items():
        cost = Cost(arrangement, statistics.median(values), min(values), max(values))
        best = costs.get(arrangement.kind)
        if best is None or cost.median < best.median:
            costs[arrangement.kind] = cost
    return costs


def arrangements(
    group_sizes: Iterable[int], batch_sizes: Iterable[int], dtypes: Iterable[str]
) -> list[Arrangement]:
    """List every arrangement to try, sizes ascending and without repetition."""
    sizes, dtypes = sorted(set(batch_sizes)), list(dtypes)
    tried = [Arrangement("env", size) for size in sorted(set(group_sizes))]
    for kind in KINDS[1:]:
        tried += [Arrangement(kind, size, dtype) for dtype in dtypes for size in sizes]
    return tried


def measure(
    config: TrainConfig,
    spec: EnvSpec,
    tried: list[Arrangement],
    cores: int,
    seconds: float,
    repeats: int,
) -> dict[Arrangement, list[float]]:
    """Measure every arrangement `repeats` times on `cores` cores at once.

    Args:
        config: resolved, of the run.
        spec: of its environment.
        tried: what to measure.
        cores: how many of the cores that this process may use.
        seconds: of each measurement.
        repeats: measurements of each arrangement, interleaved.

    Returns:
        For each arrangement the core time of one step in µs, one value per repeat.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        cores, spawn, initializer=_keep_barrier, initargs=(spawn.Barrier(cores),)
    ) as pool:
        # Every task waits in the barrier for all others, so each gets a process of its own.
        futures = [
            pool.submit(_measure_core, core, config, spec, tried, seconds, repeats)
            for core in sorted(os.sched_getaffinity(0))[:cores]
        ]
        concurrent.futures.wait(futures)
        # The first to fail broke the barrier, and is the one that knows why.
        failures = [failure for future in futures if (failure := future.exception())]
        failures.sort(key=lambda failure: isinstance(failure, threading.BrokenBarrierError))
        if failures:
            raise failures[0]
        rates = np.array([future.result() for future in futures])  # [cores, repeats, arrangements]
    microseconds = 1e6 * cores / rates.sum(axis=0)
    return dict(zip(tried, microseconds.T.tolist(), strict=True))


_barrier: Any = None


def _keep_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _measure_core(
    core: int,
    config: TrainConfig,
    spec: EnvSpec,
    tried: list[Arrangement],
    seconds: float,
    repeats: int,
) -> list[list[float]]:
    """Return steps per second of this core, [repeats][arrangements]."""
    try:
        # Before anything is built: envpool's thread inherits the core.
        os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
        works = [_work(arrangement, config, spec, core) for arrangement in tried]
        for work in works:
            _rate(work, min(seconds, WARM_UP_SECONDS), at_least=2)
        rates: list[list[float]] = []
        for _ in range(repeats):
            rates.append([])
            for work in works:
                _barrier.wait(BARRIER_SECONDS)
                rates[-1].append(_rate(work, seconds))
        return rates
    except BaseException:
        _barrier.abort()
        raise


def _rate(work: Work, seconds: float, at_least: int = 1) -> float:
    steps = pieces = 0
    started = time.perf_counter()
    while True:
        steps += work()
        pieces += 1
        elapsed = time.perf_counter() - started
        if elapsed >= seconds and pieces >= at_least:
            return steps / elapsed


def _work(arrangement: Arrangement, config: TrainConfig, spec: EnvSpec, core: int) -> Work:
    if arrangement.kind == "env":
        return env_work(config, spec, arrangement.size, seed=config.seed + core)
    make_work = forward_work if arrangement.kind == "inf" else train_work
    return make_work(config, spec, arrangement.size, arrangement.dtype)


def env_work(config: TrainConfig, spec: EnvSpec, num_envs: int, seed: int) -> Work:
    """One random step of a group of `num_envs` environments; reset rows are no steps."""
    env = make(config.env, config.section(EnvOptions), num_envs, first_env_index=0, seed=seed)
    rng = np.random.default_rng(seed)
    planned = [
        {key: sample_actions(leaf, num_envs, rng) for key, leaf in spec.action.items()}
        for _ in range(PLANNED_STEPS)
    ]
    out = StepOut(
        obs={
            key: np.zeros((num_envs, *leaf.shape), leaf.dtype)
            for key, leaf in spec.observation.items()
        },
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        episode_over=np.zeros(num_envs, np.bool_),
    )
    env.reset(out.obs)
    num_resets, turn = 0, 0

    def work() -> int:
        nonlocal num_resets, turn
        effective = num_envs - num_resets
        env.step(planned[turn % PLANNED_STEPS], out)
        turn += 1
        num_resets = int(np.count_nonzero(out.terminated | out.truncated))
        return effective

    return work


def _chunks(obs: dict[str, Tensor], rows: int, size: int) -> list[dict[str, Tensor]]:
    return [{key: leaf[at : at + size] for key, leaf in obs.items()} for at in range(0, rows, size)]


def _cat(chunks: list[Tensor]) -> Tensor:
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def forward_work(config: TrainConfig, spec: EnvSpec, rows: int, dtype: str) -> Work:
    """One forward pass over `rows` rows, as `fastrl.models.acting` does it."""
    network = ActorCritic(spec, config.section(ModelConfig)).requires_grad_(False)
    encoder = network.encoder
    if dtype == "bf16":
        encoder = CastCopy(FlatParameters(network), network.encoder, torch.bfloat16).module
    obs = sample_observations(spec, rows, np.random.default_rng(0))
    chunks = _chunks(obs, rows, chunk_rows(spec))

    @torch.no_grad()
    def work() -> int:
        network.heads(_cat([encoder(chunk) for chunk in chunks]))
        return rows

    return work


def train_work(config: TrainConfig, spec: EnvSpec, rows: int, dtype: str) -> Work:
    """One forward and backward pass over `rows` rows, as `fastrl.workers.update` does it.

    The gradient at the heads is a constant in place of a loss; gradients add up, as nobody looks.
    """
    network = ActorCritic(spec, config.section(ModelConfig))
    FlatParameters(network)  # the gradients are views of one tensor, as the learner's are
    obs = sample_observations(spec, rows, np.random.default_rng(0))
    chunks = _chunks(obs, rows, chunk_rows(spec))
    autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if dtype == "bf16":
        autocast = torch.autocast("cpu", torch.bfloat16)

    def forward() -> list[Tensor]:
        with autocast:
            features = _cat([network.encode(chunk) for chunk in chunks])
        output = network.heads(features)
        return [*output.params.values(), output.value]

    gradients = [torch.full_like(tensor, 1e-3) for tensor in forward()]

    def work() -> int:
        torch.autograd.backward(forward(), gradients)
        return rows

    return work
