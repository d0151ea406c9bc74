"""The learner takes a core only where it would idle, and gives it back once."""

from __future__ import annotations

from fastrl.workers.threads import PATIENCE, ThreadGovernor


def test_a_thread_is_added_only_after_several_updates_that_all_waited_for():
    governor = ThreadGovernor(1, most=2)
    for _ in range(PATIENCE - 1):
        assert governor.after_update(True, 0.0) == 1
    assert governor.after_update(False, 0.0) == 1, "it begins anew"
    for _ in range(PATIENCE - 1):
        assert governor.after_update(True, 0.0) == 1
    assert governor.after_update(True, 0.0) == 2
    for _ in range(3 * PATIENCE):
        assert governor.after_update(True, 0.0) == 2, "never more than the cores"


def test_a_thread_too_many_is_given_back_for_good():
    governor = ThreadGovernor(1, most=3)
    for _ in range(PATIENCE):
        governor.after_update(True, 0.0)
    assert governor.threads == 2
    assert governor.after_update(False, 0.05) == 2
    assert governor.after_update(False, 0.3) == 1
    for _ in range(3 * PATIENCE):
        assert governor.after_update(True, 0.0) == 1


def test_the_plan_s_own_threads_are_never_given_back():
    governor = ThreadGovernor(4, most=4)
    assert governor.after_update(False, 0.9) == 4
