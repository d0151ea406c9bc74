"""`fastrl-bench rings`: 8-byte words between two processes, by our ring and by what others use.

::

    main ◀── words, or the answers to words ── a peer per link, started once
    for each repetition: for each link: throughput ─▶ round trips awake ─▶ round trips asleep

Throughput: the peer pushes words one at a time as fast as it can, and main takes as many at a time
as are there, from the peer's first push until main has all of them; both sides are awake. A round
trip is one word to the peer and back. *Awake*: both sides ask without a pause. *Asleep*: both wait
in the kernel, and main pauses before each word, so that the peer has gone to sleep. A word that is
lost, doubled or out of order fails the bench.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastrl.bench.command import check_numbers, given
from fastrl.bench.links import (
    FasterFifo,
    FasterFifoBytes,
    Link,
    Pipe,
    Ring,
    RingInBatches,
    StandardQueue,
)
from fastrl.bench.options import RingsOptions
from fastrl.bench.peer import BenchFailed, Peer, within
from fastrl.bench.report import Report, Spread, Table, check_outputs, machine
from fastrl.shm import Arena
from fastrl.workers.process import Launcher, Lines

LINKS: tuple[Callable[[Arena], Link], ...] = (
    Ring,
    RingInBatches,
    lambda arena: FasterFifoBytes(),
    lambda arena: FasterFifo(),
    lambda arena: StandardQueue(),
    lambda arena: Pipe(),
)
"""The first one is what the others are compared with."""

STATES = ("awake", "asleep")

ASLEEP_SECONDS = 0.001
"""Pause before a word that is to find its receiver asleep."""

ASLEEP_SHARE = 5
"""One round trip asleep for so many awake."""

PATIENCE_SECONDS, PATIENCE_PER_WORD, PATIENCE_PER_TRIP = 30.0, 2e-4, 1e-2
"""A measurement that takes longer has failed: far more than the slowest link on a busy machine."""


@dataclass
class Samples:
    """What one link did, an entry per repetition."""

    words_per_second: list[float] = field(default_factory=list)
    trips_us: dict[str, list[np.ndarray]] = field(
        default_factory=lambda: {state: [] for state in STATES}
    )

    def trips(self, state: str, percentile: float) -> list[float]:
        """That percentile of each repetition's round trips, in µs."""
        return [float(np.percentile(trips, percentile)) for trips in self.trips_us[state]]


class Echo:
    """The peer of a link: pushes words, or sends each one back."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __call__(self, lines: Lines) -> None:
        """Serve requests until main ends this process."""
        link = self._link
        link.open(1, lines.arena)
        lines.pipe.send("open")
        while True:
            task, count, *more = lines.pipe.recv()
            if task == "push":
                messages = link.messages(count)
                began = time.monotonic_ns()
                link.push_all(messages)
                lines.pipe.send(began)
            else:
                (awake,) = more
                for _ in range(count):
                    link.send(link.receive(awake))


def run(options: RingsOptions) -> int:
    """Measure and report; 1 where a word was lost or a process failed."""
    check_numbers(options)
    check_outputs(options.json, options.plot)
    before = machine()
    try:
        samples = measure(options)
    except BenchFailed as failure:
        print(f"fastrl-bench: {failure}", file=sys.stderr)
        return 1
    report(options, samples, before).deliver(options.json, options.plot)
    return 0


def measure(options: RingsOptions) -> dict[Link, Samples]:
    """Start a peer per link and measure all of them in turn; raises BenchFailed."""
    samples: dict[Link, Samples] = {}
    peers: dict[Link, Peer] = {}
    with contextlib.ExitStack() as stack:
        arena, launcher = Arena.create(), Launcher()
        stack.callback(arena.close)
        for make in LINKS:
            link = make(arena)
            stack.callback(link.close)
            peers[link] = Peer(launcher, arena, link.name, Echo(link))
            stack.callback(peers[link].end)
            link.open(0, arena)
            samples[link] = Samples()
        for peer in peers.values():
            peer.answer()
        for _ in range(options.repeats):
            for link, peer in peers.items():
                samples[link].words_per_second.append(throughput(link, peer, options.words))
            for state in STATES:
                awake = state == "awake"
                trips = options.trips if awake else -(-options.trips // ASLEEP_SHARE)
                for link, peer in peers.items():
                    if link.times_trips:
                        taken = round_trips(link, peer, trips, awake)
                        samples[link].trips_us[state].append(taken)
    return samples


def throughput(link: Link, peer: Peer, words: int) -> float:
    """Words per second from the peer's first push until all are here; raises BenchFailed."""
    patience = PATIENCE_SECONDS + PATIENCE_PER_WORD * words
    with within(patience, peer, f"Sending {words:,} words by {link.name}"):
        peer.ask("push", words)
        taken = link.take(words)
        ended = time.monotonic_ns()
        began = peer.answer()
        # Behind all words: what comes is the answer to this one, or a word too many.
        peer.ask("echo", 1, False)
        link.send(words)
        answer = link.receive(awake=False)
    numbers = link.numbers(taken)
    wrong = np.flatnonzero(numbers != np.arange(words))
    if len(wrong):
        at = int(wrong[0])
        raise BenchFailed(f"{link.name} gave word {int(numbers[at])} where {at} was due.")
    if answer != words:
        raise BenchFailed(f"{link.name} gave word {answer} after the last one.")
    return float(words / (ended - began) * 1e9)


def round_trips(link: Link, peer: Peer, trips: int, awake: bool) -> np.ndarray:
    """Time of each round trip in µs, float64 [trips]; raises BenchFailed."""
    times = np.empty(trips, np.int64)
    patience = PATIENCE_SECONDS + PATIENCE_PER_TRIP * trips
    with within(patience, peer, f"{trips:,} round trips by {link.name}"):
        peer.ask("echo", trips, awake)
        for trip in range(trips):
            if not awake:
                time.sleep(ASLEEP_SECONDS)
            began = time.monotonic_ns()
            link.send(trip)
            answer = link.receive(awake)
            times[trip] = time.monotonic_ns() - began
            if answer != trip:
                raise BenchFailed(f"{link.name} brought back word {answer} where {trip} was due.")
    return times / 1e3


def report(options: RingsOptions, samples: dict[Link, Samples], before: dict[str, Any]) -> Report:
    """Tables, JSON and plot of what was measured."""
    first = next(iter(samples))
    rates = {link: [rate / 1e6 for rate in own.words_per_second] for link, own in samples.items()}
    spreads = {link: Spread.of(own) for link, own in rates.items()}
    faster = {link: _ratio(rates[first], own) for link, own in rates.items() if link is not first}
    tables = [
        Table(
            f"Throughput, {options.words:,} words",
            ("link", "million words/s", f"{first.name} is faster"),
            [(link.name, spreads[link].text(), _times(faster.get(link))) for link in samples],
        )
    ]
    trips = {}
    for state in STATES:
        table, trips[state] = _trips(state, samples)
        tables.append(table)

    def draw(axes: Any) -> None:
        medians = [spread.median for spread in spreads.values()]
        reach = [
            [spread.median - spread.low for spread in spreads.values()],
            [spread.high - spread.median for spread in spreads.values()],
        ]
        axes.barh([link.name for link in samples], medians, xerr=reach)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("million 8-byte words per second between two processes")

    return Report(
        bench="rings",
        flags=given(options),
        units={
            "word": "8 bytes, pushed one at a time unless said otherwise",
            "round trip": "a word to another process and back",
            "a (b to c)": f"median, lowest, highest of {options.repeats} repetitions",
        },
        tables=tables,
        values={
            "million_words_per_second": {link.key: one.as_json() for link, one in spreads.items()},
            "ring_is_faster": {link.key: ratio.as_json() for link, ratio in faster.items()},
            "round_trip": trips,
        },
        draw=draw,
        machine=before,
    )


def _trips(state: str, samples: dict[Link, Samples]) -> tuple[Table, dict[str, Any]]:
    """The round trips of one state, as a table and as values."""
    timed = {link: own for link, own in samples.items() if link.times_trips}
    first = next(iter(timed))
    median = {link: own.trips(state, 50) for link, own in timed.items()}
    late = {link: Spread.of(own.trips(state, 99)) for link, own in timed.items()}
    slower = {link: _ratio(own, median[first]) for link, own in median.items() if link is not first}
    table = Table(
        f"Round trip, both sides {state}",
        ("link", "median µs", "99th percentile µs", f"{first.name} is faster"),
        [
            (link.name, Spread.of(own).text(), late[link].text(), _times(slower.get(link)))
            for link, own in median.items()
        ],
    )
    values = {
        link.key: {"median_us": Spread.of(own).as_json(), "p99_us": late[link].as_json()}
        for link, own in median.items()
    }
    for link, ratio in slower.items():
        values[link.key]["ring_is_faster"] = ratio.as_json()
    return table, values


def _ratio(more: list[float], less: list[float]) -> Spread:
    """Of the two in each repetition: they ran side by side."""
    return Spread.of([a / b for a, b in zip(more, less, strict=True)])


def _times(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.text(',.1f')} x"
