"""The learner takes a core only where it would idle, and gives back one that does not help."""

from __future__ import annotations

from fastrl.workers.threads import PATIENCE, ThreadGovernor


def idle(governor: ThreadGovernor, updates: int, seconds: float = 4.0) -> list[int]:
    return [governor.after_update(True, 0.0, seconds) for _ in range(updates)]


def test_a_thread_is_added_only_after_several_updates_that_all_waited_for():
    governor = ThreadGovernor(1, most=2)
    assert idle(governor, PATIENCE - 1) == [1] * (PATIENCE - 1)
    assert governor.after_update(False, 0.0, 4.0) == 1, "it begins anew"
    assert idle(governor, PATIENCE) == [1] * (PATIENCE - 1) + [2]
    assert idle(governor, 3 * PATIENCE, seconds=3.0) == [2] * 3 * PATIENCE, "never beyond the cores"


def test_a_thread_that_leaves_the_learner_waiting_is_given_back_for_good():
    governor = ThreadGovernor(1, most=3)
    idle(governor, PATIENCE)
    assert governor.after_update(False, 0.05, 3.0) == 2
    assert governor.after_update(False, 0.3, 3.0) == 1
    assert idle(governor, 3 * PATIENCE) == [1] * 3 * PATIENCE


def test_a_thread_that_does_not_make_updates_faster_is_given_back_for_good():
    governor = ThreadGovernor(1, most=2)
    assert idle(governor, PATIENCE)[-1] == 2
    assert governor.after_update(True, 0.0, 3.0) == 2
    assert governor.after_update(True, 0.0, 30.0) == 1, "another program wants the core"
    assert idle(governor, 3 * PATIENCE) == [1] * 3 * PATIENCE


def test_the_plan_s_own_threads_are_never_given_back():
    governor = ThreadGovernor(4, most=4)
    assert governor.after_update(False, 0.9, 1.0) == 4
