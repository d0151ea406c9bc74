"""What main writes about a running engine: metric records and console lines, at fixed intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastrl.config import log_interval
from fastrl.monitor.accounts import CLOCK_SIZE, SAMPLED_MASK, Clock, Control, return_word
from fastrl.monitor.console import Console, progress_line
from fastrl.monitor.metrics import Counts, EpisodeLog, LearnerReports, RateMeter
from fastrl.monitor.writer import MetricWriter
from fastrl.workers.final_accounts import final_accounts
from fastrl.workers.group_envs import anew_every
from fastrl.workers.reports import EvaluationResult, MetricsReport
from fastrl.workers.shared import Shared


class Record:
    """Collects counters, episodes and reports of one run, and writes them; owned by main."""

    def __init__(
        self,
        shared: Shared,
        writer: MetricWriter,
        console: Console,
        besides: Callable[[], dict[str, float]] = dict,
    ) -> None:
        """`besides` is asked for further metrics of each record: those of the processes."""
        plan = shared.plan
        self._besides = besides
        self._shared = shared
        self._writer = writer
        self._console = console
        self._started = plan.began - plan.start.seconds
        self._began = plan.began
        self._log = log_interval(plan.config.log_every)
        self._next_log = time.monotonic() + self._log.number
        self._announced = False
        self._through = 0
        self._anew_every = anew_every(plan.config)
        self._learner = LearnerReports()
        self.episodes = EpisodeLog(
            [shared.episodes(w) for w in range(plan.num_workers)],
            plan.num_envs,
            plan.config.log_info,
            plan.start.episodes,
        )
        self._rates = RateMeter(
            Counts(
                shared.progress, shared.rollout_clock, shared.inference_clock, shared.learner_clock
            ),
            plan.spec.frame_skip,
        )

    @property
    def steps(self) -> int:
        """Steps learned from (trained + masked): the x-axis."""
        return self._shared.control.load(Control.STEPS)

    @property
    def by_updates(self) -> bool:
        """Whether a record is written for every report of the learner, and by no clock."""
        return self._log.unit == "u"

    def add(self, report: MetricsReport) -> None:
        """Take in what the learner reports; write a record if records go by updates."""
        self._learner.add(report.metrics, report.updates)
        if self.by_updates:
            before = self._shared.plan.start.updates + self._through
            if self._anew_every and before % self._anew_every == 0:
                # A run that resumes there knows no episode either.
                self.episodes.forget()
            self._through = report.through
            self._drain(self._through)
            self._write(report.steps, self._rates.take())

    def add_evaluation(self, result: EvaluationResult) -> None:
        """Write an evaluation as a record of its own, at the steps of its policy, and say it."""
        seconds = time.monotonic() - self._started
        self._writer.write(result.steps, seconds, result.metrics())
        self._console.say(result.describe())

    def tick(self) -> None:
        """Take in finished episodes; write a record if one is due by the clock."""
        self._announce()
        if self.by_updates:
            # Nothing that a record may hold yet, but the workers' rings must not overflow.
            self._drain(self._through)
            return
        self._drain()
        if time.monotonic() >= self._next_log:
            self._write(self.steps, self._rates.take())
            self._next_log = time.monotonic() + self._log.number

    def goal_reached(self) -> bool:
        """Whether `--stop-at-return` is reached by the episodes taken in; says so."""
        goal, mean = self._shared.plan.config.stop_at_return, self.episodes.recent_return
        if goal is None or mean is None or mean < goal or not self.episodes.every_env_finished:
            return False
        self._console.say(
            f"the mean return of the last 100 episodes is {mean:.2f}, the goal {goal:g}"
        )
        return True

    def before_stop(self) -> None:
        """Write what is known while the engine still runs: rates mean nothing once it stops."""
        if self.by_updates:
            return
        self._drain()
        if time.monotonic() >= self._next_log - self._log.number + min(1.0, self._log.number):
            self._write(self.steps, self._rates.take())

    def finish(self, stopped_by: str, through: int | None, deaths: int = 0) -> None:
        """Write the last record, which says why the run ended and holds no rates.

        `through` is the number of updates, where the learner lived to tell it; `deaths` counts the
        rollout workers that died, without which no step can have been dropped.
        """
        self._drain(through)
        self._write(self.steps, {}, stopped_by=stopped_by)
        accounts = final_accounts(self._shared)
        self._console.say(
            f"steps: {accounts.sampled:,} sampled, {accounts.trained:,} trained, "
            f"{accounts.masked:,} masked for age, {accounts.dropped:,} dropped, "
            f"{accounts.unfinished:,} unfinished"
        )
        lost = accounts.balance if deaths else accounts.balance + accounts.dropped
        if lost != 0 and stopped_by != "failure":
            self._console.say(
                f"These do not add up: {lost} steps are unaccounted for. This is a fault of "
                "fastrl; please report it."
            )
        never = [
            key for key in self._shared.plan.config.log_info if key not in self.episodes.info_seen
        ]
        if never:
            self._console.say(
                f"--log-info {' '.join(never)}: no episode had a number of that name in its last "
                "info"
            )
        if self.episodes.lost:
            self._console.say(
                f"{self.episodes.lost} reports of finished episodes were lost (ring full)"
            )

    def _drain(self, through: int | None = None) -> None:
        """Take in episodes; in sync those of the first `through` updates, which is a fixed set."""
        plan = self._shared.plan
        if through is not None and plan.sync:
            self.episodes.drain(through * plan.rollout_length)
        else:
            self.episodes.drain()
        control, episodes = self._shared.control, self.episodes
        # No score before the goal could be reached: the mean of a few is one of the short ones.
        score = episodes.recent_return if episodes.every_env_finished else None
        control.store(Control.RETURN, return_word(score))
        control.store(Control.EPISODES, episodes.finished - plan.start.episodes)

    def _write(self, steps: int, rates: dict[str, float], **texts: str) -> None:
        seconds = time.monotonic() - self._started
        metrics = {**self.episodes.take(), **rates, **self._learner.take()}
        if rates:
            metrics |= self._besides()
        self._writer.write(steps, seconds, metrics, **texts)
        self._console.say(progress_line(metrics, steps, seconds, self.episodes.recent_return))

    def _announce(self) -> None:
        """Say once when every worker steps."""
        if self._announced:
            return
        started = self._shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)[:, Clock.STARTED]
        stepping = (self._shared.progress.snapshot() & SAMPLED_MASK) > 0
        if (started > 0).all() and stepping.all():
            self._announced = True
            workers, seconds = len(started), time.monotonic() - self._began
            self._console.say(
                f"all {workers} workers step after {seconds:.1f} s"
                if workers > 1
                else f"the worker steps after {seconds:.1f} s"
            )
