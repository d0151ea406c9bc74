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

ALIVE_SECONDS = 0.5
"""Between two words of an evaluator that it has stepped."""
SLOW_SECONDS = 10.0
"""Without a step, after which it is named, and again after twice the time."""

MOST_DEATHS = 3
"""One more evaluator that dies ends the run: its evaluations would be missing ever after."""


@dataclass(frozen=True)
class EvaluatorStart:
    """What an evaluator is told at its start."""

    run_dir: Path
    seed: int
    episodes: int
    keep_best: bool
    env_timeout: float | None
    niceness: int
    registered: bytes
    models: bytes


class Evaluator:
    """Plays the policies of a run, one after the other, and keeps the best one."""

    def __init__(
        self,
        run_dir: Path,
        seed: int,
        episodes: int,
        keep_best: bool,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin with the score of an evaluation that best.pt has, if there is one; `progress` is
        called after each step."""
        self._run_dir = run_dir
        self._seed = seed
        self._episodes = episodes
        self._keep_best = keep_best
        self._progress = progress
        self._best = checkpoint.best_score(run_dir, evaluated=True)[0] if keep_best else None

    def play(self, request: EvaluationRequest) -> EvaluationResult:
        """Evaluate the file of `request`, which is removed then."""
        from fastrl.evaluate import evaluate

        began = time.monotonic()
        # By our own name of the folder: an environment may have left the current one.
        path = checkpoint.evaluation_path(self._run_dir, request.steps)
        is_best, problem = False, None
        try:
            seed = evaluation_seed(self._seed, request.steps)
            result = evaluate(
                self._run_dir, self._episodes, seed, checkpoint=path, progress=self._progress
            )
            if self._keep_best and (self._best is None or result.mean > self._best):
                try:
                    self._keep(path, request.steps, result.mean)
                    is_best = True
                except OSError as error:
                    problem = f"best.pt could not be written: {error}"
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return EvaluationResult(
            request.steps,
            result.mean,
            result.margin(),
            float(result.lengths.mean()),
            self._episodes,
            time.monotonic() - began,
            is_best,
            problem,
        )

    def _keep(self, path: Path, steps: int, mean: float) -> None:
        state = checkpoint.load(path) | {"score": mean, "evaluated": True}
        checkpoint.write(checkpoint.best_path(self._run_dir), steps, state)
        self._best = mean


def evaluation_seed(seed: int, steps: int) -> int:
    """Seed of the environments and actions of an evaluation: not those of the training."""
    return int(np.random.default_rng([seed, steps, 0xE7A1]).integers(2**31))


def run(lines: Lines) -> None:
    """The evaluator's body: serve requests until main closes the pipe."""
    start: EvaluatorStart = lines.pipe.recv()
    be_nice(start.niceness)
    register_all(unpack(start.registered, "register_env"))
    register_models(unpack(start.models, "register_model"))
    told = 0.0

    def progress() -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > ALIVE_SECONDS:
            told = now
            lines.pipe.send(("alive", None))

    evaluator = Evaluator(start.run_dir, start.seed, start.episodes, start.keep_best, progress)
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
        self._stepped: float | None = None
        """time.monotonic() of the last word of the evaluation under way; None: it has not begun."""
        self._next_told = SLOW_SECONDS
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
            for kind, result in child.receive():
                if kind == "alive":
                    self._stepped, self._next_told = time.monotonic(), SLOW_SECONDS
                elif kind == "evaluated":
                    self._playing = self._stepped = None
                    self._done(result)
            self._look_at_age(child)
            if ended:
                failure = self._attend_death(child)
                if failure is not None:
                    return failure
        if self._waiting and self._playing is None:
            self._give_out()
        return None

    def _look_at_age(self, child: Child) -> None:
        """Name an evaluator that is inside one step for long; kill it after `--env-timeout`."""
        if self._stepped is None:
            return
        age, limit = time.monotonic() - self._stepped, self._start.env_timeout
        if limit is not None and age > limit:
            child.ended_by_main = (
                f"was ended after {age:.0f} s inside one step of its environments "
                f"(--env-timeout {limit:g})"
            )
            self._stepped = None
            child.kill()
        elif age > self._next_told:
            self._next_told = 2 * age
            self._say(f"the evaluator has been inside one step of its environments for {age:.0f} s")

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
        self._child = self._stepped = None
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
