"""The supervisor: main's own body. It starts, watches and stops every process, and writes what one
sees.

It is never on the path of a step. Every child is watched by its pidfd, so that a death is known in
milliseconds: a rollout worker is replaced, any other death ends the run with its traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType

import cloudpickle

from fastrl.config import TrainConfig, check, draw_seed, resolve
from fastrl.config_file import write_config
from fastrl.envs import registered_families
from fastrl.errors import ConfigError
from fastrl.monitor.accounts import Control
from fastrl.monitor.console import Console, table
from fastrl.monitor.writer import MetricWriter
from fastrl.workers.children import Child
from fastrl.workers.crew import Crew, Interrupted, ProcessDied
from fastrl.workers.machine import available_cores, has_bf16
from fastrl.workers.plan import Plan
from fastrl.workers.record import Record
from fastrl.workers.reports import EndReport, MetricsReport, SavedReport
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.shared import Shared

MAX_RESTARTS = 10
"""Rollout workers replaced in one run; the next death ends it."""

SAVE_SECONDS = 60.0
"""Time for the learner to finish its batch and save, once it has been told to stop."""

STOP_SECONDS = 5.0
"""Time for the other processes to close their environments."""

SAME_SIGNAL_SECONDS = 0.5
"""A second signal so soon is the same one: timeout(1) and others send it to a process and to its
group. Nobody presses Ctrl-C twice so fast to have a run killed unsaved."""

TICK_SECONDS = 0.25


class Supervisor:
    """One training run, from the first process to the last; used once, from main's main thread."""

    def __init__(self, config: TrainConfig, run_dir: Path, console: Console) -> None:
        """Take a checked configuration with a seed, and a run folder that does not exist yet."""
        self._requested = config
        self._run_dir = run_dir
        self._console = console
        self._crew = Crew()
        self._families: bytes = cloudpickle.dumps(registered_families())
        self._restarts = 0
        self._signal: int | None = None
        self._stopped_by: str | None = None
        self._update_seconds = 0.0

    def run(self) -> int:
        """Train until the end; return the exit code (0 done, 130 interrupted, 143 terminated).

        Raises ConfigError where the run is refused, ProcessDied where it failed.
        """
        started = time.monotonic()
        with self._signals() as wake:
            try:
                shared = self._start(wake)
                writer = MetricWriter(self._run_dir, on_error=self._console.say)
                try:
                    record = Record(shared, writer, self._console, started)
                    self._watch(shared, record, wake)
                finally:
                    writer.close()
            except Interrupted:
                self._console.say("interrupted before training began; nothing was saved")
                return 128 + (self._signal or 0)
            finally:
                self._crew.end()
        ended_by_signal = self._signal is not None and self._stopped_by == self._signal_name()
        return 128 + (self._signal or 0) if ended_by_signal else 0

    def _signal_name(self) -> str:
        return signal.Signals(self._signal).name if self._signal is not None else ""

    @contextlib.contextmanager
    def _signals(self) -> Iterator[int]:
        """Turn SIGINT, SIGTERM and SIGHUP into a wake-up of the loop; a second kills at once.

        Handlers only note the signal: one that raised could lose a process between its start and
        its entry in the crew's list.
        """
        reader, writer = os.pipe()
        came = 0.0

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal came
            if self._signal is not None:
                if time.monotonic() - came < SAME_SIGNAL_SECONDS:
                    return
                self._crew.kill()
                os._exit(128 + number)
            came = time.monotonic()
            self._signal = number
            os.write(writer, b".")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
            numbers.append(signal.SIGHUP)
        previous = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield reader
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _start(self, wake: int) -> Shared:
        """Start everything in an order that brings a refusal before the crowd of workers."""
        crew, cores = self._crew, available_cores()
        crew.wake = wake
        config = self._requested
        if config.workers == "auto":
            config = dataclasses.replace(config, workers=cores)
        allow_descriptors(64 + 8 * int(config.workers))
        first = crew.launch_rollout(RolloutStart(0, 0, config, self._families, None))
        # These two import torch meanwhile, and wait for the configuration.
        learner, inference = crew.launch_learner(), crew.launch_inference()
        spec = crew.expect(first, "spec")
        config = resolve(config, spec, cores, has_bf16())
        crew.send(first, config)
        crew.send(learner, (config, spec, self._run_dir))
        num_params = crew.expect(learner, "built")
        plan = Plan(config, spec, num_params, cores)
        plan.check_memory()
        crew.watch_forkserver(crew.expect(first, "constructed"))
        try:
            segment = crew.arena.extend(plan.layout().nbytes)
        except MemoryError as error:
            raise ConfigError(f"{error} Use fewer environments or a shorter rollout.") from error
        self._make_run_dir(plan)
        self._console.say(table(plan.describe()))
        plan = dataclasses.replace(plan, segment=segment)
        for child in (first, learner, inference):
            crew.send(child, plan)
        for worker in range(1, plan.num_workers):
            crew.raise_if_interrupted()
            crew.launch_rollout(RolloutStart(worker, 0, config, self._families, plan))
        crew.reports.start()
        return Shared(plan, crew.arena)

    def _make_run_dir(self, plan: Plan) -> None:
        try:
            self._run_dir.mkdir(parents=True)
            write_config(self._run_dir / "config.toml", plan.config)
            self._console.open_log(self._run_dir / "log.txt")
        except FileExistsError as error:
            raise ConfigError(run_dir_exists(self._run_dir)) from error
        except OSError as error:
            raise ConfigError(f"--run-dir {self._run_dir} cannot be written: {error}.") from error

    def _watch(self, shared: Shared, record: Record, wake: int) -> None:
        """Wait for deaths, signals and the clock until the run is over, then stop it in order."""
        try:
            failure = self._watch_until_over(shared, record, wake)
            record.before_stop()
        except Exception:
            # Whatever went wrong in main: what has been learned is saved all the same.
            self._stop(shared)
            raise
        late = self._stop(shared)
        failure = failure or late
        self._take_reports(record)
        record.finish(self._stopped_by or "failure")
        if failure is not None:
            raise ProcessDied(failure)

    def _watch_until_over(self, shared: Shared, record: Record, wake: int) -> str | None:
        """Return None at the run's end, or the story of the death that ended it."""
        while self._stopped_by is None:
            self._crew.wait_for_events(wake, TICK_SECONDS)
            failure = self._attend_deaths(shared)
            if failure is not None:
                return failure
            self._take_reports(record)
            record.tick()
            if self._stopped_by is not None:
                break
            if self._signal is not None:
                self._stopped_by = self._signal_name()
                self._console.say(
                    f"{self._stopped_by}: finishing the batch and saving; once more ends at once"
                )
            elif self._goal_reached(shared, record):
                self._stopped_by = "stop_at_return"
        return None

    def _goal_reached(self, shared: Shared, record: Record) -> bool:
        goal, mean = shared.plan.config.stop_at_return, record.episodes.recent_return
        if goal is None or mean is None or mean < goal or not record.episodes.every_env_finished:
            return False
        self._console.say(
            f"the mean return of the last 100 episodes is {mean:.2f}, the goal {goal:g}"
        )
        return True

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
            self._replace(shared, child)
        return None

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
        start = RolloutStart(worker, generation, plan.config, self._families, plan)
        self._crew.launch_rollout(start)

    def _take_reports(self, record: Record) -> None:
        for report in self._crew.reports.drain():
            if isinstance(report, MetricsReport):
                record.learner.add(report.metrics, report.updates)
                self._update_seconds = report.metrics["perf/update_ms"] * 1e-3
            elif isinstance(report, SavedReport) and report.error is not None:
                self._console.say(
                    f"no checkpoint could be written to {report.path}: {report.error}"
                )
            elif isinstance(report, SavedReport):
                self._console.say(f"saved {report.path}")
            elif isinstance(report, EndReport):
                self._console.say(f"the learner has finished after {report.steps:,} steps")
                # Not its exit, a second later: what is recorded until then would be of no engine.
                self._stopped_by = self._stopped_by or "total_steps"

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


def run_dir_exists(run_dir: Path) -> str:
    """Say why an existing run folder is refused."""
    return f"--run-dir {run_dir} exists already; name another folder, or remove it."


def train(config: TrainConfig) -> int:
    """Train with `config` from the main thread; return the exit code (0, 1, 130 or 143).

    Raises ConfigError where the run is refused before it starts. A failure is told on the console,
    last.
    """
    config = check(config)
    if config.seed is None:
        config = dataclasses.replace(config, seed=draw_seed())
    run_dir = config.run_dir or default_run_dir(config)
    try:
        exists = run_dir.exists()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--run-dir {str(run_dir)!r} cannot be used: {error}.") from error
    if exists:
        raise ConfigError(run_dir_exists(run_dir))
    config = dataclasses.replace(config, run_dir=run_dir)
    console = Console()
    try:
        return Supervisor(config, run_dir, console).run()
    except ProcessDied as death:
        console.say(f"failed: {death}")
        return 1
    finally:
        console.close()


def default_run_dir(config: TrainConfig) -> Path:
    """Name of a run's folder where none was given: runs/<env>/<date-time>-<seed>."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env).strip("-.") or "env"
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{config.seed}"
    path = Path("runs") / folder / name
    tries = 1
    while path.exists():  # the same seed twice in a second, as a sweep may start it
        tries += 1
        path = Path("runs") / folder / f"{name}-{tries}"
    return path
