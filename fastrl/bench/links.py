"""Ways to send 8-byte words from one process to another, all in one form.

::

    side 1, a peer            side 0, which measures
    push_all: 0, 1, 2 ... ──▶ take: as many at a time as are there ──▶ numbers: what came
    send: one word        ──▶ receive: awake (it asks without a pause) or asleep (it waits)

Each holds about `CAPACITY` words before its sender has to wait, but for the pipe, whose size is the
kernel's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import struct
from typing import Any

import faster_fifo
import faster_fifo_reduction  # noqa: F401  (lets a queue travel to a spawned process)
import numpy as np

from fastrl.shm import DOORBELL_BYTES, Arena, Consumer, Layout, Producer, ring_bytes

CAPACITY = 1 << 16
WAIT_SECONDS = 1.0
"""Longest sleep before a receiver looks again; in that of faster-fifo no signal is heard."""


class Link:
    """One way to send words in both directions between two processes; picklable until opened."""

    name = ""
    """As the tables have it."""
    key = ""
    """As the JSON file has it."""
    times_trips = True
    """Whether its round trips, of one word, are of its own kind."""

    def open(self, side: int, arena: Arena) -> None:
        """Make the ends of this process: side 0 measures, side 1 is its peer."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what side 0 holds."""

    def messages(self, words: int) -> Any:
        """0 to words - 1 as `push_all` takes them, made when no clock runs."""
        return range(words)

    def push_all(self, messages: Any) -> None:
        """Send all of them, in order."""
        raise NotImplementedError

    def take(self, words: int) -> Any:
        """Receive so many; what they were is looked at by `numbers`, when no clock runs."""
        raise NotImplementedError

    def numbers(self, taken: Any) -> np.ndarray:
        """What `take` returned, as an array of integers."""
        return np.array(taken, np.int64)

    def send(self, word: int) -> None:
        """Send one word."""
        raise NotImplementedError

    def receive(self, awake: bool) -> int:
        """Receive one word: ask again and again, or sleep until it comes."""
        raise NotImplementedError


class Ring(Link):
    """Our ring, one word per push."""

    name = "fastrl ring"
    key = "ring"

    def __init__(self, arena: Arena) -> None:
        self._layout = Layout()
        for side in (0, 1):
            self._layout.add(f"ring/{side}", ring_bytes(CAPACITY), np.uint8)
            self._layout.add(f"bell/{side}", DOORBELL_BYTES, np.uint8)
        self._segment = arena.extend(self._layout.nbytes)

    def open(self, side: int, arena: Arena) -> None:
        """See Link."""
        views = self._layout.views(arena.map(self._segment))
        other = 1 - side
        self._producer = Producer([views[f"ring/{other}"]], [views[f"bell/{other}"]])
        self._consumer = Consumer([views[f"ring/{side}"]], views[f"bell/{side}"])
        self._word, self._source = np.zeros(1, np.uint64), np.zeros(1, np.uint32)

    def push_all(self, messages: Any) -> None:
        """See Link."""
        push = self._producer.push
        for word in messages:
            while not push(0, word):
                os.sched_yield()

    def take(self, words: int) -> np.ndarray:
        """See Link."""
        taken, sources = np.zeros(words, np.uint64), np.zeros(words, np.uint32)
        pop_many = self._consumer.pop_many
        count = pop_many(taken, sources, 0.0)
        while count < words:
            count += pop_many(taken[count:], sources[count:], 0.0)
        return taken

    def numbers(self, taken: Any) -> np.ndarray:
        """See Link."""
        return np.asarray(taken, np.int64)

    def send(self, word: int) -> None:
        """See Link."""
        self._producer.push(0, word)

    def receive(self, awake: bool) -> int:
        """See Link."""
        pop_many, timeout = self._consumer.pop_many, 0.0 if awake else WAIT_SECONDS
        while not pop_many(self._word, self._source, timeout):
            pass
        return int(self._word[0])


class RingInBatches(Ring):
    """Our ring, 64 words per push: as inference and learner answer."""

    name = "fastrl ring, 64 per push"
    key = "ring_push_many"
    times_trips = False
    _BATCH = 64

    def messages(self, words: int) -> Any:
        """See Link."""
        return np.arange(words, dtype=np.uint64)

    def push_all(self, messages: Any) -> None:
        """See Link."""
        push_many, rings, sent = self._producer.push_many, np.zeros(self._BATCH, np.uint32), 0
        while sent < len(messages):
            batch = messages[sent : sent + self._BATCH]
            taken = push_many(rings[: len(batch)], batch)
            sent += taken
            if taken < len(batch):
                os.sched_yield()


class FasterFifo(Link):
    """faster-fifo, which pickles; here integers."""

    name = "faster-fifo, pickled"
    key = "faster_fifo_pickled"

    def __init__(self) -> None:
        self._queues = [self._queue(), self._queue()]

    @staticmethod
    def _queue() -> faster_fifo.Queue:
        # A message takes the room of its length as well.
        return faster_fifo.Queue(max_size_bytes=16 * CAPACITY)

    @staticmethod
    def _message(word: int) -> Any:
        return word

    @staticmethod
    def _number(message: Any) -> int:
        return int(message)

    def open(self, side: int, arena: Arena) -> None:
        """See Link."""
        self._inbox, self._outbox = self._queues[side], self._queues[1 - side]

    def messages(self, words: int) -> Any:
        """See Link."""
        return [self._message(word) for word in range(words)]

    def push_all(self, messages: Any) -> None:
        """See Link."""
        put = self._outbox.put
        for message in messages:
            put(message)

    def take(self, words: int) -> list[Any]:
        """See Link."""
        taken: list[Any] = []
        get_many = self._inbox.get_many
        while len(taken) < words:
            with contextlib.suppress(queue.Empty):
                taken += get_many(timeout=WAIT_SECONDS)
        return taken

    def numbers(self, taken: Any) -> np.ndarray:
        """See Link."""
        return np.array([self._number(message) for message in taken], np.int64)

    def send(self, word: int) -> None:
        """See Link."""
        self._outbox.put(self._message(word))

    def receive(self, awake: bool) -> int:
        """See Link."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._number(self._inbox.get(block=not awake, timeout=WAIT_SECONDS))


class FasterFifoBytes(FasterFifo):
    """faster-fifo without its pickling: 8 bytes in, 8 bytes out."""

    name = "faster-fifo, 8 bytes"
    key = "faster_fifo_bytes"

    @staticmethod
    def _queue() -> faster_fifo.Queue:
        # It hands `loads` a view of a buffer that its next call overwrites, so these must be
        # copied; to bytes that are bytes already, `bytes` does nothing.
        return faster_fifo.Queue(max_size_bytes=16 * CAPACITY, loads=bytes, dumps=bytes)

    @staticmethod
    def _message(word: int) -> Any:
        return word.to_bytes(8, "little")

    @staticmethod
    def _number(message: Any) -> int:
        return int.from_bytes(message, "little")


class StandardQueue(Link):
    """multiprocessing.Queue, with integers."""

    name = "multiprocessing.Queue"
    key = "multiprocessing_queue"

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._queues = [spawn.Queue(CAPACITY), spawn.Queue(CAPACITY)]

    def open(self, side: int, arena: Arena) -> None:
        """See Link."""
        self._inbox, self._outbox = self._queues[side], self._queues[1 - side]

    def close(self) -> None:
        """See Link."""
        for one in self._queues:
            one.close()
            # What its thread has not yet written would be for a process that has ended.
            one.cancel_join_thread()

    def push_all(self, messages: Any) -> None:
        """See Link."""
        put = self._outbox.put
        for word in messages:
            put(word)

    def take(self, words: int) -> list[Any]:
        """See Link."""
        get = self._inbox.get
        return [get() for _ in range(words)]

    def send(self, word: int) -> None:
        """See Link."""
        self._outbox.put(word)

    def receive(self, awake: bool) -> int:
        """See Link."""
        while True:
            with contextlib.suppress(queue.Empty):
                return int(self._inbox.get(block=not awake))


class Pipe(Link):
    """multiprocessing.Pipe, 8 bytes at a time."""

    name = "multiprocessing.Pipe"
    key = "multiprocessing_pipe"
    _WORD = struct.Struct("<Q")

    def __init__(self) -> None:
        self._ends = multiprocessing.Pipe()

    def open(self, side: int, arena: Arena) -> None:
        """See Link."""
        self._end = self._ends[side]

    def close(self) -> None:
        """See Link."""
        for end in self._ends:
            end.close()

    def messages(self, words: int) -> Any:
        """See Link."""
        return [self._WORD.pack(word) for word in range(words)]

    def push_all(self, messages: Any) -> None:
        """See Link."""
        send_bytes = self._end.send_bytes
        for message in messages:
            send_bytes(message)

    def take(self, words: int) -> list[Any]:
        """See Link."""
        recv_bytes = self._end.recv_bytes
        return [recv_bytes() for _ in range(words)]

    def numbers(self, taken: Any) -> np.ndarray:
        """See Link."""
        return np.array([self._WORD.unpack(message)[0] for message in taken], np.int64)

    def send(self, word: int) -> None:
        """See Link."""
        self._end.send_bytes(self._WORD.pack(word))

    def receive(self, awake: bool) -> int:
        """See Link."""
        while awake and not self._end.poll():
            pass
        word: int = self._WORD.unpack(self._end.recv_bytes())[0]
        return word
