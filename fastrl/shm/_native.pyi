"""The native module's signatures. Regions are 64-byte aligned, C-contiguous uint8 arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

_Region = NDArray[np.uint8]

DOORBELL_BYTES: int
"""The size of a doorbell's region."""

class Closed(Exception):
    """The doorbell is closed: nothing will come any more and nothing need be sent."""

def ring_bytes(capacity: int) -> int:
    """The size of the region of a ring for `capacity` words, a power of two (else ValueError)."""

def byte_ring_bytes(capacity: int) -> int:
    """The size of the region of a byte ring; `capacity`, a power of two (else ValueError), counts
    the records' bytes and four more for each record."""

def weights_bytes(num_floats: int) -> int:
    """The size of the region for two copies of `num_floats` float32."""

def close_doorbell(doorbell: _Region) -> None:
    """Makes every operation of its consumer and its producers raise Closed, also a sleeper's."""

def doorbell_closed(doorbell: _Region) -> bool:
    """Whether close_doorbell was called on it."""

class Producer:
    """The sending end of some rings; ring i is consumed by the owner of doorbells[i]."""

    def __init__(self, rings: Sequence[_Region], doorbells: Sequence[_Region]) -> None: ...
    def push(self, ring: int, word: int) -> bool:
        """False if the ring is full. Raises Closed, IndexError."""

    def push_many(self, ring_ids: NDArray[np.uint32], words: NDArray[np.uint64]) -> int:
        """Pushes words[i] to ring ring_ids[i], in order, up to the first full ring; returns how
        many. Rings each doorbell once. Raises Closed (then nothing was pushed), IndexError."""

    @property
    def wakes(self) -> int:
        """System calls made to wake a consumer; none is made for one that is awake."""

class Consumer:
    """The receiving end of some rings, all of which ring `doorbell`.

    Before it sleeps it looks for up to `spin_us` microseconds per call of pop_many.
    """

    def __init__(self, rings: Sequence[_Region], doorbell: _Region, spin_us: int = 0) -> None: ...
    def pop_many(
        self,
        words: NDArray[np.uint64],
        sources: NDArray[np.uint32],
        timeout: float,
        at_least: int = 1,
        linger: float = 0.0,
    ) -> int:
        """Waits up to `timeout` seconds for a first word (0: does not wait), then until there are
        `at_least` or `linger` seconds have passed since the first. Returns how many words it took,
        at most len(words), and 0 on a time-out; words[i] came from ring sources[i].

        Raises Closed, and what a signal handler raises, also while it waits; words that it had
        collected by then stay in their rings. A ring gives at most its capacity to one call.
        """

    @property
    def sleeps(self) -> int:
        """Times it went to sleep."""

    @property
    def rescues(self) -> int:
        """Sleeps that ended by time although what they waited for was there: lost wake-ups, which
        only a producer killed between its word and the bell can cause."""

class ByteRing:
    """Either end of a ring of records; one process pushes and one pops."""

    def __init__(self, region: _Region) -> None: ...
    def push(self, record: Buffer) -> bool:
        """False, and `lost` is one more, if the record does not fit."""

    def pop_all(self) -> list[bytes]:
        """All records that are there, oldest first."""

    @property
    def lost(self) -> int:
        """Records dropped since the region was zero."""

class Weights:
    """Either end of published weights; one process publishes at a time, any number read."""

    def __init__(self, region: _Region, num_floats: int) -> None: ...
    def publish(self, source: NDArray[np.float32]) -> int:
        """Publishes float32[num_floats]; returns its version."""

    def read(self, target: NDArray[np.float32]) -> int:
        """Copies the newest version into float32[num_floats] and returns its number; 0, and
        nothing is copied, if there is none. Copies again if it was overtaken by two versions."""

    @property
    def version(self) -> int:
        """The newest complete version; 0: none yet."""

class Counters:
    """A view of an int64 array as counters; indices outside it raise IndexError."""

    def __init__(self, region: NDArray[np.int64]) -> None: ...
    def load(self, index: int) -> int:
        """An acquire load."""

    def store(self, index: int, value: int) -> None:
        """A release store."""

    def add(self, index: int, delta: int) -> int:
        """Adds for the counter's single writer and returns the new value; a release store."""

    def load_many(self, indices: NDArray[np.int64], out: NDArray[np.int64]) -> None:
        """out[i] = load(indices[i])."""

    def snapshot(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A copy of all counters, each an acquire load; not all of one instant."""
