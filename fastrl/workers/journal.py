"""What the learner tells main and saves after each update, in whatever process it runs.

::

    metrics of an update ─▶ means ─▶ a report, every half second or every --log-every updates
                                └──▶ a checkpoint, every --save-every (see `saver`)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastrl.config import log_interval
from fastrl.workers.evaluations import Evaluations
from fastrl.workers.group_envs import anew_every
from fastrl.workers.reports import EndReport, MetricsReport, NoticeReport
from fastrl.workers.saver import Saver

if TYPE_CHECKING:
    from fastrl.workers.learner import Learner

REPORT_SECONDS = 0.5


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

    def take(self) -> dict[str, float]:
        """Return the means and start anew."""
        means = {}
        for name, values in self._rows.items():
            # The share of variance explained has no value where targets do not vary.
            numbers = [number for value in values if not math.isnan(number := float(value))]
            if not numbers:
                continue
            means[name] = max(numbers) if name.endswith("/max") else float(np.mean(numbers))
        self._rows, self.updates = {}, 0
        return means


class Journal:
    """Reports and checkpoints of one learner; `tell` takes each report."""

    def __init__(
        self,
        learner: Learner,
        run_dir: Path,
        tell: Callable[[Any], object],
        settle: Callable[[int], object] = lambda through: None,
    ) -> None:
        """`settle` returns once main has taken in the reports through that update of this run:
        what it counts then is, in sync, the same in every run of a seed."""
        config = learner.config
        self._learner = learner
        self._tell = tell
        self._settle = settle
        self._reported = 0
        self._log = log_interval(config.log_every)
        self._saver = Saver(run_dir, config, learner.start, self._state, tell)
        self._evaluations = Evaluations(
            run_dir,
            config,
            learner.start.steps,
            self._state,
            tell,
            learner.control,
            learner.wait_a_moment,
        )
        self._means = MeanMetrics()
        self._next_report = 0.0

    def after_update(self, metrics: dict[str, Any]) -> bool:
        """Take in the metrics of an update; True: it was reported."""
        self._means.add(metrics)
        if self._log.unit == "u":
            # In the whole run, so that records and checkpoints go together after a resume as well.
            due = self._learner.updates % int(self._log.number) == 0
        else:
            due = time.monotonic() >= self._next_report
        if due:
            self._learner.check_finite()
            self._report()
            self._next_report = time.monotonic() + REPORT_SECONDS
        self._saver.save_if_due(self._learner.steps, self._learner.updates)
        self._evaluations.ask_if_due(self._learner.steps)
        return due

    def _report(self) -> None:
        updates, learner = self._means.updates, self._learner
        self._reported = learner.updates_of_this_run
        self._tell(MetricsReport(self._means.take(), updates, self._reported, learner.steps))

    def _state(self) -> dict[str, Any]:
        self._settle(self._reported)
        return self._learner.state()

    def end(self, after_failure: bool = False, evaluate: bool = True) -> None:
        """Report what is left, save, and have the last policy evaluated if any are; raises OSError
        where the last checkpoint cannot be written."""
        learner = self._learner
        if self._means.updates:
            self._report()
        every = anew_every(learner.config)
        if every and learner.updates % every:
            if after_failure:  # what goes on shall go on from the schedule
                return
            self._tell(
                NoticeReport(
                    f"the last checkpoint, after update {learner.updates:,}, is not on the "
                    "schedule of --exact-resume: a run that goes on from it is another one"
                )
            )
        problem = self._saver.save(learner.steps)
        if problem is not None:
            raise OSError(f"The last checkpoint could not be written: {problem}")
        if evaluate and not after_failure:
            self._evaluations.ask_at_the_end(learner.steps)
        self._tell(EndReport(learner.steps, learner.updates_of_this_run))
