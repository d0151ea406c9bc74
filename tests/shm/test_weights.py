"""Published weights are read whole, whatever the writer does meanwhile."""

from __future__ import annotations

import os
import random
from itertools import count

import numpy as np
import pytest
from regions import Shared, aligned, start

from fastrl.shm import Weights, weights_bytes

NUM_FLOATS = 50_001  # odd: the last cell is half full


def weights_of(version: int, num_floats: int = NUM_FLOATS) -> np.ndarray:
    return np.full(num_floats, version % 1000, np.float32)


def publish_for_ever(shared: Shared) -> None:
    weights = Weights(shared["weights"], NUM_FLOATS)
    for version in count(weights.version + 1):
        assert weights.publish(weights_of(version)) == version


def test_versions_count_from_one() -> None:
    weights = Weights(aligned(weights_bytes(3)), 3)
    target = np.full(3, 9, np.float32)
    assert weights.version == 0
    assert weights.read(target) == 0
    assert target.tolist() == [9, 9, 9]
    for version in range(1, 6):
        assert weights.publish(np.arange(3, dtype=np.float32) + version) == version
        assert weights.version == version
        assert weights.read(target) == version
        assert target.tolist() == [version, version + 1, version + 2]


@pytest.mark.parametrize("num_floats", [1, 2, 15, 16, 17, 31, 33, 1000])
def test_halves_do_not_overlap(num_floats: int) -> None:
    weights = Weights(aligned(weights_bytes(num_floats)), num_floats)
    values = np.random.default_rng(0).normal(size=(4, num_floats)).astype(np.float32)
    target = np.zeros(num_floats, np.float32)
    for version, row in enumerate(values, 1):
        weights.publish(row)
        assert weights.read(target) == version
        assert np.array_equal(target, row)


def test_no_read_is_torn_under_a_writer_at_full_speed() -> None:
    shared = Shared.create(weights=weights_bytes(NUM_FLOATS))
    child = start(publish_for_ever, shared)
    weights = Weights(shared["weights"], NUM_FLOATS)
    target = np.zeros(NUM_FLOATS, np.float32)
    fresh, before = 0, 0
    while fresh < 500:
        version = weights.read(target)
        assert version >= before
        assert np.array_equal(target, weights_of(version))
        fresh += version > before
        if version == before:
            os.sched_yield()  # lets the writer run where it has no core of its own
        before = version
    child.kill()
    child.join()


def test_replacement_of_a_killed_writer_goes_on_from_its_version() -> None:
    shared = Shared.create(weights=weights_bytes(NUM_FLOATS))
    weights = Weights(shared["weights"], NUM_FLOATS)
    begun = shared["weights"][:8].view(np.uint64)
    target, rng = np.zeros(NUM_FLOATS, np.float32), random.Random(3)
    unfinished = 0
    for _ in range(15):
        before = weights.version
        child = start(publish_for_ever, shared)
        enough = before + rng.randrange(1, 100)
        while weights.version < enough:
            os.sched_yield()
        child.kill()
        child.join()
        version = weights.read(target)
        assert version == weights.version >= enough
        assert np.array_equal(target, weights_of(version))
        unfinished += int(begun[0]) != version
    assert unfinished > 0, "none was killed in the middle, so this proved nothing"


def test_wrong_arguments_are_refused() -> None:
    weights = Weights(aligned(weights_bytes(8)), 8)
    with pytest.raises(ValueError, match="at least 1"):
        weights_bytes(0)
    with pytest.raises(ValueError, match="8 floats, but the array has 7"):
        weights.publish(np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="8 floats, but the array has 9"):
        weights.read(np.zeros(9, np.float32))
    with pytest.raises(TypeError):  # a converted copy would be filled and thrown away
        weights.read(np.zeros(8, np.float64))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        weights.publish(np.zeros(16, np.float32)[::2])
    with pytest.raises(ValueError, match="must have"):
        Weights(aligned(weights_bytes(8)), 100)
    with pytest.raises(ValueError, match="multiple of 64"):
        Weights(aligned(weights_bytes(8) + 4)[4:], 8)
