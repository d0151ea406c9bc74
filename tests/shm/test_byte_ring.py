"""The byte ring: whole records, in order, each once; the lost ones counted."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from regions import Shared, aligned, join, start

from fastrl.shm import ByteRing, byte_ring_bytes

FRAME = 4  # bytes before each record


def ring_of(capacity: int) -> ByteRing:
    return ByteRing(aligned(byte_ring_bytes(capacity)))


def record_of(life: int, serial: int) -> bytes:
    return b"%d %d " % (life, serial) + b"x" * (serial % 57)


def numbers_of(record: bytes) -> tuple[int, int]:
    life, serial, padding = record.split(b" ")
    assert record == record_of(int(life), int(serial)), padding
    return int(life), int(serial)


def test_records_of_all_lengths_wrap_around() -> None:
    ring, rng = ring_of(256), random.Random(1)
    for _ in range(500):
        records = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(5))]
        assert all(ring.push(record) for record in records)
        assert ring.pop_all() == records
    assert ring.lost == 0


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    ring = ring_of(64)
    assert ring.push(b"a" * (64 - FRAME - FRAME - 1))
    assert ring.push(b"b")
    assert not ring.push(b"")
    assert not ring.push(b"c" * 1000)
    assert ring.lost == 2
    assert ring.pop_all() == [b"a" * 55, b"b"]
    assert ring.push(b"d" * (64 - FRAME))
    assert ring.pop_all() == [b"d" * (64 - FRAME)]
    assert ring.lost == 2


def test_arrays_are_records() -> None:
    ring = ring_of(256)
    episodes = np.array([(1, 2.5)], [("length", np.int64), ("total", np.float32)])
    assert ring.push(episodes)
    assert ring.push(memoryview(b"abc"))
    first, second = ring.pop_all()
    assert np.array_equal(np.frombuffer(first, episodes.dtype), episodes)
    assert second == b"abc"
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        ring.push(np.zeros(8)[::2])
    with pytest.raises(TypeError):
        ring.push("text")  # type: ignore[arg-type]
    assert ring.pop_all() == []


def push_all(shared: Shared, total: int) -> None:
    ring = ByteRing(shared["ring"])
    serial = 0
    while serial < total:
        if ring.push(record_of(0, serial)):
            serial += 1
        else:
            os.sched_yield()


def test_order_and_loss_at_full_speed() -> None:
    shared, total = Shared.create(ring=byte_ring_bytes(1 << 16)), 100_000
    child = start(push_all, shared, total)
    ring = ByteRing(shared["ring"])
    expected = 0
    while expected < total:
        for record in ring.pop_all():
            assert numbers_of(record) == (0, expected)
            expected += 1
        os.sched_yield()
    join(child)
    assert ring.pop_all() == []


def push_for_ever(shared: Shared, life: int) -> None:
    ring = ByteRing(shared["ring"])
    serial = 0
    while True:
        serial += ring.push(record_of(life, serial))


def test_replacement_of_a_killed_producer_goes_on_where_it_ended() -> None:
    shared = Shared.create(ring=byte_ring_bytes(1 << 16))
    ring, rng = ByteRing(shared["ring"]), random.Random(2)
    for life in range(10):
        child = start(push_for_ever, shared, life)
        seen: list[bytes] = []
        enough = rng.randrange(1, 3000)
        while len(seen) < enough:
            seen += ring.pop_all()
            os.sched_yield()
        child.kill()
        child.join()
        seen += ring.pop_all()
        assert [numbers_of(record) for record in seen] == [(life, i) for i in range(len(seen))]


def test_wrong_regions_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        byte_ring_bytes(1000)
    with pytest.raises(ValueError, match="power of two"):
        ByteRing(aligned(byte_ring_bytes(64) + 1))
    with pytest.raises(ValueError, match="power of two"):
        ByteRing(aligned(64))
    with pytest.raises(ValueError, match="multiple of 64"):
        ByteRing(aligned(byte_ring_bytes(64) + 4)[4:])
