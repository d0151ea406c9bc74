"""How many threads the learner's kernels use, decided by who waits for whom while the engine runs.

Two threads train 1.3 to 1.5 times as fast as one, not twice: a core is better spent on rollouts as
long as they can use it. But where the learner is the slower side, all groups wait for it with full
slots, and cores idle. Then, and only then, it takes one more, and keeps it while updates are faster
for it.
"""

from __future__ import annotations

import math
import statistics

PATIENCE = 4
"""Updates in a row at whose end every group waited for a slot, before a thread is added."""

GAIN = 0.9
"""An added thread must bring an update below this share of the time it took without."""

ENOUGH = 0.1
"""Share of its time that the learner may wait for slots before an added thread is given back."""


class ThreadGovernor:
    """Suggests a number of threads, from what the learner sees between updates."""

    def __init__(self, threads: int, most: int) -> None:
        """Begin with `threads`; never suggest fewer, nor more than `most`."""
        self.threads = threads
        self._fewest = threads
        self._most = max(most, threads)
        self._idle_updates = 0
        # Seconds of the updates with the present number of threads, and typical ones with one
        # fewer.
        self._seconds: list[float] = []
        self._seconds_before = math.inf

    def after_update(self, everyone_waits: bool, wait_share: float, seconds: float) -> int:
        """Return the threads for the next update.

        Args:
            everyone_waits: all groups had filled all slots they may, while the learner was busy.
            wait_share: share of the time since the last update that the learner waited for slots.
            seconds: duration of the update.
        """
        self._seconds.append(seconds)
        self._idle_updates = self._idle_updates + 1 if everyone_waits else 0
        too_many = wait_share > ENOUGH or seconds > GAIN * self._seconds_before
        if self.threads > self._fewest and too_many:
            # Also where another program wants the core: kernels wait for their slowest thread, and
            # an update then takes not twice but ten times as long. Not tried again.
            self.threads -= 1
            self._most = self.threads
            self._begin(math.inf)
        elif self._idle_updates >= PATIENCE and self.threads < self._most:
            self.threads += 1
            self._begin(statistics.median(self._seconds[-PATIENCE:]))
        return self.threads

    def _begin(self, seconds_before: float) -> None:
        self._seconds_before = seconds_before
        self._seconds.clear()
        self._idle_updates = 0
