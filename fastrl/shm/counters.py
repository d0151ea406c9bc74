"""Shared int64 counters: a store releases, a load acquires.

Who reads a count may go on to read what its writer wrote before storing it, which numpy's own
loads and stores do not promise. Each counter has one writer at a time. See `native/counters.h`.
"""

from fastrl.shm._native import Counters

__all__ = ["Counters"]
