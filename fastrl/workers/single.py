"""`--workers 0`: the bodies of all processes in this one, called in turn. For a debugger.

::

    T times: inference.run(all groups) ─▶ worker.step(each group);   then learner.train(all slots)

The bodies, the arena and the order are those of `sync`, so the bits are the same; there are no
rings, no reports that travel, and an exception is a plain traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastrl.config import DEFAULT_EVAL_EPISODES
from fastrl.envs import VectorEnv, describe
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError
from fastrl.models.acting import ActingPolicy
from fastrl.monitor.accounts import Control
from fastrl.monitor.console import Console
from fastrl.monitor.writer import MetricWriter
from fastrl.resolve import resolve
from fastrl.shm import Arena
from fastrl.workers.evaluator import Evaluator
from fastrl.workers.group_envs import make_first_group, make_group
from fastrl.workers.inference import Inference
from fastrl.workers.journal import Journal
from fastrl.workers.learner import Learner, build
from fastrl.workers.machine import available_cores, has_bf16
from fastrl.workers.plan import Plan
from fastrl.workers.record import Record
from fastrl.workers.reports import (
    EvaluationRequest,
    MetricsReport,
    NoticeReport,
    SavedReport,
)
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.run_folder import RunFolder, locked, open_run_folder
from fastrl.workers.shared import Shared, place
from fastrl.workers.signals import StopSignal, stop_signals
from fastrl.workers.slot_queue import SlotQueue
from fastrl.workers.supervisor import tell_plan


def train_in_this_process(folder: RunFolder, console: Console) -> int:
    """Train until the end; return the exit code (0 done, 130 interrupted, 143 terminated).

    Raises ConfigError where the run is refused, and whatever goes wrong later as it is.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_thread())
        # A program that trains in passing keeps its own random numbers.
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stop = stack.enter_context(stop_signals(lambda: None, debugger=True))
        # Before a module of the user's can change the current folder.
        folder = dataclasses.replace(folder, path=folder.path.absolute())
        stack.enter_context(locked(folder))
        spec = describe(folder.config.env, folder.config.section(EnvOptions))
        config = resolve(folder.config, spec, available_cores(), has_bf16())
        updater, built = build(config, spec, folder.origin)
        config = built.config
        plan = Plan(config, spec, built.num_params, available_cores(), built.start, started)
        plan.check_memory()
        envs = [make_first_group(config, built.start.rows, generation=0)]
        close_envs = stack.enter_context(contextlib.ExitStack())
        close_envs.callback(_close, envs)
        envs += [make_group(config, g, built.start.rows, 0) for g in range(1, plan.num_groups)]
        arena = Arena.create()
        stack.callback(arena.close)
        plan = place(plan, arena)
        stack.enter_context(open_run_folder(folder, config))
        tell_plan(console, folder, plan, built)
        shared = Shared(plan, arena)
        writer = MetricWriter(folder.path, on_error=console.say)
        stack.callback(writer.close)
        if folder.exists:
            writer.resume(plan.start.steps, plan.start.seconds)
        run = _Run(shared, Record(shared, writer, console), console, folder.path)
        learner = Learner(shared, updater, run.take_report)
        journal = Journal(learner, folder.path, run.take_report)
        inference = Inference(shared, ActingPolicy(spec, config))
        worker = RolloutWorker(shared, 0, envs)
        close_envs.pop_all()
        stack.callback(worker.close)  # which may have made others meanwhile
        try:
            stopped_by = run.loop(inference, worker, learner, journal, stop)
        except SystemExit as error:
            raise RuntimeError(f"The environment ended the program: {error!r}.") from error
        except ConfigError as error:
            # Of an environment that breaks its word: the run has begun, so it is refused no more.
            raise RuntimeError(str(error)) from error
    return stop.exit_code if stopped_by == stop.name else 0


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _close(envs: list[VectorEnv]) -> None:
    for env in envs:
        env.close()


class _Run:
    """The loop, and main's side of what the learner reports."""

    def __init__(self, shared: Shared, record: Record, console: Console, run_dir: Path) -> None:
        self._shared = shared
        self._record = record
        self._console = console
        self._goal_reached = False
        config = shared.plan.config
        self._evaluator = Evaluator(
            run_dir, config.seed, config.eval_episodes or DEFAULT_EVAL_EPISODES, config.keep_best
        )

    def take_report(self, report: Any) -> None:
        """Take in a report as it is made."""
        if isinstance(report, MetricsReport):
            self._record.add(report)
            self._goal_reached = self._record.goal_reached()
        elif isinstance(report, SavedReport):
            self._console.say(report.describe())
        elif isinstance(report, NoticeReport):
            self._console.say(report.text)
        elif isinstance(report, EvaluationRequest):
            try:
                self._record.add_evaluation(self._evaluator.play(report))
            except (ConfigError, OSError) as error:
                self._console.say(f"the evaluation after {report.steps:,} steps is lost: {error}")
            self._shared.control.add(Control.EVALUATED, 1)

    def loop(
        self,
        inference: Inference,
        worker: RolloutWorker,
        learner: Learner,
        journal: Journal,
        stop: StopSignal,
    ) -> str:
        """Collect and learn in turn; return what ended the run."""
        plan = self._shared.plan
        groups = np.arange(plan.num_groups)
        queue = SlotQueue(self._shared)
        for group in groups.tolist():
            worker.begin(group)
        stopped_by = ""
        while not stopped_by:
            if stop.number is not None:
                stopped_by = stop.name
                self._console.say(f"{stopped_by}: saving; once more ends at once")
            elif self._goal_reached:
                stopped_by = "stop_at_return"
            elif learner.steps >= plan.config.total_steps:
                stopped_by = "total_steps"
            elif self._collect(inference, worker, groups, stop):
                for group in groups.tolist():
                    queue.look_at(group)
                metrics = learner.train(*queue.take(plan.batch_slots))
                for group in groups.tolist():
                    worker.resume(group)
                journal.after_update(metrics)
                self._record.tick()
        journal.end(evaluate=stop.number is None)
        self._console.say(f"the learner has finished after {learner.steps:,} steps")
        self._record.finish(stopped_by, learner.updates_of_this_run)
        return stopped_by

    def _collect(
        self, inference: Inference, worker: RolloutWorker, groups: np.ndarray, stop: StopSignal
    ) -> bool:
        """Fill one slot of every group; False where a signal came before."""
        for _ in range(self._shared.plan.rollout_length):
            if stop.number is not None:
                return False
            inference.refresh()
            inference.run(groups)
            for group in groups.tolist():
                worker.step(group)
        return True
