"""Slow groups are named with their age, and a standstill says who does what."""

from __future__ import annotations

import time

import counting
import pytest
from engine import make_plan

from fastrl.monitor.accounts import CLOCK_SIZE, Clock, Control
from fastrl.shm import Arena
from fastrl.workers import watch as module
from fastrl.workers.shared import Shared
from fastrl.workers.watch import Watch


@pytest.fixture
def shared():
    arena = Arena.create()
    plan = make_plan(arena, counting.spec("count:x"), workers=2, envs_per_worker=8)
    yield Shared(plan, arena)
    arena.close()


def begin_step(shared: Shared, worker: int, group: int, ago: float) -> None:
    base = worker * CLOCK_SIZE
    shared.rollout_clock.store(base + Clock.STARTED, 1)
    shared.rollout_clock.store(base + Clock.BUSY_GROUP, group)
    shared.rollout_clock.store(base + Clock.BUSY_SINCE, time.monotonic_ns() - int(ago * 1e9))


def test_a_step_is_named_from_ten_seconds_on_and_then_more_and_more_rarely(shared):
    watch = Watch(shared)
    begin_step(shared, 1, 2, ago=9.0)
    assert list(watch.lines()) == []
    begin_step(shared, 1, 2, ago=12.0)
    (line,) = watch.lines()
    assert "rollout worker 1 has been inside one step of environments" in line
    assert "for 12 s" in line and "--env-timeout" in line
    assert list(watch.lines()) == []  # the same step, not twice as old
    begin_step(shared, 1, 2, ago=11.0)  # another step
    assert len(list(watch.lines())) == 1


def test_the_environments_are_those_of_the_group(shared):
    E = shared.plan.envs_per_group
    begin_step(shared, 1, 3, ago=20.0)
    (line,) = Watch(shared).lines()
    assert f"environments {3 * E} to {4 * E - 1} " in line


def test_who_waits_is_not_inside_a_step(shared):
    begin_step(shared, 0, 0, ago=30.0)
    shared.rollout_clock.store(Clock.BUSY_SINCE, 0)
    assert list(Watch(shared).busy()) == []


def test_a_standstill_is_told_and_progress_ends_it(shared, monkeypatch):
    monkeypatch.setattr(module, "STILL_SECONDS", 0.05)
    watch = Watch(shared)
    assert list(watch.lines()) == []
    time.sleep(0.06)
    (line,) = watch.lines()
    assert "2 of 2 rollout workers are starting" in line
    shared.control.store(Control.STEPS, 1)
    assert list(watch.lines()) == []


def test_time_in_which_main_was_stopped_itself_does_not_count(shared, monkeypatch):
    """Ctrl-Z and fg, or a machine that slept: everyone stood still."""
    watch = Watch(shared)
    begin_step(shared, 1, 2, ago=1.0)
    (before,) = watch.busy()
    later = time.monotonic_ns() + int(60e9)
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: later)
    (after,) = watch.busy()
    assert before.seconds < 5 and after.seconds < 5


def test_a_start_that_takes_long_is_told_and_is_no_step(shared, monkeypatch):
    monkeypatch.setattr(module, "SLOW_START_SECONDS", 0.05)
    watch = Watch(shared)
    assert list(watch.lines()) == []
    watch._next_starting = 0.05
    time.sleep(0.06)
    (line,) = watch.lines()
    assert line.startswith("2 of 2 rollout workers are constructing or resetting")
    shared.rollout_clock.store(Clock.BUSY_SINCE, time.monotonic_ns() - int(30e9))
    (slow,) = watch.busy()
    assert not slow.stepping, "--env-timeout is for steps"
    assert list(watch.lines()) == [], "64 workers that start on two cores are no news"
