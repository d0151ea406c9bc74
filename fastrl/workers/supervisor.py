"""The supervisor: main's own body. It starts, watches and stops every process, and writes what one
sees.

It is never on the path of a step. Every child is watched by its pidfd, so that a death is known in
milliseconds: a rollout worker is replaced, any other death ends the run with its traceback.
"""

from __future__ import annotations

import contextlib
import resource
import time

from fastrl.config import DEFAULT_EVAL_EPISODES
from fastrl.envs import registered
from fastrl.errors import ConfigError
from fastrl.models.registry import registered_models
from fastrl.monitor.accounts import CLOCK_SIZE, STOP_AFTER_FAILURE, Clock, Control
from fastrl.monitor.console import Console, table
from fastrl.monitor.writer import MetricWriter
from fastrl.resolve import resolve
from fastrl.workers.children import Child
from fastrl.workers.crew import Crew, Interrupted, ProcessDied
from fastrl.workers.evaluator import EvaluatorOfMain, EvaluatorStart
from fastrl.workers.group_envs import anew_every
from fastrl.workers.learner_start import Built, LearnerStart
from fastrl.workers.machine import available_cores, has_bf16
from fastrl.workers.plan import Plan
from fastrl.workers.record import Record
from fastrl.workers.reports import (
    EndReport,
    EvaluationRequest,
    EvaluationResult,
    MetricsReport,
    NoticeReport,
    SavedReport,
)
from fastrl.workers.restarts import WINDOW_SECONDS, Restarts
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.run_folder import RunFolder, locked, open_run_folder
from fastrl.workers.shared import Shared, place
from fastrl.workers.signals import StopSignal, stop_signals
from fastrl.workers.travel import pack
from fastrl.workers.watch import Watch

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
        self._crew.tell = console.say
        self._restarts = Restarts(folder.config.max_worker_restarts)
        self.opened = False
        """Whether the folder has been opened: from then on there is something to go on with."""
        self._due: list[tuple[float, RolloutStart]] = []
        """Replacements that are to start at a time.monotonic()."""
        self._stopped_by: str | None = None
        self._update_seconds = 0.0
        self._updates: int | None = None
        self._evaluator: EvaluatorOfMain

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
                self._console.say("interrupted before training began; nothing more was saved")
                return stop.exit_code
            writer = MetricWriter(self._folder.path, on_error=self._console.say)
            try:
                if self._folder.exists:
                    writer.resume(shared.plan.start.steps, shared.plan.start.seconds)
                record = Record(shared, writer, self._console, self._crew.memory)
                self._evaluator = self._evaluator_of(shared, record)
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
        first.envs = range(plan.config.envs_per_worker)
        plan = place(plan, crew.arena)
        stack.enter_context(open_run_folder(folder, config))
        self.opened = True
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
            self._evaluator.end()
            raise
        late = self._stop(shared, failure)
        self._take_reports(shared, record)
        if failure is None and late is None:
            failure = self._finish_evaluations(stop)
        self._evaluator.end()
        record.finish(self._stopped_by or "failure", self._updates, self._restarts.total)
        if failure is not None:
            # Who asks for the end shall not be given another start.
            failure.again = failure.again and stop.number is None
            raise failure
        if late is not None:
            raise ProcessDied(late)

    def _watch_until_over(
        self, shared: Shared, record: Record, stop: StopSignal
    ) -> ProcessDied | None:
        """Return None at the run's end, or the death that ended it."""
        watch = Watch(shared)
        while self._stopped_by is None:
            self._crew.wait_for_events(stop.wake, TICK_SECONDS)
            self._crew.free_memory.look()
            self._end_hung_workers(shared, watch)
            failure = self._attend_deaths(shared) or self._evaluator.attend()
            if failure is not None:
                return failure
            self._launch_due()
            # In sync the engine stands still while a policy is evaluated, and nothing is wrong.
            awaited = shared.plan.sync and self._evaluator.busy
            for line in watch.lines():
                if not awaited:
                    self._console.say(line)
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

    def _end_hung_workers(self, shared: Shared, watch: Watch) -> None:
        """Kill workers that have been inside one step for longer than `--env-timeout`."""
        limit = shared.plan.config.env_timeout
        if limit is None:
            return
        hung = {
            slow.worker: slow for slow in watch.busy() if slow.stepping and slow.seconds > limit
        }
        for child in self._crew.members:
            if child.role == "rollout" and child.worker in hung and not child.has_ended():
                seconds = hung[child.worker].seconds
                child.ended_by_main = (
                    f"was ended after {seconds:.0f} s inside one step of its environments "
                    f"(--env-timeout {limit:g})"
                )
                child.kill()

    def _attend_deaths(self, shared: Shared) -> ProcessDied | None:
        """Replace dead rollout workers; return the death that ends the run."""
        if self._crew.forkserver_ended():
            return self._crew.forkserver_death()
        for child in list(self._crew.members):
            if child.role == "evaluator" or not child.has_ended():
                continue
            if child.role == "learner" and child.exit_code() == 0:
                self._stopped_by = "total_steps"
                continue
            if child.role != "rollout":
                return ProcessDied(child.story(), again=child.exit_code() != 2)
            failure = self._attend_worker(shared, child)
            if failure is not None:
                return failure
        return None

    def _attend_worker(self, shared: Shared, child: Child) -> ProcessDied | None:
        """Have a dead rollout worker replaced; return its death where that ends the run."""
        story = child.story()
        if self._would_fail_again(shared, child):
            return ProcessDied(story)
        assert child.worker is not None
        most = self._restarts.most
        delay = self._restarts.died(child.worker, time.monotonic(), story)
        if delay is None:
            if most == 0:
                return ProcessDied(story)
            return ProcessDied(
                f"More than {most} rollout workers died within {WINDOW_SECONDS / 60:g} minutes "
                f"(--max-worker-restarts). The first of them: {self._restarts.first_story}\n"
                f"And the last: {story}"
            )
        first_line, _, traceback = story.partition("\n")
        when = f"replaced in {delay:g} s" if delay else "replaced"
        self._console.say(
            f"{first_line} It is {when} ({self._restarts.recent} of at most {most} in "
            f"{WINDOW_SECONDS / 60:g} minutes)." + (f"\n{traceback}" if traceback else "")
        )
        self._replace(shared, child, delay)
        return None

    def _would_fail_again(self, shared: Shared, child: Child) -> bool:
        """Whether a rollout process ended by an exception that a replacement would meet as well.

        One that refuses (exit code 2: an environment that breaks its own word), or that did not
        come as far as its first step.
        """
        assert child.worker is not None
        began = shared.rollout_clock.load(child.worker * CLOCK_SIZE + Clock.STARTED) > 0
        if not began and shared.generation.load(child.worker) > 0:
            # Its predecessors could begin: what keeps this one from it may pass.
            return False
        return child.exit_code() == 2 or (child.exit_code() == 1 and not began)

    def _replace(self, shared: Shared, child: Child, delay: float) -> None:
        plan, worker = shared.plan, child.worker
        assert worker is not None
        # The order is the contract: the old process has ended, then the generation rises, then the
        # new process starts, so no word of the old one can be taken for one of the new.
        generation = shared.generation.load(worker) + 1
        shared.generation.store(worker, generation)
        self._crew.discharge(child)
        for index in (Clock.STARTED, Clock.BUSY_SINCE):
            shared.rollout_clock.store(worker * CLOCK_SIZE + index, 0)
        start = RolloutStart(worker, generation, plan.config, self._registered, plan)
        self._due.append((time.monotonic() + delay, start))

    def _launch_due(self) -> None:
        """Start the replacements whose time has come."""
        now = time.monotonic()
        ready = [start for due, start in self._due if due <= now]
        self._due = [(due, start) for due, start in self._due if due > now]
        for start in ready:
            with contextlib.suppress(Interrupted):  # seen in the next round
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
            elif isinstance(report, EvaluationRequest):
                self._evaluator.take(report)
            elif isinstance(report, EndReport):
                self._updates = report.through
                self._console.say(f"the learner has finished after {report.steps:,} steps")
                # Not its exit, a second later: what is recorded until then would be of no engine.
                self._stopped_by = self._stopped_by or "total_steps"

    def _evaluator_of(self, shared: Shared, record: Record) -> EvaluatorOfMain:
        config = shared.plan.config
        start = EvaluatorStart(
            self._folder.path.absolute(),
            config.seed,
            config.eval_episodes or DEFAULT_EVAL_EPISODES,
            config.keep_best,
            config.env_timeout,
            shared.plan.niceness("rollout"),
            self._registered,
            self._models,
        )

        def done(result: EvaluationResult | None) -> None:
            if result is not None:
                record.add_evaluation(result)
            shared.control.add(Control.EVALUATED, 1)

        return EvaluatorOfMain(self._crew, start, self._console.say, done)

    def _finish_evaluations(self, stop: StopSignal) -> ProcessDied | None:
        """Wait for the evaluations that were asked for, unless a signal has come or comes."""
        for child in [c for c in self._crew.members if c.role != "evaluator" and c.has_ended()]:
            self._crew.discharge(child)  # whose end would wake main again and again
        if self._evaluator.busy and stop.number is None:
            self._console.say("the last evaluation is under way; Ctrl-C leaves it out")
        while self._evaluator.busy and stop.number is None:
            failure = self._evaluator.attend()
            if failure is not None:
                return failure
            if self._evaluator.busy:
                self._crew.wait_for_events(stop.wake, TICK_SECONDS)
        return None

    def _judge(self, shared: Shared, record: Record, through: int) -> None:
        """Compare the returns up to an update with the goal, for which the learner may wait."""
        if self._stopped_by is None and record.goal_reached():
            self._stopped_by = "stop_at_return"
            shared.control.store(Control.STOP, 1)
        shared.control.store(Control.JUDGED, through)

    def _stop(self, shared: Shared, failure: ProcessDied | None = None) -> str | None:
        """Let the learner finish and save, then everyone close; return the story of one that
        failed."""
        shared.control.store(Control.STOP, 1 if failure is None else STOP_AFTER_FAILURE)
        shared.close()
        crew, began = self._crew, time.monotonic()
        learner = [child for child in crew.members if child.role == "learner"]
        others = [child for child in crew.members if child.role not in ("learner", "evaluator")]
        # It may be at the start of a batch, on a machine that has become slower.
        save_seconds = SAVE_SECONDS + 3 * self._update_seconds
        saved = crew.wait_for_end(learner, save_seconds)
        # They close meanwhile; but one second is theirs in any case.
        left = max(1.0, STOP_SECONDS - (time.monotonic() - began))
        if not crew.wait_for_end(others, left):
            late = ", ".join(child.name for child in others if not child.has_ended())
            self._console.say(
                f"killed after {time.monotonic() - began:.0f} s without an end: {late}"
            )
        for child in others:
            if failure is None and child.has_ended() and child.exit_code() not in (0, None):
                self._console.say(child.story())
        for child in [*learner, *others]:
            child.kill()
        crew.wait_for_end([*learner, *others], STOP_SECONDS)
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
    every = anew_every(plan.config)
    if every and plan.start.updates % every:
        console.say(
            f"the checkpoint is of update {plan.start.updates:,}, which is not on the schedule of "
            "--exact-resume (it was written as the run was stopped): this run is another one than "
            "one that was never stopped"
        )
    rows = plan.describe()
    if folder.origin is not None:
        source, start = folder.origin.run_dir, plan.start
        if folder.origin.resume:
            text = f"resumed after {start.steps:,} steps, {start.updates:,} updates"
        else:
            text = f"weights and normalisers of {source}"
        rows.append(("begins", text))
    console.say(table(rows))
