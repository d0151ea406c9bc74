"""Rare messages of any length from one process to another, without locks and without waiting.

A record that does not fit is dropped and counted in `lost`, so that a process which steps
environments never waits for who reads its messages. A process killed at any instruction blocks
nobody; its replacement makes a new ByteRing over the same region. See `native/byte_ring.h`.
"""

from fastrl.shm._native import ByteRing, byte_ring_bytes

__all__ = ["ByteRing", "byte_ring_bytes"]
