"""Counters: values, bounds, and what a count promises about what was written before it."""

from __future__ import annotations

import os

import numpy as np
import pytest
from regions import Shared, join, start

from fastrl.shm import Counters


def test_values() -> None:
    region = np.zeros(4, np.int64)
    counters = Counters(region)
    counters.store(0, -(2**63))
    counters.store(3, 2**63 - 1)
    assert counters.add(1, 5) == 5
    assert counters.add(1, -7) == -2
    assert [counters.load(i) for i in range(4)] == [-(2**63), -2, 0, 2**63 - 1]
    assert region.tolist() == counters.snapshot().tolist() == [-(2**63), -2, 0, 2**63 - 1]


def test_load_many_and_snapshot() -> None:
    counters = Counters(np.arange(10, dtype=np.int64))
    out = np.zeros(3, np.int64)
    counters.load_many(np.array([7, 0, 7]), out)
    assert out.tolist() == [7, 0, 7]
    snapshot = counters.snapshot()
    counters.store(0, 99)
    assert snapshot.dtype == np.int64
    assert snapshot.tolist() == list(range(10))


def fill(shared: Shared, rounds: int) -> None:
    counters = Counters(shared["counters"].view(np.int64))
    slots = shared["slots"].view(np.int64)
    for n in range(rounds):
        while n - counters.load(8) == 4:
            os.sched_yield()
        slots[n % 4] = n
        counters.add(0, 1)


def test_a_count_carries_what_was_written_before_it() -> None:
    shared, rounds = Shared.create(counters=128, slots=32), 20_000
    child = start(fill, shared, rounds)
    counters = Counters(shared["counters"].view(np.int64))
    slots = shared["slots"].view(np.int64)
    for n in range(rounds):
        while counters.load(0) == n:
            os.sched_yield()
        assert slots[n % 4] == n
        counters.store(8, n + 1)
    join(child)


def test_wrong_arguments_are_refused() -> None:
    counters = Counters(np.zeros(4, np.int64))
    for i in [-1, 4, 2**40]:
        with pytest.raises(IndexError, match=f"no counter {i}"):
            counters.load(i)
        with pytest.raises(IndexError):
            counters.store(i, 0)
        with pytest.raises(IndexError):
            counters.add(i, 0)
        with pytest.raises(IndexError):
            counters.load_many(np.array([i]), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="as many indices"):
        counters.load_many(np.zeros(2, np.int64), np.zeros(3, np.int64))
    misaligned = np.zeros(17, np.uint8)[1:].view(np.int64)
    for region in [np.zeros(4), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2], misaligned]:
        with pytest.raises(ValueError, match="aligned"):
            Counters(region)  # type: ignore[arg-type]
