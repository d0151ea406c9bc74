"""When a checkpoint is due, and what is said about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastrl import checkpoint
from fastrl.config import Interval
from fastrl.workers.reports import SavedReport


class Saver:
    """Decides when a checkpoint is due, and writes it."""

    def __init__(
        self,
        run_dir: Path,
        every: Interval,
        updates: int,
        state: Callable[[], dict[str, Any]],
        tell: Callable[[Any], object],
    ) -> None:
        """Begin after so many `updates`, of which the run folder has a checkpoint or needs none."""
        self._run_dir = run_dir
        self._every, self._unit = every
        self._state = state
        self._tell = tell
        self._last_time, self._last_update = time.monotonic(), updates

    def save_if_due(self, steps: int, updates: int) -> None:
        """Write a checkpoint if `--save-every` has passed since the last one."""
        elapsed = (
            time.monotonic() - self._last_time if self._unit == "s" else updates - self._last_update
        )
        if elapsed >= self._every:
            self.save(steps, updates)

    def save(self, steps: int, updates: int) -> str | None:
        """Write a checkpoint now; what went wrong is reported, returned, and stops no training."""
        path = checkpoint.checkpoint_path(self._run_dir, steps)
        error = None
        try:
            checkpoint.save(self._run_dir, steps, self._state())
        except OSError as failure:
            error = str(failure)
        self._last_time, self._last_update = time.monotonic(), updates
        self._tell(SavedReport(str(path), error))
        return error
