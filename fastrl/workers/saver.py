"""When a checkpoint is due, which ones are kept, and what is said about it.

::

    step_N.pt, the newest --keep ─┬─▶ best.pt         where its score is the highest so far
                                  └─▶ milestone_N.pt  the first one of each --milestone-every
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastrl import checkpoint
from fastrl.config import TrainConfig, save_interval
from fastrl.workers.plan import Start
from fastrl.workers.reports import NoticeReport, SavedReport


class Saver:
    """Decides when a checkpoint is due, writes it, and gives it the names that keep it."""

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        start: Start,
        state: Callable[[], dict[str, Any]],
        tell: Callable[[Any], object],
    ) -> None:
        """Begin at `start`, of which the run folder has a checkpoint or needs none.

        `state` gives what a checkpoint holds; its ``score`` is a mean return, or None.
        """
        self._run_dir = run_dir
        self._config = config
        self._every, self._unit = save_interval(config.save_every)
        self._state = state
        self._tell = tell
        self._last_time = time.monotonic()
        self._best_score = start.best_score
        # Of the files there are: a process that was killed after it saved has linked nothing.
        self._linked_score = checkpoint.best_score(run_dir)[0]
        self._last_milestone = checkpoint.newest_milestone(run_dir)

    def save_if_due(self, steps: int, updates: int) -> None:
        """Write a checkpoint after an update if `--save-every` says so: at multiples of its updates
        in the whole run, or once its seconds have passed since the last one."""
        if self._unit == "u":
            due = updates % int(self._every) == 0
        else:
            due = time.monotonic() - self._last_time >= self._every
        if due:
            self.save(steps)

    def save(self, steps: int) -> str | None:
        """Write a checkpoint now; what went wrong is reported, returned, and stops no training."""
        state = self._state()
        score = state["score"]
        scores = [s for s in (self._best_score, score) if s is not None]
        state["best_score"] = max(scores, default=None)
        path = checkpoint.checkpoint_path(self._run_dir, steps)
        error = None
        try:
            checkpoint.save(self._run_dir, steps, state, self._config.keep)
        except OSError as failure:
            error = str(failure)
        self._last_time = time.monotonic()
        self._tell(SavedReport(str(path), error))
        if error is None:
            self._best_score = state["best_score"]
            self._keep_best(path, score)
            self._keep_milestone(path, steps)
        return error

    def _keep_best(self, path: Path, score: float | None) -> None:
        """Have best.pt be the checkpoint just saved where it is better than the one it is."""
        if score is None or not self._config.keep_best or self._config.eval_every is not None:
            return
        best = checkpoint.best_path(self._run_dir)
        is_better = self._linked_score is None or score > self._linked_score
        if (is_better or not best.exists()) and self._link(path, best):
            self._linked_score = score

    def _keep_milestone(self, path: Path, steps: int) -> None:
        every = self._config.milestone_every
        if every is None or steps // every == self._last_milestone // every:
            return
        # One that could not be made is made of the next checkpoint.
        if self._link(path, checkpoint.milestone_path(self._run_dir, steps)):
            self._last_milestone = steps

    def _link(self, path: Path, target: Path) -> bool:
        try:
            checkpoint.link(path, target)
        except OSError as failure:
            self._tell(NoticeReport(f"{target} could not be written: {failure}"))
            return False
        return True
