"""From shared counters, finished episodes and the learner's reports to the values of one record.

Main owns this: it reads counters that others write, and is never on the path of a step.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastrl.monitor.accounts import CLOCK_SIZE, SAMPLED_MASK, Clock, episode_dtype
from fastrl.shm import ByteRing, Counters

RECENT_EPISODES = 100
"""Episodes in the mean that stopping and the console use."""

MAXIMUM_SUFFIX = "/max"
"""A metric whose name ends in this is a maximum: several of it make their maximum, not a mean."""


class EpisodeLog:
    """Finished episodes of all workers: the running mean, and who has finished one yet."""

    def __init__(
        self,
        regions: Sequence[np.ndarray],
        num_envs: int,
        log_info: Sequence[str] = (),
        finished: int = 0,
    ) -> None:
        """Read the byte ring of each worker; ``num_envs`` counts the run's environments,
        ``log_info`` names the values that an episode brings out of its last info, and
        ``finished`` episodes ended before a resume."""
        self.finished = finished
        """Episodes of the run that have been taken in, over all resumes."""
        self._log_info = tuple(log_info)
        self._dtype = episode_dtype(len(log_info))
        self.info_seen: set[str] = set()
        """Names of ``log_info`` that an episode has brought."""
        self._rings = [ByteRing(region) for region in regions]
        self._seen = np.zeros(num_envs, np.bool_)
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._arrived = np.empty(0, self._dtype)
        self._fresh: list[np.ndarray] = []

    def drain(self, before_row: int | None = None) -> None:
        """Take in what the workers have reported since the last call.

        With ``before_row`` only episodes that ended in an earlier row; the others wait. Those taken
        are in the order of (row, environment), whatever order they came in.
        """
        reports = [report for ring in self._rings for report in ring.pop_all()]
        records = [np.frombuffer(report, self._dtype) for report in reports]
        arrived = np.concatenate([self._arrived, *records]) if records else self._arrived
        now = np.ones(len(arrived), bool) if before_row is None else arrived["row"] < before_row
        self._arrived, episodes = arrived[~now], arrived[now]
        if not len(episodes):
            return
        episodes = episodes[np.lexsort((episodes["env"], episodes["row"]))]
        self._fresh.append(episodes)
        self._seen[episodes["env"]] = True
        self._recent.extend(episodes["return"].tolist())
        self.finished += len(episodes)

    @property
    def lost(self) -> int:
        """Reports of episodes that found their ring full, since the run began."""
        return sum(ring.lost for ring in self._rings)

    @property
    def recent_return(self) -> float | None:
        """Mean raw return of the last 100 episodes, or None before the first."""
        return float(np.mean(self._recent)) if self._recent else None

    @property
    def every_env_finished(self) -> bool:
        """Whether every environment has finished an episode and a full window is known.

        Without it, a mean over the first episodes to end would be one over the short ones.
        """
        return bool(self._seen.all()) and len(self._recent) == RECENT_EPISODES

    def forget(self) -> None:
        """Begin the running mean anew, as every environment begins anew; counts stay."""
        self._recent.clear()
        self._seen[:] = False

    def take(self) -> dict[str, float]:
        """Return mean return and length of the episodes since the last call, and the number of
        all (empty if there are no new ones)."""
        if not self._fresh:
            return {}
        episodes = np.concatenate(self._fresh)
        self._fresh.clear()
        return {
            "charts/episodic_return": float(episodes["return"].mean()),
            "charts/episodic_length": float(episodes["length"].mean()),
            "charts/episodes": float(self.finished),
        } | self._take_info(episodes)

    def _take_info(self, episodes: np.ndarray) -> dict[str, float]:
        """Means of the values that the episodes had in their last info."""
        means = {}
        for at, name in enumerate(self._log_info):
            values = episodes["info"][:, at]
            values = values[~np.isnan(values)]
            if len(values):
                means[f"info/{name}"] = float(values.mean())
                self.info_seen.add(name)
        return means


class LearnerReports:
    """What the learner reported over the updates since the last record: means, and maxima of the
    names that end in ``/max``."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, int] = defaultdict(int)
        self._maxima: dict[str, float] = {}

    def add(self, metrics: dict[str, float], updates: int) -> None:
        """Add means (or maxima, by name) over ``updates`` updates."""
        for name, value in metrics.items():
            if value != value:  # a report over rows that were all masked has no value, never NaN
                continue
            if name.endswith(MAXIMUM_SUFFIX):
                self._maxima[name] = max(value, self._maxima.get(name, value))
            else:
                self._sums[name] += value * updates
                self._weights[name] += updates

    def take(self) -> dict[str, float]:
        """Return the means, weighted by updates, and the maxima; start anew."""
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        taken = {**means, **self._maxima}
        self._sums.clear()
        self._weights.clear()
        self._maxima.clear()
        return taken


class Counts(NamedTuple):
    """The counters that rates are made of."""

    progress: Counters  # per group
    rollout_clock: Counters  # CLOCK_SIZE per worker
    inference_clock: Counters
    learner_clock: Counters


class RateMeter:
    """Rates and shares of time between two records, from the counters in the arena."""

    def __init__(self, counts: Counts, frame_skip: int) -> None:
        self._counts = counts
        self._frame_skip = frame_skip
        self._last = self._read()

    def _read(self) -> dict[str, np.ndarray]:
        counts = self._counts
        return {
            "time": np.array([time.monotonic_ns()]),
            "sampled": counts.progress.snapshot() & SAMPLED_MASK,
            "rollout": counts.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE),
            "inference": counts.inference_clock.snapshot(),
            "learner": counts.learner_clock.snapshot(),
        }

    def take(self) -> dict[str, float]:
        """Return rates since the last call."""
        now, last = self._read(), self._last
        self._last = now
        elapsed = float(now["time"][0] - last["time"][0])
        rate = float((now["sampled"] - last["sampled"]).sum()) / (elapsed * 1e-9)
        metrics = {"charts/SPS": rate, "charts/FPS": rate * self._frame_skip}
        if not now["learner"][Clock.STARTED]:
            return metrics  # one process that does everything in turn: nobody waits for anybody
        rollout = (now["rollout"] - last["rollout"]).mean(axis=0) / elapsed
        inference = now["inference"] - last["inference"]
        learner = now["learner"] - last["learner"]
        metrics |= {
            "wait/rollout_action": _share(rollout[Clock.WAIT]),
            "wait/rollout_slot": _share(rollout[Clock.WAIT_SLOT]),
            "wait/inference": _share(inference[Clock.WAIT] / elapsed),
            "wait/learner": _share(learner[Clock.WAIT] / elapsed),
        }
        if inference[Clock.BATCHES] > 0:
            metrics["inference/batch"] = float(inference[Clock.ROWS] / inference[Clock.BATCHES])
        return metrics


def _share(value: float) -> float:
    # A wait is added when it ends, so a long one may be counted in a later and shorter interval.
    return float(min(1.0, max(0.0, value)))
