"""Lock-free rings of 64-bit words from one process to another, and doorbells to sleep at.

    Producer ──▶ ring 0 ──▶ Consumer A     one ring per pair of processes and direction,
             └─▶ ring 1 ──▶ Consumer B     one doorbell per consumer, for all its rings

Words of one ring arrive in order, each once. Nobody holds a lock: a process killed at any
instruction blocks no other, and its replacement makes a new object over the same regions and goes
on from the indices that lie in them. What a killed producer had not published was never there.
Regions that are all zero are empty rings and an open doorbell; nothing has to be initialised.

A Producer or a Consumer belongs to one thread. The protocol and each memory order are explained
in `native/doorbell.h` and `native/ring.h`.
"""

from fastrl.shm._native import (
    DOORBELL_BYTES,
    Closed,
    Consumer,
    Producer,
    close_doorbell,
    doorbell_closed,
    ring_bytes,
)

__all__ = [
    "DOORBELL_BYTES",
    "Closed",
    "Consumer",
    "Producer",
    "close_doorbell",
    "doorbell_closed",
    "ring_bytes",
]
