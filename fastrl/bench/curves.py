"""Learning curves of several seeds: when each reaches a return, and what they are together.

Together is the interquartile mean with a bootstrap interval over the seeds, as Agarwal et al. 2021
("Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv:2108.13264) have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastrl.bench.records import Record
from fastrl.monitor.metrics import RECENT_EPISODES

RETURN = "charts/episodic_return"
EPISODES = "charts/episodes"
RESAMPLES = 2000
GRID = 200
"""Places at which curves of several seeds are compared."""


@dataclass(frozen=True)
class Curve:
    """The mean raw return of the last 100 episodes, at each record in which some ended; f64 [n]."""

    steps: np.ndarray
    seconds: np.ndarray
    """Since the start of the training, as the run counts them."""
    returns: np.ndarray

    def first_at(self, level: float) -> int | None:
        """Index of the first entry that has this return; None where none has."""
        reached = np.flatnonzero(self.returns >= level)
        return int(reached[0]) if len(reached) else None

    def as_json(self) -> dict[str, Any]:
        """Rounded, for a file that is kept."""
        return {
            "steps": self.steps.astype(int).tolist(),
            "seconds": self.seconds.round(2).tolist(),
            "returns": self.returns.round(3).tolist(),
        }


def curve_of(records: list[Record], window: int = RECENT_EPISODES) -> Curve:
    """The curve of a run's records.

    A record has the mean of the episodes that ended in its interval, and their number: the mean of
    the last 100 is taken over whole records, the oldest one with the weight that fills the window.
    It begins with the first full window.
    """
    rows = []
    means: list[float] = []
    counts: list[float] = []
    before = 0.0
    for record in records:
        if RETURN not in record:
            continue
        count = record[EPISODES] - before
        before = record[EPISODES]
        means.append(record[RETURN])
        counts.append(count)
        if before >= window:
            value = _mean_of_last(means, counts, window)
            rows.append((record["steps"], record["seconds"], value))
    if not rows:
        return Curve(*np.empty((3, 0)))
    return Curve(*np.array(rows, np.float64).T)


def _mean_of_last(means: list[float], counts: list[float], window: int) -> float:
    left, total = float(window), 0.0
    for mean, count in zip(reversed(means), reversed(counts), strict=True):
        taken = min(left, count)
        total += taken * mean
        left -= taken
        if left <= 0:
            break
    return total / (window - left)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis, the values at its borders with their share:
    f64 [...] from [..., n]."""
    n = values.shape[-1]
    ordered = np.sort(values, axis=-1)
    at = np.arange(n)
    inside = np.clip(np.minimum(at + 1, 0.75 * n) - np.maximum(at, 0.25 * n), 0.0, 1.0)
    mean: np.ndarray = (ordered * inside).sum(-1) / inside.sum()
    return mean


def together(curves: list[Curve], along: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interquartile mean over the seeds, along `steps` or `seconds`.

    Returns places f64 [GRID], the mean there [GRID], and its 95 % interval [2, GRID]; each curve is
    taken as constant after its end, where a run that stops at its goal has reached it.
    """
    ends = [getattr(curve, along)[-1] for curve in curves]
    starts = [getattr(curve, along)[0] for curve in curves]
    places = np.linspace(max(starts), max(ends), GRID)
    values = np.stack(
        [np.interp(places, getattr(curve, along), curve.returns) for curve in curves], -1
    )
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(curves), (RESAMPLES, len(curves)))
    resampled = np.stack([interquartile_mean(values[:, draw]) for draw in draws])
    return places, interquartile_mean(values), np.quantile(resampled, [0.025, 0.975], axis=0)
