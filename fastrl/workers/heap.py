"""Keeping freed memory in the process that will ask for it again a moment later.

glibc gives large blocks back to the kernel as soon as they are freed, which then zeroes them, page
by page, for the same process: a quarter of the learner's time with a small network, whose
activations are a few megabytes each and live for microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import time

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20
"""Bytes; glibc takes no higher threshold. Larger blocks are mapped one by one."""
CARE_SECONDS = 60.0
"""Between two times that unused pages are given back: a tenth of a second's faults each."""
KEPT = (1 << 31) - 1
"""Bytes that may lie free at the heap's end."""


def keep_freed_memory() -> None:
    """Have malloc serve blocks up to `LARGEST_BLOCK` from its heap and keep what is freed.

    What a process holds is then the most that it ever needed at once. Where the C library is not
    glibc nothing happens.
    """
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, LARGEST_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT)


class HeapCare:
    """Gives unused pages of the heap back to the kernel now and then.

    A small block that stays in the middle of a large gap keeps later large ones out of it: the heap
    grows, by a few per cent in some minutes, and the gap stays resident. Given back, only what is
    used again comes back, at the cost of one update's page faults.
    """

    def __init__(self) -> None:
        self._next = time.monotonic() + CARE_SECONDS

    def after_update(self) -> None:
        """Give back, if it is time to."""
        if time.monotonic() >= self._next:
            give_unused_pages_back()
            self._next = time.monotonic() + CARE_SECONDS


def give_unused_pages_back() -> None:
    """Have malloc return every whole free page, wherever it lies; nothing happens without glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
