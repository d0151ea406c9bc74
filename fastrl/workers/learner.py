"""The learner process: trains on full slots, publishes weights, returns the slots.

::

    pop full ─▶ batch ─▶ epochs x minibatches of columns: forward, V-trace, loss, backward, step
                                   ─▶ publish ─▶ return the slots
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import numpy as np
import torch

from fastrl.errors import ConfigError
from fastrl.monitor.accounts import Clock, Control
from fastrl.shm import Closed
from fastrl.workers.batch import BatchReader
from fastrl.workers.plan import Plan
from fastrl.workers.process import Lines
from fastrl.workers.reports import EndReport, MetricsReport, send
from fastrl.workers.saver import Saver
from fastrl.workers.shared import GROUP_MASK, Shared
from fastrl.workers.slot_queue import SlotQueue
from fastrl.workers.threads import ThreadGovernor
from fastrl.workers.update import Updater

REPORT_SECONDS = 0.5


class Learner:
    """Trains on batches of slots; owns the network, the optimiser and the publication of
    weights."""

    def __init__(self, shared: Shared, updater: Updater) -> None:
        plan = shared.plan
        self._shared = shared
        self._config = plan.config
        self._updater = updater
        self._weights = shared.weights()
        self._reader = BatchReader(shared, updater.chunk_rows)
        self._returned = np.zeros(plan.num_groups, np.int64)
        self._K = plan.slots_per_group
        self.steps = 0
        self.updates = 0
        self.version = self._publish()

    def _publish(self) -> int:
        return self._weights.publish(self._updater.flat_numpy())

    def check_finite(self) -> None:
        """Raise FloatingPointError where a parameter is not finite: nothing good comes after."""
        if not np.isfinite(self._updater.flat_numpy().sum()):
            raise FloatingPointError(
                f"The network's parameters are not finite after {self.steps} steps: a reward or "
                "an observation was not, or the learning rate is too high. The last checkpoint is "
                "kept."
            )

    def train(self, slots: np.ndarray, dropped: int = 0) -> dict[str, Any]:
        """Train `epochs` times on the kept rows of `slots`, publish, give the slots back.

        All that is counted, `dropped` too, is counted at the end: a learner that dies before leaves
        the batch to those that are unfinished.

        Returns the metrics of the update: numbers, or 0-dimensional tensors on the device.
        """
        config, control = self._config, self._shared.control
        started = time.perf_counter()
        batch = self._reader.read(slots, self.version, config.max_policy_lag)
        valid = ~batch.ignored.numpy()
        num_valid = int(valid.sum())
        num_kept = int(batch.kept.sum())
        metrics: dict[str, Any] = {}
        lag = batch.lag[valid]
        if num_valid:
            metrics["lag/mean"] = float(lag.mean())
            metrics["lag/p99"] = float(np.percentile(lag, 99))
            metrics["lag/max"] = float(lag.max())
            metrics["lag/masked_share"] = 1.0 - num_kept / num_valid
        left = 1.0 - self.steps / config.total_steps if config.lr_schedule == "linear" else 1.0
        learning_rate = config.learning_rate * max(0.0, left)
        if num_kept:
            metrics |= self._updater.update(batch, self._reader, learning_rate, self.updates)
            # Publish first: whoever gets a slot back acts with weights that have learned from it.
            # Not where nothing was learned: a version that is none would age every row in flight.
            self.version = self._publish()
        self.steps += num_valid
        self.updates += 1
        control.add(Control.TRAINED, num_kept)
        control.add(Control.MASKED, num_valid - num_kept)
        control.add(Control.DROPPED, dropped)
        control.store(Control.STEPS, self.steps)
        groups = slots // self._K
        for slot, group in zip(slots.tolist(), groups.tolist(), strict=True):
            through = int(self._shared.sampled_through[slot])
            self._shared.taken_through.store(group, through)
            self._returned[group] += 1
            self._shared.returned.store(group, int(self._returned[group]))
        metrics["charts/learning_rate"] = learning_rate
        metrics["perf/update_ms"] = (time.perf_counter() - started) * 1e3
        return metrics


class MeanMetrics:
    """Means (of names in /max: maxima) of updates' metrics; tensors stay on their device until
    the report."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {}
        self.updates = 0

    def add(self, metrics: dict[str, Any]) -> None:
        """Add one update."""
        self.updates += 1
        for name, value in metrics.items():
            self._rows.setdefault(name, []).append(value)

    def take(self) -> MetricsReport:
        """Return the means and start anew."""
        means = {}
        for name, values in self._rows.items():
            # The share of variance explained has no value where targets do not vary.
            numbers = [number for value in values if not math.isnan(number := float(value))]
            if not numbers:
                continue
            means[name] = max(numbers) if name.endswith("/max") else float(np.mean(numbers))
        report = MetricsReport(means, self.updates)
        self._rows, self.updates = {}, 0
        return report


def run(lines: Lines, fifo: Any) -> None:
    """Train until the engine closes, main asks to stop, or `total_steps` are reached."""
    config, spec, run_dir = lines.pipe.recv()
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device is {config.device}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices here; use --device cpu."
        )
    torch.manual_seed(config.seed)
    try:
        updater = Updater(spec, config)
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"There is no network for {config.env}: {reason}.") from error
    lines.pipe.send(("built", updater.num_params))
    plan: Plan = lines.pipe.recv()
    torch.set_num_threads(plan.learner_threads)
    shared = Shared(plan, lines.arena)
    learner = Learner(shared, updater)
    started = time.monotonic()

    def state() -> dict[str, Any]:
        # Never over a good checkpoint.
        learner.check_finite()
        return {
            **updater.state(),
            "updates": learner.updates,
            "version": learner.version,
            "seed": config.seed,
            "seconds": time.monotonic() - started,
        }

    saver = Saver(run_dir, config.save_every, state, fifo)
    means = MeanMetrics()
    with contextlib.suppress(Closed):
        _loop(shared, learner, saver, means, fifo)
    if means.updates:
        send(fifo, means.take(), timeout=1.0)
    problem = saver.save(learner.steps, learner.updates)
    if problem is not None:
        raise OSError(f"The last checkpoint could not be written: {problem}")
    send(fifo, EndReport(learner.steps), timeout=1.0)


def _loop(shared: Shared, learner: Learner, saver: Saver, means: MeanMetrics, fifo: Any) -> None:
    plan, control, clock = shared.plan, shared.control, shared.learner_clock
    inbox, outbox = shared.learner_inbox(), shared.learner_outbox()
    queue = SlotQueue(shared)
    words = np.zeros(plan.num_slots, np.uint64)
    sources = np.zeros(plan.num_slots, np.uint32)
    next_report = 0.0
    governor = ThreadGovernor(plan.learner_threads, plan.cores)
    updated, update_seconds = time.monotonic_ns(), 0.0
    clock.store(Clock.STARTED, time.monotonic_ns())
    while learner.steps < plan.config.total_steps and not control.load(Control.STOP):
        timeout = 0.0
        waited = 0
        while True:
            before = time.monotonic_ns()
            count = inbox.pop_many(words, sources, timeout=timeout)
            # Added at once: a batch may take longer to come than main's records are apart.
            spent = time.monotonic_ns() - before
            waited += spent
            clock.add(Clock.WAIT, spent)
            for word in words[:count].tolist():
                queue.look_at(word & GROUP_MASK)
            if len(queue) >= plan.batch_slots and count == 0:
                break
            timeout = 0.0 if len(queue) >= plan.batch_slots else 1.0
        full = len(queue)
        if plan.config.device == "cpu" and update_seconds > 0:
            # All slots but those of the last update: while it ran, every group came to a stop.
            everyone_waits = full >= plan.num_slots - plan.batch_slots
            share = waited / max(1, time.monotonic_ns() - updated)
            torch.set_num_threads(governor.after_update(everyone_waits, share, update_seconds))
        slots, dropped = queue.take(plan.batch_slots)
        metrics = learner.train(slots, dropped)
        updated, update_seconds = time.monotonic_ns(), metrics["perf/update_ms"] * 1e-3
        metrics["queue/full_slots"] = full
        metrics["perf/learner_threads"] = governor.threads
        means.add(metrics)
        groups = slots // plan.slots_per_group
        workers = (groups // plan.groups_per_worker).astype(np.uint32)
        if outbox.push_many(workers, groups.astype(np.uint64)) != len(groups):
            raise AssertionError("a returned ring is full; plan.layout sizes it")
        if time.monotonic() >= next_report:
            learner.check_finite()
            send(fifo, means.take())
            next_report = time.monotonic() + REPORT_SECONDS
        saver.save_if_due(learner.steps, learner.updates)
