"""Where every sampled step went, once all processes have ended.

    sampled = trained + masked + dropped + unfinished

The rollout processes counted the first, the learner the next three, row by row; the last is counted
here from the rows that still lie in the arena. So the sum says whether a step was lost or counted
twice, wherever a process was killed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastrl.monitor.accounts import ROW_SHIFT, SAMPLED_MASK, Control
from fastrl.workers.shared import Shared


class Accounts(NamedTuple):
    """Steps of a run, by what became of them."""

    sampled: int
    trained: int
    masked: int
    dropped: int
    unfinished: int

    @property
    def balance(self) -> int:
        """Steps unaccounted for; 0 unless something is wrong."""
        return self.sampled - self.trained - self.masked - self.dropped - self.unfinished


def final_accounts(shared: Shared) -> Accounts:
    """Count; to be called when no rollout process and no learner runs any more."""
    control, K = shared.control, shared.plan.slots_per_group
    progress = shared.progress.snapshot()
    dropped, unfinished = control.load(Control.DROPPED), 0
    for group in range(shared.plan.num_groups):
        row, sampled = progress[group] >> ROW_SHIFT, progress[group] & SAMPLED_MASK
        filled = shared.filled.load(group)
        through = shared.taken_through.load(group)
        for nth in range(shared.returned.load(group), filled):
            slot = group * K + nth % K
            valid = _valid(shared, slot, shared.plan.rollout_length)
            dropped += int(shared.sampled_through[slot]) - through - valid
            unfinished += valid
            through = int(shared.sampled_through[slot])
        if sampled > through:
            # The slot being filled; what goes beyond its rows was left by a dead process.
            valid = _valid(shared, group * K + filled % K, int(row))
            dropped += int(sampled) - through - valid
            unfinished += valid
    return Accounts(
        sampled=int((progress & SAMPLED_MASK).sum()),
        trained=control.load(Control.TRAINED),
        masked=control.load(Control.MASKED),
        dropped=dropped,
        unfinished=unfinished,
    )


def _valid(shared: Shared, slot: int, rows: int) -> int:
    return int(np.count_nonzero(~shared.ignored[slot, :rows]))
