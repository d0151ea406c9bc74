"""Evaluation while training, the learner's side: when it is due, and of which policy.

::

    learner: after an update ─▶ checkpoints/evaluate_STEPS.pt ─▶ EvaluationRequest ─▶ main
    main ─▶ evaluator (a process of its own, started at the first request): plays the file's policy
    evaluator: the best so far becomes best.pt ─▶ EvaluationResult ─▶ main: a curve of its own

The file is no checkpoint to go on from, so that what is evaluated changes nothing in the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastrl import checkpoint
from fastrl.config import TrainConfig
from fastrl.monitor.accounts import Control
from fastrl.shm import Counters
from fastrl.workers.reports import EvaluationRequest, NoticeReport


class Evaluations:
    """The learner's side: asks for an evaluation after the first update at or after each multiple
    of `--eval-every`."""

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        steps: int,
        state: Callable[[], dict[str, Any]],
        tell: Callable[[Any], object],
        control: Counters,
        wait: Callable[[], object],
    ) -> None:
        """Begin at `steps`.

        `wait` waits a moment; it raises where the run ends meanwhile.
        """
        self._run_dir = run_dir
        self._every = config.eval_every
        self._last = steps
        self._state = state
        self._tell = tell
        self._control = control
        self._wait = wait
        self._asked = 0
        checkpoint.remove_evaluations(run_dir)
        self._waits = config.mode == "sync"

    def ask_if_due(self, steps: int) -> None:
        """Ask where one is due and the last one is over; in `sync` wait for that, so that equal
        seeds evaluate after the same updates."""
        if self._every is None or steps // self._every == self._last // self._every:
            return
        while self._control.load(Control.EVALUATED) < self._asked:
            if not self._waits or self._control.load(Control.STOP):
                return  # asked for after a later update
            self._wait()
        self.ask(steps)

    def ask(self, steps: int) -> None:
        """Ask for an evaluation of the present policy."""
        path = checkpoint.evaluation_path(self._run_dir, steps)
        self._last = steps  # whatever comes of it: a full disk is not tried after each update
        try:
            checkpoint.write(path, steps, self._state())
        except OSError as error:
            self._tell(NoticeReport(f"nothing could be evaluated after {steps:,} steps: {error}"))
            return
        self._asked += 1
        if self._tell(EvaluationRequest(str(path), steps)) is False:
            # Main takes nothing in: nobody will play it, nor should anyone wait for that.
            self._asked -= 1
            path.unlink(missing_ok=True)

    def ask_at_the_end(self, steps: int) -> None:
        """Ask for the run's last policy, where it is not the one asked for last."""
        if self._every is not None and steps != self._last:
            self.ask(steps)
