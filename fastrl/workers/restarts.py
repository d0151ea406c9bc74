"""How often a rollout worker may be replaced, and how soon after it died."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 600.0
"""Deaths before that are forgotten: a run of weeks may meet a rare fault often."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds until a worker that dies again soon is started again; doubled each time in between."""


@dataclass
class Restarts:
    """The deaths of rollout workers that count, and the delay that each earns.

    A worker's first death is made up for at once; one that dies again and again, because a licence
    or a display is gone for a while, is tried less and less often.
    """

    most: int
    """Deaths within `WINDOW_SECONDS` that a run survives."""
    total: int = 0
    """Deaths since the run began."""
    _deaths: deque[tuple[float, int, str]] = field(default_factory=deque)

    def died(self, worker: int, now: float, story: str = "") -> float | None:
        """Count a death at `now` (seconds); return the delay before the replacement, None where
        there shall be none."""
        self.total += 1
        while self._deaths and now - self._deaths[0][0] > WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= self.most:
            return None
        before = sum(1 for _, who, _ in self._deaths if who == worker)
        self._deaths.append((now, worker, story))
        return 0.0 if before == 0 else min(LONGEST_DELAY, FIRST_DELAY * 2 ** (before - 1))

    @property
    def recent(self) -> int:
        """Deaths in the window, the last one included."""
        return len(self._deaths)

    @property
    def first_story(self) -> str:
        """Of the first death in the window."""
        return self._deaths[0][2] if self._deaths else ""
