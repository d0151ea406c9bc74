"""Which deaths a run survives, and how soon a worker is tried again."""

from __future__ import annotations

from fastrl.workers.restarts import LONGEST_DELAY, WINDOW_SECONDS, Restarts


def test_the_first_death_of_a_worker_is_made_up_for_at_once_and_later_ones_ever_later():
    restarts = Restarts(most=100)
    delays = [restarts.died(3, now=float(i)) for i in range(12)]
    assert delays[:4] == [0.0, 0.5, 1.0, 2.0]
    assert delays[-1] == LONGEST_DELAY
    assert restarts.died(4, now=12.0) == 0.0  # another one's first


def test_one_more_than_allowed_in_the_window_is_not_replaced():
    restarts = Restarts(most=2)
    assert restarts.died(0, 0.0) is not None
    assert restarts.died(1, 1.0) is not None
    assert restarts.died(2, 2.0) is None
    assert restarts.total == 3


def test_deaths_are_forgotten_after_the_window():
    restarts = Restarts(most=1)
    assert restarts.died(0, 0.0) == 0.0
    assert restarts.died(0, WINDOW_SECONDS + 1.0) == 0.0
    assert restarts.died(0, WINDOW_SECONDS + 2.0) is None


def test_none_is_allowed_where_the_user_says_so():
    assert Restarts(most=0).died(0, 0.0) is None
