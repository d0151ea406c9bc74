"""How fast a core of this machine is at a moment: the CPU time of a fixed piece of work.

A machine that others share is up to a third slower from one minute to the next, whatever runs on
it. A rate that is compared with one of ten minutes ago must be told in this work, or it says more
about the neighbours than about the program.
"""

from __future__ import annotations

import time
import zlib

import numpy as np

_rng = np.random.default_rng(0)
_TEXT = _rng.integers(0, 16, 1 << 17, np.uint8).tobytes()
_MATRIX = _rng.standard_normal((192, 192), np.float32)
_IMAGES = _rng.integers(0, 255, (64, 84, 84), np.uint8)


def work_seconds() -> float:
    """CPU time of this thread for about 10 ms of integers, products and bytes: what emulators,
    networks and their observations are made of."""
    began = time.thread_time()
    zlib.compress(_TEXT, 1)
    product = _MATRIX
    for _ in range(8):
        product = product @ _MATRIX * np.float32(0.05)
    (_IMAGES * np.float32(1 / 255)).sum()
    return time.thread_time() - began
