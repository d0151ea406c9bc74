"""What main writes about a running engine: metric records and console lines, at fixed intervals."""

from __future__ import annotations

import time

from fastrl.monitor.accounts import CLOCK_SIZE, SAMPLED_MASK, Clock, Control
from fastrl.monitor.console import Console, progress_line
from fastrl.monitor.metrics import Counts, EpisodeLog, LearnerReports, RateMeter
from fastrl.monitor.writer import MetricWriter
from fastrl.workers.final_accounts import final_accounts
from fastrl.workers.shared import Shared


class Record:
    """Collects counters, episodes and reports of one run, and writes them; owned by main."""

    def __init__(
        self, shared: Shared, writer: MetricWriter, console: Console, started: float
    ) -> None:
        """`started` is the time.monotonic() at which the run's clock began."""
        plan = shared.plan
        self._shared = shared
        self._writer = writer
        self._console = console
        self._started = started
        self._log_every = plan.config.log_every
        self._next_log = time.monotonic() + self._log_every
        self._announced = False
        self.learner = LearnerReports()
        self.episodes = EpisodeLog(
            [shared.episodes(w) for w in range(plan.num_workers)], plan.num_envs
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

    def tick(self) -> None:
        """Take in finished episodes; write a record if one is due."""
        self.episodes.drain()
        self._announce()
        if time.monotonic() >= self._next_log:
            self._write(self._rates.take())
            self._next_log = time.monotonic() + self._log_every

    def before_stop(self) -> None:
        """Write what is known while the engine still runs: rates mean nothing once it stops."""
        self.episodes.drain()
        if time.monotonic() >= self._next_log - self._log_every + min(1.0, self._log_every):
            self._write(self._rates.take())

    def finish(self, stopped_by: str) -> None:
        """Write the last record, which says why the run ended and holds no rates."""
        self.episodes.drain()
        self._write({}, stopped_by=stopped_by)
        accounts = final_accounts(self._shared)
        self._console.say(
            f"steps: {accounts.sampled:,} sampled, {accounts.trained:,} trained, "
            f"{accounts.masked:,} masked for age, {accounts.dropped:,} dropped, "
            f"{accounts.unfinished:,} unfinished"
        )
        if accounts.balance != 0 and stopped_by != "failure":
            self._console.say(
                f"These do not add up: {accounts.balance} steps are unaccounted for. This is a "
                "fault of fastrl; please report it."
            )
        if self.episodes.lost:
            self._console.say(
                f"{self.episodes.lost} reports of finished episodes were lost (ring full)"
            )

    def _write(self, rates: dict[str, float], **texts: str) -> None:
        seconds = time.monotonic() - self._started
        metrics = {**self.episodes.take(), **rates, **self.learner.take()}
        self._writer.write(self.steps, seconds, metrics, **texts)
        self._console.say(progress_line(metrics, self.steps, seconds, self.episodes.recent_return))

    def _announce(self) -> None:
        """Say once when every worker steps."""
        if self._announced:
            return
        started = self._shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)[:, Clock.STARTED]
        stepping = (self._shared.progress.snapshot() & SAMPLED_MASK) > 0
        if (started > 0).all() and stepping.all():
            self._announced = True
            workers = len(started)
            self._console.say(
                f"all {workers} workers step after {time.monotonic() - self._started:.1f} s"
                if workers > 1
                else f"the worker steps after {time.monotonic() - self._started:.1f} s"
            )
