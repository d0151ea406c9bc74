"""The learner process: trains on full slots, publishes weights, returns the slots.

::

    pop full ─▶ batch ─▶ epochs x minibatches of columns: forward, V-trace, loss, backward, step
                                   ─▶ publish ─▶ return the slots
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fastrl import checkpoint
from fastrl.config import TrainConfig
from fastrl.envs.spec import EnvSpec
from fastrl.errors import ConfigError, NotFinite
from fastrl.models.registry import register_models
from fastrl.monitor.accounts import STOP_AFTER_FAILURE, Clock, Control, return_of
from fastrl.shm import Closed, Consumer, Counters
from fastrl.workers.batch import BatchReader
from fastrl.workers.diagnosis import diagnose
from fastrl.workers.formats import choose_dtype
from fastrl.workers.heap import HeapCare, keep_freed_memory
from fastrl.workers.journal import Journal
from fastrl.workers.learner_start import Built, LearnerStart
from fastrl.workers.plan import Plan, Start
from fastrl.workers.process import Lines
from fastrl.workers.reports import send
from fastrl.workers.run_folder import Origin
from fastrl.workers.shared import GROUP_MASK, Shared
from fastrl.workers.skipped import SkippedSteps
from fastrl.workers.slot_queue import SlotQueue
from fastrl.workers.threads import ThreadGovernor
from fastrl.workers.travel import unpack
from fastrl.workers.update import Updater

TELL_SECONDS = 60.0
"""In sync: time for main to take in a report, none of which may be missing in the records."""


class Learner:
    """Trains on batches of slots; owns the network, the optimiser and the publication of
    weights."""

    def __init__(
        self,
        shared: Shared,
        updater: Updater,
        tell: Callable[[Any], object] = lambda report: None,
    ) -> None:
        """Publish the first weights; `tell` takes a report of what is worth a notice."""
        plan = shared.plan
        self._shared = shared
        self.config = plan.config
        self._updater = updater
        self.start = plan.start
        self._weights = shared.weights()
        self._reader = BatchReader(shared, updater.chunk_rows)
        self._skipped = SkippedSteps(self.config.max_skipped, tell)
        self._returned = np.zeros(plan.num_groups, np.int64)
        self._K = plan.slots_per_group
        self.steps = plan.start.steps
        self.updates = plan.start.updates
        shared.control.store(Control.STEPS, self.steps)
        self._publish()

    def _publish(self) -> None:
        self.version = self._weights.publish(self._updater.flat_numpy())

    @property
    def control(self) -> Counters:
        """The run's control counters, see `Control`."""
        return self._shared.control

    def wait_a_moment(self) -> None:
        """For what others do; raises Closed where the engine has closed meanwhile."""
        self._shared.raise_if_closed()
        time.sleep(0.01)

    @property
    def updates_of_this_run(self) -> int:
        """Updates, those before a resume left out."""
        return self.updates - self.start.updates

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds; raises NotFinite as `check_finite`."""
        # Never over a good checkpoint.
        self.check_finite()
        plan, control = self._shared.plan, self._shared.control
        # In sync every group fills one slot per update; it may be filling the next one already.
        filled = self.updates_of_this_run if plan.sync else self._shared.filled.snapshot().max()
        return {
            **self._updater.state(),
            "updates": self.updates,
            "episodes": self.start.episodes + control.load(Control.EPISODES),
            "rows": self.start.rows + int(filled) * plan.rollout_length,
            "seed": self.config.seed,
            "seconds": self.start.seconds + time.monotonic() - plan.began,
            "score": return_of(control.load(Control.RETURN)),
        }

    def check_finite(self) -> None:
        """Raise NotFinite where a parameter is not finite: nothing good comes after."""
        if not np.isfinite(self._updater.flat_numpy().sum()):
            raise NotFinite(
                f"The network's parameters are not finite after {self.steps} steps: a reward or "
                "an observation was not, or the learning rate is too high. The last checkpoint is "
                "kept."
            )

    def train(self, slots: np.ndarray, dropped: int = 0) -> dict[str, Any]:
        """Train `epochs` times on the kept rows of `slots`, publish, give the slots back.

        All that is counted, `dropped` too, is counted at the end: a learner that dies before leaves
        the batch to those that are unfinished.

        Returns the metrics of the update: numbers, or 0-dimensional tensors on the device.

        Raises NotFinite where more than `max_skipped` optimiser steps in a row were skipped.
        """
        config, control = self.config, self._shared.control
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
        if num_kept:
            between = self._publish if config.publish == "step" else None
            metrics |= self._updater.update(
                batch, self._reader, self.updates, self.steps / config.total_steps, between
            )
            # Publish first: whoever gets a slot back acts with weights that have learned from it.
            # Not where nothing was learned: a version that is none would age every row in flight.
            self._publish()
            self._look_at_skipped()
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
        metrics["perf/update_ms"] = (time.perf_counter() - started) * 1e3
        return metrics

    def _look_at_skipped(self) -> None:
        """Have skipped optimiser steps counted and told; the slots of the batch are still ours."""
        updater = self._updater
        steps = updater.steps
        assert steps is not None

        def cause(step: int) -> str:
            columns = steps.columns[step]
            found = updater.backward(steps.batch, self._reader, columns)
            spec = self._shared.plan.spec
            finding = diagnose(spec, updater.network, steps.batch, self._reader, columns, found)
            return finding.describe(steps.symptom(step))

        # The weights went to the host just now: the device has done all that there was.
        self._skipped.after_update(self.updates + 1, steps.skipped.cpu().numpy(), cause)


def build(config: TrainConfig, spec: EnvSpec, origin: Origin | None) -> tuple[Updater, Built]:
    """Build the network and what trains it, restored from `origin` if any.

    Raises ConfigError where that cannot be.
    """
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device is {config.device}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices here; use --device cpu."
        )
    try:
        if config.dtype is None:
            config = replace(config, dtype=choose_dtype(spec, config))
        torch.manual_seed(config.seed)
        updater = Updater(spec, config)
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"There is no network for {config.env}: {reason}.") from error
    start, warnings = (Start(), []) if origin is None else _restore(updater, origin, config.env)
    return updater, Built(config, updater.num_params, start, warnings)


def _restore(updater: Updater, origin: Origin, env_id: str) -> tuple[Start, list[str]]:
    """Load the newest checkpoint of `origin` that can be; also return what is wrong with others."""
    accept = updater.load_state if origin.resume else updater.load_weights
    loaded = checkpoint.load_newest(origin.run_dir, env_id, accept)
    if not origin.resume:
        return Start(), loaded.warnings
    checkpoint.put_newer_aside(origin.run_dir, loaded.path)
    # best.pt may be newer than what could be loaded.
    of_the_best, warnings = checkpoint.best_score(origin.run_dir)
    scores = [s for s in (of_the_best, loaded.state["best_score"]) if s is not None]
    names = ("steps", "updates", "rows", "seconds", "episodes")
    counts = {name: loaded.state[name] for name in names}
    start = Start(**counts, best_score=max(scores, default=None))
    return start, loaded.warnings + warnings


def run(lines: Lines, fifo: Any) -> None:
    """Train until the engine closes, main asks to stop, or `total_steps` are reached."""
    keep_freed_memory()
    start: LearnerStart = lines.pipe.recv()
    # As everywhere in sync: the first weights, by a decomposition, depend on it as well.
    torch.set_num_threads(1)
    register_models(unpack(start.models, "register_model"))
    updater, built = build(start.config, start.spec, start.origin)
    lines.pipe.send(("built", built))
    plan: Plan = lines.pipe.recv()
    torch.set_num_threads(plan.learner_threads)
    shared = Shared(plan, lines.arena)
    tell = partial(send, fifo, timeout=TELL_SECONDS if plan.sync else 1.0)
    learner = Learner(shared, updater, tell)
    settle = partial(_settle, shared) if plan.sync else lambda through: None
    journal = Journal(learner, start.run_dir, tell, settle)
    gc.collect()
    gc.freeze()  # what is there will stay; no collection need look at it
    with contextlib.suppress(Closed):
        _loop(shared, learner, journal)
    journal.end(shared.control.load(Control.STOP) == STOP_AFTER_FAILURE)


def _loop(shared: Shared, learner: Learner, journal: Journal) -> None:
    plan, control, clock = shared.plan, shared.control, shared.learner_clock
    inbox, outbox = shared.learner_inbox(), shared.learner_outbox()
    queue = SlotQueue(shared)
    words = np.zeros(plan.num_slots, np.uint64)
    sources = np.zeros(plan.num_slots, np.uint32)
    governor = ThreadGovernor(plan.learner_threads, plan.cores)
    heap = HeapCare()
    updated, update_seconds = time.monotonic_ns(), 0.0
    clock.store(Clock.STARTED, time.monotonic_ns())
    while learner.steps < plan.config.total_steps and not control.load(Control.STOP):
        full_before, waited = _wait_for_slots(inbox, queue, plan.batch_slots, words, sources, clock)
        full = len(queue)
        if plan.config.device == "cpu" and update_seconds > 0 and not plan.sync:
            # All slots but those of the last update: while it ran, every group came to a stop.
            everyone_waits = full_before >= plan.num_slots - plan.batch_slots
            share = waited / max(1, time.monotonic_ns() - updated)
            torch.set_num_threads(governor.after_update(everyone_waits, share, update_seconds))
        slots, dropped = queue.take(plan.batch_slots)
        metrics = learner.train(slots, dropped)
        updated, update_seconds = time.monotonic_ns(), metrics["perf/update_ms"] * 1e-3
        metrics["queue/full_slots"] = full
        metrics["perf/learner_threads"] = governor.threads
        groups = slots // plan.slots_per_group
        workers = (groups // plan.groups_per_worker).astype(np.uint32)
        if outbox.push_many(workers, groups.astype(np.uint64)) != len(groups):
            raise AssertionError("a returned ring is full; plan.layout sizes it")
        reported = journal.after_update(metrics)
        heap.after_update()
        if reported and plan.sync and plan.config.stop_at_return is not None:
            _wait_for_judgement(shared, learner.updates_of_this_run)


def _wait_for_slots(
    inbox: Consumer,
    queue: SlotQueue,
    enough: int,
    words: np.ndarray,
    sources: np.ndarray,
    clock: Counters,
) -> tuple[int, int]:
    """Wait until the queue has that many slots, and take in those that are full by then.

    Returns how many were full before it waited for any, and the nanoseconds that it waited; `words`
    and `sources` are scratch.
    """
    waited = 0

    def look(timeout: float) -> int:
        nonlocal waited
        before = time.monotonic_ns()
        count = inbox.pop_many(words, sources, timeout=timeout)
        # Added at once: a batch may take longer to come than main's records are apart.
        spent = time.monotonic_ns() - before
        waited += spent
        clock.add(Clock.WAIT, spent)
        for word in words[:count].tolist():
            queue.look_at(word & GROUP_MASK)
        return count

    while look(0.0):
        pass
    full_before = len(queue)
    while len(queue) < enough:
        look(1.0)
    while look(0.0):
        pass
    return full_before, waited


def _wait_for_judgement(shared: Shared, through: int) -> None:
    """Wait until main has looked at the returns through that update, so that a run with a goal
    always ends after the same update, and what a checkpoint says of returns is always the same.

    Not for ever: a report may be lost on a machine that stands still.
    """
    control, deadline = shared.control, time.monotonic() + TELL_SECONDS
    while control.load(Control.JUDGED) < through and time.monotonic() < deadline:
        # Looked at before the engine closes, when main takes in no more.
        if control.load(Control.STOP):
            return
        shared.raise_if_closed()
        time.sleep(0.001)


def _settle(shared: Shared, through: int) -> None:
    with contextlib.suppress(Closed):  # the last checkpoint is written all the same
        _wait_for_judgement(shared, through)
