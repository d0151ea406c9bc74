"""An engine that only samples, for a measured time: `rows_per_second`.

::

    start all ─▶ every group has stepped ─▶ warm-up ─▶ rows │ seconds │ rows ─▶ close, end

It starts its processes in the order of the supervisor; a death ends the measurement.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

import numpy as np

from fastrl.bench.peer import BenchFailed
from fastrl.bench.sample_bodies import BODIES, NUM_PARAMS
from fastrl.config import TrainConfig
from fastrl.envs import registered
from fastrl.monitor.accounts import CLOCK_SIZE, ROW_SHIFT, Clock
from fastrl.workers.crew import Crew, Interrupted, ProcessDied
from fastrl.workers.plan import Plan
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.shared import Shared, place
from fastrl.workers.signals import StopSignal, stop_signals
from fastrl.workers.supervisor import STOP_SECONDS, allow_descriptors
from fastrl.workers.travel import pack

START_SECONDS = 300.0
"""Time until every group has stepped: construction and stagger of all environments."""

WARM_UP_SECONDS = 1.0
"""At most, and no more than a measurement's half."""

LOOK_SECONDS = 0.05


class Stopped(Exception):
    """A signal came; the code that the program ends with."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Sampled(NamedTuple):
    """What one run of the engine did in its measured time."""

    rows_per_second: float
    """Rows of all environments, those that only reset among them."""
    batch_rows: float
    """Mean rows in a batch of inference."""
    rollout_wait: float
    """Mean share of the time that rollout processes waited for actions or slots."""
    inference_wait: float
    """Share of the time that inference waited for rows."""


def sample(config: TrainConfig, cores: int, seconds: float) -> Sampled:
    """Run an engine for `seconds` after its warm-up.

    Raises ConfigError where it is refused, BenchFailed where a process died, Stopped after a
    signal.
    """
    crew = Crew(BODIES)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_signals(crew.kill))
        stack.callback(crew.end)
        crew.wake = stop.wake
        try:
            shared = _start(crew, config, cores)
            _wait_until_all_step(crew, stop, shared)
            _wait(crew, stop, min(WARM_UP_SECONDS, seconds / 2))
            before = _Counts.take(shared)
            _wait(crew, stop, seconds)
            after = _Counts.take(shared)
        except Interrupted:
            raise Stopped(stop.exit_code) from None
        except ProcessDied as death:
            raise BenchFailed(str(death)) from death
        # Environments are closed by those who made them, where they can.
        shared.close()
        crew.wait_for_end(crew.members, STOP_SECONDS)
    return before.until(after)


def count_rows(shared: Shared) -> int:
    """Rows that all environments have played.

    A group's two counters are not read at one instant, so both are read until the first of them
    did not change meanwhile. Between its last row and its count of slots a group counts for a slot
    less; that takes it microseconds.
    """
    T, rows = shared.plan.rollout_length, 0
    filled = shared.filled.snapshot()
    unknown = np.ones(len(filled), np.bool_)
    while unknown.any():
        # Row T of a full slot is row 0 of the next one.
        row = (shared.progress.snapshot() >> ROW_SHIFT) % T
        now = shared.filled.snapshot()
        known = unknown & (now == filled)
        rows += int((filled[known] * T + row[known]).sum())
        unknown &= ~known
        filled = now
    return rows * shared.plan.envs_per_group


class _Counts(NamedTuple):
    """The counters at one moment; times in ns."""

    at: int
    rows: int
    batches: int
    batched: int
    rollout_wait: int
    inference_wait: int
    workers: int

    @classmethod
    def take(cls, shared: Shared) -> _Counts:
        rollouts = shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)
        inference = shared.inference_clock.snapshot()
        return cls(
            rows=count_rows(shared),
            at=time.monotonic_ns(),
            batches=int(inference[Clock.BATCHES]),
            batched=int(inference[Clock.ROWS]),
            rollout_wait=int(rollouts[:, [Clock.WAIT, Clock.WAIT_SLOT]].sum()),
            inference_wait=int(inference[Clock.WAIT]),
            workers=len(rollouts),
        )

    def until(self, later: _Counts) -> Sampled:
        elapsed = later.at - self.at
        return Sampled(
            rows_per_second=(later.rows - self.rows) / elapsed * 1e9,
            batch_rows=(later.batched - self.batched) / max(1, later.batches - self.batches),
            rollout_wait=(later.rollout_wait - self.rollout_wait) / elapsed / self.workers,
            inference_wait=(later.inference_wait - self.inference_wait) / elapsed,
        )


def _start(crew: Crew, config: TrainConfig, cores: int) -> Shared:
    """Start every process of the engine, rollout worker 0 and its environments first."""
    packed = pack(registered(config.env), "register_env")
    allow_descriptors(64 + 8 * int(config.workers))
    learner, inference = crew.launch_learner(), crew.launch_inference()
    first = crew.launch_rollout(RolloutStart(0, 0, config, packed, None))
    spec = crew.expect(first, "spec")
    crew.send(first, (config, 0))
    plan = Plan(config, spec, NUM_PARAMS, cores)
    plan.check_memory()
    crew.watch_forkserver(crew.expect(first, "constructed"))
    plan = place(plan, crew.arena)
    for child in (first, learner, inference):
        crew.send(child, plan)
    for worker in range(1, plan.num_workers):
        crew.raise_if_interrupted()
        crew.launch_rollout(RolloutStart(worker, 0, config, packed, plan))
    return Shared(plan, crew.arena)


def _wait_until_all_step(crew: Crew, stop: StopSignal, shared: Shared) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        stepped = shared.filled.snapshot() + (shared.progress.snapshot() >> ROW_SHIFT)
        if (stepped > 0).all():
            return
        if time.monotonic() > deadline:
            raise BenchFailed(
                f"{int((stepped == 0).sum())} of {len(stepped)} groups of environments had not "
                f"stepped after {START_SECONDS:.0f} s."
            )
        _wait(crew, stop, LOOK_SECONDS)


def _wait(crew: Crew, stop: StopSignal, seconds: float) -> None:
    """Let the engine run; raises ProcessDied, Interrupted or ConfigError (of a refusal)."""
    deadline = time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        crew.wait_for_events(stop.wake, rest)
        crew.raise_if_interrupted()
        crew.receive()
        if crew.forkserver_ended():
            raise crew.forkserver_death()
        for child in crew.members:
            if child.has_ended():
                crew.receive()
                raise ProcessDied(child.story())
