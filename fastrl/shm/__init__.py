"""Shared memory for processes that must not wait for each other. Knows nothing of RL.

    arena.py      Arena, Segment, Layout: one memory file and what lies where in it
    ring.py       Producer, Consumer and doorbells: 64-bit words from process to process
    byte_ring.py  ByteRing: rare messages of any length
    weights.py    Weights: a large buffer published in versions
    counters.py   Counters: int64 with release stores and acquire loads
    crash.py      CrashReport: what a process said before it died

Every primitive lives in a region of memory in which all zeroes is a valid fresh state, so there is
nothing to initialise and nobody to wait for; and a process killed at any instruction blocks nobody.
"""

from fastrl.shm.arena import Arena, Layout, Segment
from fastrl.shm.byte_ring import ByteRing, byte_ring_bytes
from fastrl.shm.counters import Counters
from fastrl.shm.crash import CrashReport
from fastrl.shm.ring import (
    DOORBELL_BYTES,
    Closed,
    Consumer,
    Producer,
    close_doorbell,
    doorbell_closed,
    ring_bytes,
)
from fastrl.shm.weights import Weights, weights_bytes

__all__ = [
    "DOORBELL_BYTES",
    "Arena",
    "ByteRing",
    "Closed",
    "Consumer",
    "Counters",
    "CrashReport",
    "Layout",
    "Producer",
    "Segment",
    "Weights",
    "byte_ring_bytes",
    "close_doorbell",
    "doorbell_closed",
    "ring_bytes",
    "weights_bytes",
]
