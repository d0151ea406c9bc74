"""Rings and doorbells through processes; native/test_native.cpp does the same with threads."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from regions import HANG, Shared, aligned, join, start, words_for

from fastrl.shm import (
    DOORBELL_BYTES,
    Closed,
    Consumer,
    Producer,
    close_doorbell,
    doorbell_closed,
    ring_bytes,
)

SLEEPS = 1_000_000 if os.environ.get("FASTRL_LONG_TESTS") == "1" else 100_000


def pair(capacity: int, rings: int = 1) -> tuple[Producer, Consumer, np.ndarray]:
    """Both ends in this process."""
    regions = [aligned(ring_bytes(capacity)) for _ in range(rings)]
    bell = aligned(DOORBELL_BYTES)
    return Producer(regions, [bell] * rings), Consumer(regions, bell), bell


def pop(consumer: Consumer, n: int = 64, timeout: float = 0.0, **options: float) -> list[int]:
    words, sources = words_for(n)
    count = consumer.pop_many(words, sources, timeout, **options)
    return [int(word) for word in words[:count]]


def count_up(shared: Shared, total: int) -> None:
    producer = Producer([shared["ring"]], [shared["ring_bell"]])
    sent = 0
    zeros = np.zeros(64, np.uint32)
    while sent < total:
        if sent % 3:  # single pushes and batches in turn
            sent += producer.push(0, sent)
        else:
            words = np.arange(sent, min(sent + 64, total), dtype=np.uint64)
            sent += producer.push_many(zeros[: len(words)], words)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_all_words_arrive_in_order_at_full_speed(method: str) -> None:
    shared, total = Shared.rings(256, "ring"), 1_000_000
    child = start(count_up, shared, total, method=method)
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    words, sources = words_for(1000)
    expected = 0
    while expected < total:
        n = consumer.pop_many(words, sources, HANG)
        assert np.array_equal(words[:n], np.arange(expected, expected + n))
        expected += n
        assert n > 0
    join(child)
    assert pop(consumer) == []


def push_for_ever(shared: Shared, life: int) -> None:
    producer = Producer([shared["ring"]], [shared["ring_bell"]])
    serial = 0
    while True:
        serial += producer.push(0, life << 40 | serial)


def test_replacement_of_a_killed_producer_goes_on_where_it_ended() -> None:
    shared = Shared.rings(4096, "ring")
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    rng = random.Random(1)
    for life in range(15):
        child = start(push_for_ever, shared, life)
        seen: list[int] = []
        enough = rng.randrange(1, 5000)
        while len(seen) < enough:
            seen += pop(consumer, timeout=HANG)
        child.kill()
        child.join(HANG)
        while rest := pop(consumer):
            seen += rest
        # A prefix of what this life pushed: no gap, none twice, none of another life.
        assert seen == [life << 40 | serial for serial in range(len(seen))]


def test_words_wrap_around_and_a_full_ring_refuses() -> None:
    producer, consumer, _ = pair(4)
    serial = 0
    for n in [4, 1, 3, 2, 4, 4, 1] * 3:
        expected = list(range(serial, serial + n))
        for word in expected:
            assert producer.push(0, word)
        serial += n
        assert producer.push_many(np.zeros(4 - n, np.uint32), np.zeros(4 - n, np.uint64)) == 4 - n
        assert not producer.push(0, 99)
        assert pop(consumer) == expected + [0] * (4 - n)


def test_words_of_64_bits_survive() -> None:
    producer, consumer, _ = pair(4)
    producer.push(0, 2**64 - 1)
    assert pop(consumer) == [2**64 - 1]


def test_push_many_stops_at_the_first_full_ring() -> None:
    producer, consumer, _ = pair(2, rings=2)
    rings = np.array([0, 1, 0, 0, 1], np.uint32)
    assert producer.push_many(rings, np.arange(5, dtype=np.uint64)) == 3
    words, sources = words_for(5)
    assert consumer.pop_many(words, sources, 0) == 3
    assert sorted(zip(words[:3], sources[:3], strict=True)) == [(0, 0), (1, 1), (2, 0)]


def test_a_new_object_goes_on_from_the_indices_in_memory() -> None:
    region, bell = aligned(ring_bytes(4)), aligned(DOORBELL_BYTES)
    Producer([region], [bell]).push(0, 1)
    producer = Producer([region], [bell])
    producer.push(0, 2)
    assert pop(Consumer([region], bell), n=1) == [1]
    assert pop(Consumer([region], bell)) == [2]
    assert [producer.push(0, word) for word in range(5)] == [True] * 4 + [False]


def test_each_scan_starts_where_the_last_ended() -> None:
    producer, consumer, _ = pair(8, rings=4)
    for ring in range(4):
        for _ in range(8):
            producer.push(ring, ring)
    # With room for one word each ring has its turn before any has its second.
    seen = [pop(consumer, n=1)[0] for _ in range(32)]
    for turn in range(0, 32, 4):
        assert sorted(seen[turn : turn + 4]) == [0, 1, 2, 3]


def test_poll_does_not_wait_and_a_time_out_waits_as_long_as_it_says() -> None:
    _, consumer, _ = pair(4)
    assert pop(consumer) == []
    assert consumer.sleeps == 0
    begin = time.monotonic()
    assert pop(consumer, timeout=0.05) == []
    assert time.monotonic() - begin >= 0.05
    assert consumer.sleeps > 0


def test_at_least_returns_at_once_when_it_can() -> None:
    producer, consumer, _ = pair(8)
    producer.push_many(np.zeros(3, np.uint32), np.arange(3, dtype=np.uint64))
    assert pop(consumer, timeout=HANG, at_least=3, linger=HANG) == [0, 1, 2]
    assert consumer.sleeps == 0


def test_linger_ends_with_fewer_words() -> None:
    producer, consumer, _ = pair(8)
    producer.push(0, 7)
    begin = time.monotonic()
    assert pop(consumer, timeout=HANG, at_least=3, linger=0.05) == [7]
    assert time.monotonic() - begin >= 0.05


def test_at_least_beyond_the_room_means_the_room() -> None:
    producer, consumer, _ = pair(8)
    for word in range(3):
        producer.push(0, word)
    assert pop(consumer, n=2, timeout=HANG, at_least=5, linger=HANG) == [0, 1]


def test_one_who_lingers_is_woken_by_the_first_word_and_the_last() -> None:
    producer, consumer, _ = pair(64)
    result: list[list[int]] = []
    waiter = threading.Thread(
        target=lambda: result.append(pop(consumer, timeout=HANG, at_least=50, linger=HANG))
    )
    waiter.start()
    for word in range(50):
        producer.push(0, word)
    waiter.join(HANG)
    assert result == [list(range(50))]
    assert producer.wakes <= 2
    assert consumer.rescues == 0


def test_nobody_wakes_a_consumer_that_is_awake() -> None:
    producer, consumer, _ = pair(1024)
    pop(consumer, timeout=0.01)
    for word in range(1000):
        producer.push(0, word)
    assert producer.wakes == 0


def push_to_one_who_looks(shared: Shared, total: int) -> None:
    producer = Producer([shared["ring"]], [shared["ring_bell"]])
    sent, zeros = 0, np.zeros(8, np.uint32)
    while sent < total:
        if sent % 2:
            sent += producer.push(0, sent)
        else:
            sent += producer.push_many(zeros, np.arange(sent, sent + 8, dtype=np.uint64))
    # Each would have been a system call.
    assert producer.wakes == 0


def test_nobody_wakes_one_who_looks_again_and_again_in_another_process() -> None:
    shared, total = Shared.rings(256, "ring"), 200_000
    child = start(push_to_one_who_looks, shared, total)
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    words, sources = words_for(64)
    received = 0
    while received < total:
        received += consumer.pop_many(words, sources, 0.0)
    assert consumer.sleeps == 0
    # The bell, its first word, counts what came while somebody slept.
    assert int(shared["ring_bell"][:4].view(np.uint32)[0]) == 0
    join(child)


def echo(shared: Shared) -> None:
    consumer = Consumer([shared["there"]], shared["there_bell"])
    producer = Producer([shared["back"]], [shared["back_bell"]])
    words, sources = words_for(1)
    try:
        while consumer.pop_many(words, sources, HANG):
            assert consumer.rescues == 0
            producer.push(0, int(words[0]))
    except Closed:
        return


def test_no_wake_up_is_lost_between_processes() -> None:
    shared = Shared.rings(4, "there", "back")
    child = start(echo, shared)
    consumer = Consumer([shared["back"]], shared["back_bell"])
    producer = Producer([shared["there"]], [shared["there_bell"]])
    words, sources = words_for(1)
    serial = 0
    while consumer.sleeps < SLEEPS:
        producer.push(0, serial)
        assert consumer.pop_many(words, sources, HANG) == 1
        assert words[0] == serial
        # The wait would have ended by itself after a second; that counts as lost.
        assert consumer.rescues == 0
        serial += 1
    close_doorbell(shared["there_bell"])
    join(child)


def wait_for_closing(shared: Shared, at_least: int) -> None:
    ready = Producer([shared["ready"]], [shared["ready_bell"]])
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    words, sources = words_for(8)
    ready.push(0, 1)
    with pytest.raises(Closed):
        consumer.pop_many(words, sources, HANG, at_least=at_least, linger=HANG)
    assert doorbell_closed(shared["ring_bell"])


@pytest.mark.parametrize("at_least", [1, 3])
def test_closing_ends_a_wait_in_another_process(at_least: int) -> None:
    shared = Shared.rings(8, "ring", "ready")
    child = start(wait_for_closing, shared, at_least)
    ready = Consumer([shared["ready"]], shared["ready_bell"])
    assert pop(ready, timeout=HANG) == [1]
    producer = Producer([shared["ring"]], [shared["ring_bell"]])
    if at_least > 1:
        producer.push(0, 1)
    assert not doorbell_closed(shared["ring_bell"])
    close_doorbell(shared["ring_bell"])
    join(child)


def test_closing_one_doorbell_stops_only_its_own() -> None:
    regions = [aligned(ring_bytes(4)) for _ in range(2)]
    bells = [aligned(DOORBELL_BYTES) for _ in range(2)]
    producer = Producer(regions, bells)
    close_doorbell(bells[1])
    assert producer.push(0, 5)
    with pytest.raises(Closed, match="closed"):
        producer.push(1, 5)
    with pytest.raises(Closed):
        producer.push_many(np.array([0, 1], np.uint32), np.array([6, 6], np.uint64))
    assert pop(Consumer([regions[0]], bells[0])) == [5]
    with pytest.raises(Closed):
        pop(Consumer([regions[1]], bells[1]))


class Rang(Exception):
    """Raised by the signal handler of these tests."""


def test_a_signal_handler_runs_during_a_wait_and_loses_no_word() -> None:
    producer, consumer, _ = pair(8)
    producer.push(0, 1)

    def ring(signum: int, frame: object) -> None:
        raise Rang

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Rang):
            pop(consumer, timeout=HANG, at_least=2, linger=HANG)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert pop(consumer) == [1]


def test_a_wait_goes_on_after_a_signal_whose_handler_returns() -> None:
    _, consumer, _ = pair(8)
    calls: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda signum, frame: calls.append(signum))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        begin = time.monotonic()
        assert pop(consumer, timeout=0.1) == []
        assert time.monotonic() - begin >= 0.1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert calls


def wait_for_interrupt(shared: Shared) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ready = Producer([shared["ready"]], [shared["ready_bell"]])
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    words, sources = words_for(8)
    with pytest.raises(KeyboardInterrupt):
        ready.push(0, 1)
        consumer.pop_many(words, sources, HANG)


def test_a_keyboard_interrupt_ends_a_wait() -> None:
    shared = Shared.rings(8, "ring", "ready")
    child = start(wait_for_interrupt, shared)
    assert pop(Consumer([shared["ready"]], shared["ready_bell"]), timeout=HANG) == [1]
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    join(child)


def test_other_threads_run_while_one_waits() -> None:
    producer, consumer, _ = pair(8)
    result: list[list[int]] = []
    waiter = threading.Thread(target=lambda: result.append(pop(consumer, timeout=HANG)))
    waiter.start()  # would hang here or below if the waiter kept the GIL
    producer.push(0, 3)
    waiter.join(HANG)
    assert result == [[3]]


def test_spinning_finds_a_word_without_sleeping() -> None:
    region, bell = aligned(ring_bytes(4)), aligned(DOORBELL_BYTES)
    producer = Producer([region], [bell])
    consumer = Consumer([region], bell, spin_us=1_000_000)
    result: list[list[int]] = []
    waiter = threading.Thread(target=lambda: result.append(pop(consumer, timeout=HANG)))
    waiter.start()
    producer.push(0, 3)
    waiter.join(HANG)
    assert result == [[3]]
    assert producer.wakes == consumer.sleeps == 0


def test_the_objects_keep_their_memory_alive() -> None:
    shared = Shared.rings(4, "ring")
    producer = Producer([shared["ring"]], [shared["ring_bell"]])
    consumer = Consumer([shared["ring"]], shared["ring_bell"])
    shared.arena.close()
    del shared
    assert producer.push(0, 1)
    assert pop(consumer) == [1]


def test_wrong_sizes_shapes_and_alignments_are_refused() -> None:
    ring, bell = aligned(ring_bytes(4)), aligned(DOORBELL_BYTES)
    for capacity in [0, -1, 3, 12]:
        with pytest.raises(ValueError, match="power of two"):
            ring_bytes(capacity)
    with pytest.raises(ValueError, match="multiple of 64"):
        Consumer([aligned(ring_bytes(4) + 8)[8:]], bell)
    with pytest.raises(ValueError, match="power of two"):
        Consumer([aligned(ring_bytes(4) + 8)], bell)
    with pytest.raises(ValueError, match="uint8"):
        Consumer([ring.view(np.int64)], bell)
    with pytest.raises(ValueError, match="contiguous"):
        Consumer([aligned(2 * ring_bytes(4))[::2]], bell)
    readonly = ring.view()
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        Producer([readonly], [bell])
    with pytest.raises(ValueError, match=r"must have \d+ bytes"):
        Consumer([ring], ring)
    with pytest.raises(ValueError, match="at least one"):
        Consumer([], bell)
    with pytest.raises(ValueError, match="one doorbell for each"):
        Producer([ring, ring], [bell])
    with pytest.raises(ValueError, match="spin_us"):
        Consumer([ring], bell, spin_us=-1)


def test_wrong_arguments_are_refused() -> None:
    producer, consumer, _ = pair(4)
    words, sources = words_for(4)
    with pytest.raises(IndexError, match="no ring 1"):
        producer.push(1, 0)
    with pytest.raises(IndexError, match="no ring 7"):
        producer.push_many(np.array([7], np.uint32), np.array([0], np.uint64))
    with pytest.raises(ValueError, match="as many rings as words"):
        producer.push_many(sources, words[:2])
    with pytest.raises(ValueError, match="room"):
        consumer.pop_many(words[:0], sources[:0], 0)
    with pytest.raises(ValueError, match="timeout"):
        consumer.pop_many(words, sources, -1)
    with pytest.raises(ValueError, match="linger"):
        consumer.pop_many(words, sources, 0, 1, float("nan"))
    with pytest.raises(ValueError, match="at_least"):
        consumer.pop_many(words, sources, 0, 0)
    with pytest.raises(TypeError):  # a converted copy would be filled and thrown away
        consumer.pop_many(words.astype(np.int64), sources, 0)  # type: ignore[arg-type]
