"""The supervisor: main's own body. It starts, watches and stops every process, and writes what one
sees.

It is never on the path of a step. Every child is watched by its pidfd, so that a death is known in
milliseconds: a rollout worker is replaced, any other death ends the run with its traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import time
from collections.abc import Collection

from fastrl.config import TrainConfig
from fastrl.envs import registered
from fastrl.errors import ConfigError
from fastrl.models.registry import registered_models
from fastrl.monitor.accounts import CLOCK_SIZE, Clock, Control
from fastrl.monitor.console import Console, table
from fastrl.monitor.writer import MetricWriter
from fastrl.option_types import as_declared
from fastrl.resolve import resolve
from fastrl.workers.children import Child
from fastrl.workers.crew import Crew, Interrupted, ProcessDied
from fastrl.workers.learner_start import Built, LearnerStart
from fastrl.workers.machine import available_cores, has_bf16
from fastrl.workers.plan import Plan
from fastrl.workers.record import Record
from fastrl.workers.reports import EndReport, MetricsReport, NoticeReport, SavedReport
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.run_folder import RunFolder, choose_run_folder, locked, open_run_folder
from fastrl.workers.shared import Shared, place
from fastrl.workers.signals import StopSignal, stop_signals
from fastrl.workers.travel import pack

MAX_RESTARTS = 10
"""Rollout workers replaced in one run; the next death ends it."""

SAVE_SECONDS = 60.0
"""Time for the learner to finish its batch and save, once it has been told to stop."""

STOP_SECONDS = 5.0
"""Time for the other processes to close their environments."""

TICK_SECONDS = 0.25


class Supervisor:
    """One training run, from the first process to the last; used once, from main's main thread."""

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self._folder = folder
        self._console = console
        env, model = folder.config.env, folder.config.model
        self._registered = pack(registered(env), "register_env")
        models = {name: build for name, build in registered_models().items() if name == model}
        self._models = pack(models, "register_model")
        self._crew = Crew()
        self._restarts = 0
        self._stopped_by: str | None = None
        self._update_seconds = 0.0
        self._updates: int | None = None

    def run(self) -> int:
        """Train until the end; return the exit code (0 done, 130 interrupted, 143 terminated).

        Raises ConfigError where the run is refused, ProcessDied where it failed.
        """
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(stop_signals(self._crew.kill))
            stack.callback(self._crew.end)
            stack.enter_context(locked(self._folder))
            try:
                shared = self._start(stop, stack, started)
            except Interrupted:
                self._console.say("interrupted before training began; nothing was saved")
                return stop.exit_code
            writer = MetricWriter(self._folder.path, on_error=self._console.say)
            try:
                if self._folder.exists:
                    writer.resume(shared.plan.start.steps, shared.plan.start.seconds)
                record = Record(shared, writer, self._console)
                self._watch(shared, record, stop)
            finally:
                writer.close()
        ended_by_signal = stop.number is not None and self._stopped_by == stop.name
        return stop.exit_code if ended_by_signal else 0

    def _start(self, stop: StopSignal, stack: contextlib.ExitStack, began: float) -> Shared:
        """Start everything in an order that brings a refusal before the crowd of workers."""
        crew, cores, folder = self._crew, available_cores(), self._folder
        crew.wake = stop.wake
        config = folder.config
        allow_descriptors(64 + 8 * (cores if config.workers == "auto" else config.workers))
        # These two import torch meanwhile, and wait for the configuration.
        learner, inference = crew.launch_learner(), crew.launch_inference()
        first = crew.launch_rollout(RolloutStart(0, 0, config, self._registered, None))
        spec = crew.expect(first, "spec")
        config = resolve(config, spec, cores, has_bf16())
        crew.send(learner, LearnerStart(config, spec, folder.path, folder.origin, self._models))
        if folder.origin is None:
            crew.send(first, (config, 0))
            built = crew.expect(learner, "built")
        else:
            # Other episodes than those before, which the checkpoint counts.
            built = crew.expect(learner, "built")
            crew.send(first, (config, built.start.rows))
        config = built.config
        plan = Plan(config, spec, built.num_params, cores, built.start, began)
        plan.check_memory()
        crew.watch_forkserver(crew.expect(first, "constructed"))
        plan = place(plan, crew.arena)
        stack.enter_context(open_run_folder(folder, config))
        tell_plan(self._console, folder, plan, built)
        crew.send(first, plan)
        crew.send(learner, plan)
        crew.send(inference, (plan, self._models))
        for worker in range(1, plan.num_workers):
            crew.raise_if_interrupted()
            crew.launch_rollout(RolloutStart(worker, 0, config, self._registered, plan))
        crew.reports.start()
        return Shared(plan, crew.arena)

    def _watch(self, shared: Shared, record: Record, stop: StopSignal) -> None:
        """Wait for deaths, signals and the clock until the run is over, then stop it in order."""
        try:
            failure = self._watch_until_over(shared, record, stop)
            record.before_stop()
        except BaseException:
            # Whatever went wrong in main: what has been learned is saved all the same.
            self._stop(shared)
            raise
        late = self._stop(shared)
        failure = failure or late
        self._take_reports(shared, record)
        record.finish(self._stopped_by or "failure", self._updates, self._restarts)
        if failure is not None:
            raise ProcessDied(failure)

    def _watch_until_over(self, shared: Shared, record: Record, stop: StopSignal) -> str | None:
        """Return None at the run's end, or the story of the death that ended it."""
        while self._stopped_by is None:
            self._crew.wait_for_events(stop.wake, TICK_SECONDS)
            failure = self._attend_deaths(shared)
            if failure is not None:
                return failure
            self._take_reports(shared, record)
            record.tick()
            if self._stopped_by is not None:
                break
            if stop.number is not None:
                self._stopped_by = stop.name
                self._console.say(
                    f"{self._stopped_by}: finishing the batch and saving; once more ends at once"
                )
            elif not record.by_updates and record.goal_reached():
                self._stopped_by = "stop_at_return"
        return None

    def _attend_deaths(self, shared: Shared) -> str | None:
        """Replace dead rollout workers; return the story of a death that ends the run."""
        if self._crew.forkserver_ended():
            return "The forkserver was killed; without it no rollout worker can run."
        for child in list(self._crew.members):
            if not child.has_ended():
                continue
            if child.role == "learner" and child.exit_code() == 0:
                self._stopped_by = "total_steps"
                continue
            if child.role != "rollout" or self._restarts >= MAX_RESTARTS:
                return child.story()
            if self._would_fail_again(shared, child):
                return child.story()
            self._replace(shared, child)
        return None

    def _would_fail_again(self, shared: Shared, child: Child) -> bool:
        """Whether a rollout process ended by an exception that a replacement would meet as well.

        One that refuses (exit code 2: an environment that breaks its own word), or that did not
        come as far as its first step.
        """
        assert child.worker is not None
        began = shared.rollout_clock.load(child.worker * CLOCK_SIZE + Clock.STARTED) > 0
        return child.exit_code() == 2 or (child.exit_code() == 1 and not began)

    def _replace(self, shared: Shared, child: Child) -> None:
        plan, worker = shared.plan, child.worker
        assert worker is not None
        self._restarts += 1
        first = worker * plan.config.envs_per_worker
        story, _, traceback = child.story().partition("\n")
        self._console.say(
            f"{story} It stepped environments {first} to "
            f"{first + plan.config.envs_per_worker - 1}; replaced "
            f"({self._restarts} of at most {MAX_RESTARTS})."
            + (f"\n{traceback}" if traceback else "")
        )
        # The order is the contract: the old process has ended, then the generation rises, then the
        # new process starts, so no word of the old one can be taken for one of the new.
        generation = shared.generation.load(worker) + 1
        shared.generation.store(worker, generation)
        self._crew.discharge(child)
        shared.rollout_clock.store(worker * CLOCK_SIZE + Clock.STARTED, 0)
        start = RolloutStart(worker, generation, plan.config, self._registered, plan)
        self._crew.launch_rollout(start)

    def _take_reports(self, shared: Shared, record: Record) -> None:
        for report in self._crew.reports.drain():
            if isinstance(report, MetricsReport):
                self._update_seconds = report.metrics["perf/update_ms"] * 1e-3
                record.add(report)
                if record.by_updates:
                    self._judge(shared, record, report.through)
            elif isinstance(report, SavedReport):
                self._console.say(report.describe())
            elif isinstance(report, NoticeReport):
                self._console.say(report.text)
            elif isinstance(report, EndReport):
                self._updates = report.through
                self._console.say(f"the learner has finished after {report.steps:,} steps")
                # Not its exit, a second later: what is recorded until then would be of no engine.
                self._stopped_by = self._stopped_by or "total_steps"

    def _judge(self, shared: Shared, record: Record, through: int) -> None:
        """Compare the returns up to an update with the goal, for which the learner may wait."""
        if self._stopped_by is None and record.goal_reached():
            self._stopped_by = "stop_at_return"
            shared.control.store(Control.STOP, 1)
        shared.control.store(Control.JUDGED, through)

    def _stop(self, shared: Shared) -> str | None:
        """Let the learner finish and save, then everyone close; return the story of one that
        failed."""
        shared.control.store(Control.STOP, 1)
        shared.close()
        crew = self._crew
        learner = [child for child in crew.members if child.role == "learner"]
        others = [child for child in crew.members if child.role != "learner"]
        # It may be at the start of a batch, on a machine that has become slower.
        save_seconds = SAVE_SECONDS + 3 * self._update_seconds
        saved = crew.wait_for_end(learner, save_seconds)
        if not crew.wait_for_end(others, STOP_SECONDS):
            late = ", ".join(child.name for child in others if not child.has_ended())
            self._console.say(f"killed after {STOP_SECONDS:g} s without an end: {late}")
        crew.kill()
        crew.wait_for_end(crew.members, STOP_SECONDS)
        crew.reports.stop()
        if not saved:
            return f"The learner did not save within {save_seconds:.0f} s and was killed."
        return next((child.story() for child in learner if child.exit_code() != 0), None)


def allow_descriptors(needed: int) -> None:
    """Raise this process's soft limit on open files; ConfigError where the hard limit is lower.

    A worker takes a pipe, a crash report, a pidfd and multiprocessing's own descriptors of main.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"So many --workers need about {needed} open files, and this user may have {hard}; use "
            f"fewer workers with more --envs-per-worker, or raise the limit (ulimit -n)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def tell_plan(console: Console, folder: RunFolder, plan: Plan, built: Built) -> None:
    """Print what will run; from here on the run's folder has a log. ConfigError where it has
    none."""
    try:
        console.open_log(folder.path / "log.txt")
    except OSError as error:
        raise ConfigError(f"--run-dir {folder.path} cannot be written: {error}.") from error
    for line in [folder.note, *built.warnings]:
        if line is not None:
            console.say(line)
    rows = plan.describe()
    if folder.origin is not None:
        source, start = folder.origin.run_dir, plan.start
        if folder.origin.resume:
            text = f"resumed after {start.steps:,} steps, {start.updates:,} updates"
        else:
            text = f"weights and normalisers of {source}"
        rows.append(("begins", text))
    console.say(table(rows))


def train(config: TrainConfig) -> int:
    """Train with `config` from the main thread; return the exit code (0, 1, 129, 130 or 143).

    A resumed run (`config.resume`) keeps its own options, except those that differ here from their
    defaults. Raises ConfigError where the run is refused before it starts. A failure is told on the
    console, last; with `workers=0`, everything in this process, it is raised.
    """
    given = [
        field.name
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    ]
    return start_training(config, given)


def start_training(config: TrainConfig, given: Collection[str]) -> int:
    """`train` for a caller who knows which options the user has set: those in `given`."""
    folder = choose_run_folder(as_declared(config), given)
    console = Console()
    try:
        if folder.config.workers == 0:
            from fastrl.workers.single import train_in_this_process  # imports torch

            return train_in_this_process(folder, console)
        return Supervisor(folder, console).run()
    except ProcessDied as death:
        console.say(f"failed: {death}")
        return 1
    finally:
        console.close()
