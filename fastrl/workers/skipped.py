"""What follows from skipped optimiser steps: they are counted and told, and too many in a row end
the run.

::

    update ─▶ which steps were skipped ─▶ the cause of the first ─▶ a notice, or the end
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from fastrl.errors import NotFinite
from fastrl.workers.reports import NoticeReport

NOTICE_SECONDS = 10.0
"""Between two notices: what goes on for long must not fill the log."""


class SkippedSteps:
    """Counts them over updates, from the start of this process.

    Attributes:
        total: all that were skipped.
        in_a_row: those since the last step that was taken.
    """

    def __init__(self, most_in_a_row: int, tell: Callable[[NoticeReport], object]) -> None:
        self._most = most_in_a_row
        self._tell = tell
        self._next_notice = -math.inf
        self.total = 0
        self.in_a_row = 0

    def after_update(self, update: int, skipped: np.ndarray, cause: Callable[[int], str]) -> None:
        """Take in an update's steps.

        Args:
            update: its number in the run, from 1.
            skipped: bool [optimiser steps], in their order.
            cause: says in a clause why a step, by its number in the update, was skipped; asked
                where it will be told, and at most once.

        Raises:
            NotFinite: more than `most_in_a_row` in a row were skipped.
        """
        longest = 0
        for was_skipped in skipped.tolist():
            self.in_a_row = self.in_a_row + 1 if was_skipped else 0
            longest = max(longest, self.in_a_row)
        count = int(skipped.sum())
        self.total += count
        if longest > self._most:
            steps = "optimiser step was" if longest == 1 else "optimiser steps in a row were"
            raise NotFinite(
                f"{longest} {steps} skipped up to update {update:,}, more than --max-skipped "
                f"{self._most} allows: {cause(int(skipped.argmax()))}; lower --learning-rate, "
                "look at the environment's rewards and observations, or raise --max-skipped (the "
                "last checkpoint is kept)."
            )
        if count and time.monotonic() >= self._next_notice:
            self._next_notice = time.monotonic() + NOTICE_SECONDS
            were = "was" if count == 1 else "were"
            self._tell(
                NoticeReport(
                    f"update {update:,}: {count} of {len(skipped)} optimiser steps {were} skipped: "
                    f"{cause(int(skipped.argmax()))} ({self.total:,} skipped so far)"
                )
            )
