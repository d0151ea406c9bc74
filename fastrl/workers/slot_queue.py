"""The full slots that wait for the learner, oldest first, and what was lost between them."""

from __future__ import annotations

from collections import deque

import numpy as np

from fastrl.workers.shared import Shared


class SlotQueue:
    """Full slots in the order in which they were filled, and what is counted as they are taken.

    The counters decide which slots are full; a word of the ring only says which group to look at,
    so a word that was lost with its process is made up for by the group's next one.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._K = shared.plan.slots_per_group
        groups = shared.plan.num_groups
        self._taken = np.zeros(groups, np.int64)
        self._through = np.zeros(groups, np.int64)
        self._slots: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def look_at(self, group: int) -> None:
        """Queue the slots of a group that have become full."""
        for nth in range(int(self._taken[group]), self._shared.filled.load(group)):
            self._slots.append(group * self._K + nth % self._K)
            self._taken[group] = nth + 1

    def take(self, count: int) -> tuple[np.ndarray, int]:
        """Remove the oldest `count` slots; return them (int64) and the steps dropped before them.

        A slot knows the steps its group had made when it was full. What lies between that, its own
        valid rows and the group's slot before it was made by a worker that died in the middle of a
        slot.
        """
        shared = self._shared
        slots = np.array([self._slots.popleft() for _ in range(count)], np.int64)
        if shared.plan.sync:
            # In the order of the environments, so that how they are spread changes no bit.
            slots.sort()
        dropped = 0
        for slot in slots.tolist():
            group = slot // self._K
            through = int(shared.sampled_through[slot])
            valid = int(np.count_nonzero(~shared.ignored[slot, :-1]))
            dropped += through - int(self._through[group]) - valid
            self._through[group] = through
        return slots, dropped
