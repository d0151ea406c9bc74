"""Who is slow: groups inside one step for long, starts that take long, an engine that stands still.

Rollout processes write when they began what they are doing; main looks now and then. Nothing is
ended here because a machine is slow: only `--env-timeout` does that, where the user has set it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from fastrl.monitor.accounts import CLOCK_SIZE, SAMPLED_MASK, Clock, Control
from fastrl.workers.shared import Shared

SLOW_SECONDS = 10.0
"""Age at which a group's step is named; then again at each doubling of it."""

UNSEEN_SECONDS = 2.0
"""Without a look of main's, which looks four times a second."""

SLOW_START_SECONDS = 60.0
"""Age of a start at which workers that are still starting are named; then at each doubling."""

STILL_SECONDS = 30.0
"""Time without a sampled or learned step after which the console says who does what."""


@dataclass(frozen=True)
class Slow:
    """A group that has been inside one step, or its first reset, for some time."""

    worker: int
    group: int
    seconds: float
    stepping: bool
    """Not in its first reset, which plays --stagger steps as well."""


class Watch:
    """What main has said of slow groups and of a standstill; looks only at counters."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._named: dict[int, tuple[int, float]] = {}
        """By worker: when the step began that was named, and the age at which to name it again."""
        self._counts = (-1, -1)
        self._moved = time.monotonic()
        self._next_still = STILL_SECONDS
        self._looked, self._floor = time.monotonic_ns(), 0
        """Of the last look; and before what no time counts, since main was stopped itself."""
        self._starting: dict[int, float] = {}
        """When a worker was first seen to be starting."""
        self._next_starting = SLOW_START_SECONDS

    def busy(self) -> Iterator[Slow]:
        """Every group that is inside a step right now.

        Time in which main did not look does not count: the whole run was stopped (Ctrl-Z), or the
        machine.
        """
        clocks = self._shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)
        now = time.monotonic_ns()
        if now - self._looked > UNSEEN_SECONDS * 1e9:
            self._floor = now
        self._looked = now
        for worker, clock in enumerate(clocks):
            if since := int(clock[Clock.BUSY_SINCE]):
                age = (now - max(since, self._floor)) * 1e-9
                yield Slow(worker, int(clock[Clock.BUSY_GROUP]), age, clock[Clock.STARTED] > 0)

    def lines(self) -> Iterator[str]:
        """What there is to say now; each step is named at 10 s, 20 s, 40 s ..."""
        for slow in self.busy():
            # First resets take long where many workers start at once; see `_slow_starts`.
            if slow.seconds < SLOW_SECONDS or not slow.stepping:
                continue
            since = self._shared.rollout_clock.load(slow.worker * CLOCK_SIZE + Clock.BUSY_SINCE)
            began, due = self._named.get(slow.worker, (0, 0.0))
            if began == since and slow.seconds < due:
                continue
            self._named[slow.worker] = (since, 2 * max(SLOW_SECONDS, slow.seconds))
            yield self._describe(slow)
        yield from self._slow_starts()
        yield from self._standstill()

    def _slow_starts(self) -> Iterator[str]:
        clocks = self._shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)
        now = time.monotonic()
        for worker, clock in enumerate(clocks):
            if clock[Clock.STARTED]:
                self._starting.pop(worker, None)
            else:
                self._starting.setdefault(worker, now)
        if not self._starting:
            self._next_starting = SLOW_START_SECONDS
            return
        age = now - min(self._starting.values())
        if age < self._next_starting:
            return
        self._next_starting = 2 * age
        few = ", ".join(map(str, sorted(self._starting)[:8]))
        more = " ..." if len(self._starting) > 8 else ""
        yield (
            f"{len(self._starting)} of {len(clocks)} rollout workers are constructing or resetting "
            f"their environments, the longest for {age:.0f} s: {few}{more}"
        )

    def _describe(self, slow: Slow) -> str:
        E = self._shared.plan.envs_per_group
        first = slow.group * E
        which = f"environment {first}" if E == 1 else f"environments {first} to {first + E - 1}"
        timeout = self._shared.plan.config.env_timeout
        then = (
            "--env-timeout would replace it after a time of yours"
            if timeout is None
            else f"it is replaced after {timeout:g} s"
        )
        return (
            f"rollout worker {slow.worker} has been inside one step of {which} for "
            f"{slow.seconds:.0f} s; {then}"
        )

    def _standstill(self) -> Iterator[str]:
        shared, now = self._shared, time.monotonic()
        sampled = int((shared.progress.snapshot() & SAMPLED_MASK).sum())
        counts = (sampled, shared.control.load(Control.STEPS))
        if counts != self._counts:
            self._counts, self._moved, self._next_still = counts, now, STILL_SECONDS
            return
        still = now - self._moved
        if still < self._next_still:
            return
        self._next_still = 2 * still
        clocks = shared.rollout_clock.snapshot().reshape(-1, CLOCK_SIZE)
        starting = int((clocks[:, Clock.STARTED] == 0).sum())
        stepping = int((clocks[:, Clock.BUSY_SINCE] > 0).sum())
        full = int((shared.filled.snapshot() - shared.returned.snapshot()).sum())
        yield (
            f"no step for {still:.0f} s: {starting} of {len(clocks)} rollout workers are starting, "
            f"{stepping} are inside a step, {full} of {shared.plan.num_slots} slots are full"
        )
