"""A training is followed by its lines until its goal, and its curve ends there."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fastrl.bench.curves import Curve
from fastrl.bench.learn_run import _Watch

SCRIPT = """
import time
time.sleep(0.3)
print("all 2 workers step after 0.1 s", flush=True)
time.sleep(0.2)
print("the mean return of the last 100 episodes is 480.25, the goal 475", flush=True)
"""


def test_the_goal_is_seen_and_ends_the_curve():
    watch = _Watch([sys.executable, "-c", SCRIPT])
    assert watch.wait(30.0) == 0
    assert watch.goal_seconds is not None and 0.5 <= watch.goal_seconds < 20
    assert watch.late == pytest.approx(watch.goal_seconds - 0.3, abs=0.15)
    curve = Curve(np.array([10.0, 20.0]), np.array([0.05, 90.0]), np.array([1.0, 2.0]))
    whole = watch.whole(curve, 30)
    assert whole.steps.tolist() == [10, 30] and whole.returns.tolist() == [1.0, 480.25]
    assert whole.seconds[1] == watch.goal_seconds


SLEEP = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_one_that_does_not_end_is_interrupted():
    watch = _Watch([sys.executable, "-c", SLEEP])
    assert watch.wait(1.5) == 130
    assert watch.goal_seconds is None
