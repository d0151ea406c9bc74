"""How many threads the learner's kernels use, decided by who waits for whom while the engine runs.

Two threads train 1.3 to 1.5 times as fast as one, not twice: a core is better spent on rollouts as
long as they can use it. But where the learner is the slower side, all groups wait for it with full
slots, and cores idle. Then, and only then, it takes one more.
"""

from __future__ import annotations

PATIENCE = 4
"""Updates in a row at whose end every group waited for a slot, before a thread is added."""

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

    def after_update(self, everyone_waits: bool, wait_share: float) -> int:
        """Return the threads for the next update.

        Args:
            everyone_waits: all groups had filled all slots they may, while the learner was busy.
            wait_share: share of the time since the last update that the learner waited for slots.
        """
        self._idle_updates = self._idle_updates + 1 if everyone_waits else 0
        if self._idle_updates >= PATIENCE and self.threads < self._most:
            self.threads += 1
            self._idle_updates = 0
        elif wait_share > ENOUGH and self.threads > self._fewest:
            self.threads -= 1
            # One thread less is too few and one more too many: stay with fewer.
            self._most = self.threads
        return self.threads
