"""Evaluation while training: the process that plays, and main's side of it; see `evaluations`."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastrl import checkpoint
from fastrl.envs import register_all
from fastrl.models.registry import register_models
from fastrl.workers.children import Child
from fastrl.workers.crew import Crew, ProcessDied
from fastrl.workers.process import Lines, be_nice
from fastrl.workers.reports import EvaluationRequest, EvaluationResult
from fastrl.workers.travel import unpack

MOST_DEATHS = 3
"""One more evaluator that dies ends the run: its evaluations would be missing ever after."""


@dataclass(frozen=True)
class EvaluatorStart:
    """What an evaluator is told at its start."""

    run_dir: Path
    seed: int
    episodes: int
    keep_best: bool
    niceness: int
    registered: bytes
    models: bytes


class Evaluator:
    """Plays the policies of a run, one after the other, and keeps the best one."""

    def __init__(self, run_dir: Path, seed: int, episodes: int, keep_best: bool) -> None:
        """Begin with the score that best.pt has, if there is one."""
        self._run_dir = run_dir
        self._seed = seed
        self._episodes = episodes
        self._keep_best = keep_best
        self._best = checkpoint.best_score(run_dir)[0] if keep_best else None

    def play(self, request: EvaluationRequest) -> EvaluationResult:
        """Evaluate the file of `request`, which is removed then."""
        from fastrl.evaluate import evaluate

        began, path = time.monotonic(), Path(request.path)
        try:
            seed = evaluation_seed(self._seed, request.steps)
            result = evaluate(self._run_dir, self._episodes, seed, checkpoint=path)
            mean, margin = result.mean, result.margin()
            is_best = self._keep_best and (self._best is None or mean > self._best)
            if is_best:
                state = checkpoint.load(path) | {"score": mean, "best_score": mean}
                checkpoint.write(checkpoint.best_path(self._run_dir), request.steps, state)
                self._best = mean
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        seconds = time.monotonic() - began
        length = float(result.lengths.mean())
        return EvaluationResult(
            request.steps, mean, margin, length, self._episodes, seconds, is_best
        )


def evaluation_seed(seed: int, steps: int) -> int:
    """Seed of the environments and actions of an evaluation: not those of the training."""
    return int(np.random.default_rng([seed, steps, 0xE7A1]).integers(2**31))


def run(lines: Lines) -> None:
    """The evaluator's body: serve requests until main closes the pipe."""
    start: EvaluatorStart = lines.pipe.recv()
    be_nice(start.niceness)
    register_all(unpack(start.registered, "register_env"))
    register_models(unpack(start.models, "register_model"))
    evaluator = Evaluator(start.run_dir, start.seed, start.episodes, start.keep_best)
    with contextlib.suppress(EOFError):
        while True:
            lines.pipe.send(("evaluated", evaluator.play(lines.pipe.recv())))


class EvaluatorOfMain:
    """Main's side: at most one evaluator, which serves one request after the other."""

    def __init__(
        self,
        crew: Crew,
        start: EvaluatorStart,
        say: Callable[[str], None],
        done: Callable[[EvaluationResult | None], None],
    ) -> None:
        """`done` is given each result, None for one that was lost."""
        self._crew = crew
        self._start = start
        self._say = say
        self._done = done
        self._child: Child | None = None
        self._waiting: deque[EvaluationRequest] = deque()
        self._playing: EvaluationRequest | None = None
        self._deaths = 0

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way or waits."""
        return bool(self._waiting) or self._playing is not None

    def take(self, request: EvaluationRequest) -> None:
        """Have a policy evaluated after those that wait."""
        self._waiting.append(request)

    def attend(self) -> ProcessDied | None:
        """Take in what has come, and give out what waits; returns the death that ends the run."""
        child = self._child
        if child is not None:
            ended = child.has_ended()  # before the pipe is read: what it sent last lies there
            for _, result in child.receive():
                self._playing = None
                self._done(result)
            if ended:
                failure = self._attend_death(child)
                if failure is not None:
                    return failure
        if self._waiting and self._playing is None:
            self._give_out()
        return None

    def _give_out(self) -> None:
        if self._child is None:
            self._child = self._crew.launch_evaluator()
            with contextlib.suppress(OSError):
                self._child.pipe.send(self._start)
        self._playing = self._waiting.popleft()
        with contextlib.suppress(OSError):  # it has ended, which is seen next time
            self._child.pipe.send(self._playing)

    def _attend_death(self, child: Child) -> ProcessDied | None:
        story = child.story()
        self._crew.discharge(child)
        self._child = None
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            return ProcessDied(f"More than {MOST_DEATHS} evaluators died. The last: {story}")
        lost, self._playing = self._playing, None
        if lost is not None:
            Path(lost.path).unlink(missing_ok=True)
            self._say(f"{story}\nThe evaluation after {lost.steps:,} steps is lost.")
            self._done(None)
        return None

    def end(self) -> None:
        """End the evaluator at once; what waits is not evaluated."""
        for request in [*self._waiting, self._playing]:
            if request is not None:
                with contextlib.suppress(OSError):
                    Path(request.path).unlink()
        self._waiting.clear()
        self._playing = None
        if self._child is not None:
            self._child.kill()
