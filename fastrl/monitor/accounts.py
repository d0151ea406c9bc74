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


_NAN_WORD = int(np.array(np.nan).view(np.int64))


def return_word(value: float | None) -> int:
    """Return a float64 as an int64 word for a counter; 0, a counter's first value, is None."""
    number = np.nan if value is None else value
    return int(np.array(number, np.float64).view(np.int64)) ^ _NAN_WORD


def return_of(word: int) -> float | None:
    """Return the number of a word of `return_word`."""
    return float(np.array(word ^ _NAN_WORD, np.int64).view(np.float64)) if word else None


STOP_AFTER_FAILURE = 2
"""In `Control.STOP`: the run has failed. With --exact-resume nothing is saved off its schedule."""


class Control(IntEnum):
    """Indices into the ``control`` counters."""

    STOP = 0  # main: finish the current batch, save, end
    STEPS = 1  # learner: trained + masked
    TRAINED = 2  # learner: rows kept
    MASKED = 3  # learner: rows too old
    DROPPED = 4  # learner: rows of slots that a dead worker left unfinished
    JUDGED = 5  # main: updates whose returns it has compared with the goal
    EPISODES = 6  # main: finished episodes that it has taken in, those before a resume left out
    RETURN = 7  # main: a word of `return_word`, the mean return that checkpoints are scored by
    EVALUATED = 8  # main: evaluations of this run that are over


class Clock(IntEnum):
    """Indices into a process's clock counters: nanoseconds, unless a count."""

    WAIT = 0  # inference: for ready groups; learner: for full slots; rollout: for actions
    WAIT_SLOT = 1  # rollout: for a free slot
    STARTED = 2  # time.monotonic_ns() when the process began its loop
    BATCHES = 3  # inference: forward passes
    ROWS = 4  # inference: rows in them
    BUSY_SINCE = 5  # rollout: time.monotonic_ns() when the step under way began; 0: none is
    BUSY_GROUP = 6  # rollout: the group of that step


CLOCK_SIZE = 8
"""Counters per process: one cache line."""
