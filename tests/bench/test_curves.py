"""Learning curves of records, and several of them together."""

from __future__ import annotations

import numpy as np
import pytest

from fastrl.bench.curves import Curve, curve_of, interquartile_mean, together


def records(counts: list[int], means: list[float]) -> list[dict]:
    total, found = 0, []
    for place, (count, mean) in enumerate(zip(counts, means, strict=True)):
        total += count
        found.append(
            {
                "steps": 10 * place,
                "seconds": float(place),
                "charts/episodic_return": mean,
                "charts/episodes": float(total),
            }
        )
    return found


def test_a_point_is_the_mean_of_the_last_hundred_episodes():
    curve = curve_of(records([60, 60, 20, 200], [1.0, 2.0, 5.0, 7.0]))
    # 60 of the second and 40 of the first; then 20, 60 and 20; then 100 of the last.
    assert curve.returns.tolist() == pytest.approx([1.6, 2.4, 7.0])
    assert curve.steps.tolist() == [10, 20, 30] and curve.seconds.tolist() == [1, 2, 3]
    assert curve.first_at(2.0) == 1 and curve.first_at(8.0) is None


def test_records_without_an_end_of_an_episode_are_left_out():
    found = records([100, 100], [1.0, 3.0])
    found.insert(1, {"steps": 5, "seconds": 0.5})
    assert curve_of(found).returns.tolist() == [1.0, 3.0]
    assert len(curve_of([{"steps": 5, "seconds": 0.5}]).steps) == 0


@pytest.mark.parametrize(
    "values, expected",
    [
        ([3.0], 3.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 4.0, 100.0], (0.25 * 0 + 4.0 + 0.25 * 100) / 1.5),
        ([0.0, 4.0, 6.0, 100.0], 5.0),
        (list(range(8)), 3.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values, expected):
    assert interquartile_mean(np.array(values, float)) == pytest.approx(expected)


def test_curves_together_hold_their_last_value_and_have_an_interval():
    short = Curve(np.array([0.0, 10.0]), np.array([0.0, 1.0]), np.array([0.0, 8.0]))
    long = Curve(np.array([0.0, 40.0]), np.array([0.0, 4.0]), np.array([0.0, 8.0]))
    places, mean, (low, high) = together([short, long], "steps")
    assert places[-1] == 40 and mean[-1] == low[-1] == high[-1] == 8.0
    middle = np.searchsorted(places, 10.0)
    assert low[middle] < mean[middle] < high[middle]
    assert mean[middle] == pytest.approx((8.0 + 2.0) / 2, abs=0.2)
