"""Freed memory is kept, and what has become unusable for large blocks is given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os
import numpy as np
from fastrl.workers.heap import give_unused_pages_back, keep_freed_memory
from fastrl.workers.memory import resident_bytes

def resident():
    return resident_bytes(os.getpid()) >> 20

keep_freed_memory()
blocks = [np.ones(1 << 20, np.uint8) for _ in range(200)]
between = [bytes(2000) for _ in range(200)]  # small ones that stay
full = resident()
for at in range(0, 200, 2):
    blocks[at] = None
kept = resident()
give_unused_pages_back()
print(full, kept, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_gaps_are_kept_until_they_are_given_back():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    full, kept, left = map(int, done.stdout.split())
    assert full - kept < 10  # MiB: nothing goes back by itself
    assert 80 <= full - left <= 110, "the hundred gaps of 1 MiB are the kernel's"
