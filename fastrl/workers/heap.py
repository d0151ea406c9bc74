"""Keeping freed memory in the process that will ask for it again a moment later.

glibc gives large blocks back to the kernel as soon as they are freed, which then zeroes them, page
by page, for the same process: a quarter of the learner's time with a small network, whose
activations are a few megabytes each and live for microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20
"""Bytes; glibc takes no higher threshold. Larger blocks are mapped one by one."""
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
