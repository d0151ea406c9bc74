"""What the processes count, and where: the meaning of each shared counter.

Every counter has one writer; main and the learner read them. A rollout process imports this file,
so it needs numpy alone.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

ROW_SHIFT = 48
"""A group's progress word is ``row << 48 | valid steps so far``: both become visible in one
store."""

SAMPLED_MASK = (1 << ROW_SHIFT) - 1


def episode_dtype(num_info: int) -> np.dtype[np.void]:
    """One finished episode: run-wide environment index, steps, raw return, the number of the row
    that it ended in, counted from the beginning of this process's run, and `num_info` values out
    of its last info, NaN for none."""
    fields: list[Any] = [("env", "<i4"), ("length", "<i4"), ("return", "<f8"), ("row", "<i8")]
    if num_info:
        fields.append(("info", "<f8", (num_info,)))
    return np.dtype(fields)


class Control(IntEnum):
    """Indices into the ``control`` counters."""

    STOP = 0  # main: finish the current batch, save, end
    STEPS = 1  # learner: trained + masked
    TRAINED = 2  # learner: rows kept
    MASKED = 3  # learner: rows too old
    DROPPED = 4  # learner: rows of slots that a dead worker left unfinished
    JUDGED = 5  # main: updates whose returns it has compared with the goal


class Clock(IntEnum):
    """Indices into a process's clock counters: nanoseconds, unless a count."""

    WAIT = 0  # inference: for ready groups; learner: for full slots; rollout: for actions
    WAIT_SLOT = 1  # rollout: for a free slot
    STARTED = 2  # time.monotonic_ns() when the process began its loop
    BATCHES = 3  # inference: forward passes
    ROWS = 4  # inference: rows in them


CLOCK_SIZE = 8
"""Counters per process: one cache line."""
