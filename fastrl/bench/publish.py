"""`fastrl-bench publish`: from the publication of weights to their first use by inference.

::

    main, as the learner: publish ─▶ waits until the reader has it ─▶ publish ...
    a peer, as inference: looks at the version ─▶ a new one: copies it, says so ─▶ looks again

The reader is awake and does nothing else, so what is left is the cost of the two copies. An
inference worker looks between two batches: it adds, at most, the time that a batch takes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from fastrl.bench.command import check_numbers, given
from fastrl.bench.options import PublishOptions
from fastrl.bench.peer import BenchFailed, Peer, within
from fastrl.bench.report import Report, Spread, Table, check_outputs, machine
from fastrl.errors import ConfigError
from fastrl.shm import Arena, Counters, Layout, Segment, Weights, weights_bytes
from fastrl.workers.machine import available_memory
from fastrl.workers.process import Launcher, Lines

PARTS = {
    "publish_us": "publish",
    "read_us": "read",
    "until_read_us": "publication to the end of the read",
}
"""What is measured of each version, and its name in the table."""

PATIENCE_SECONDS, PATIENCE_PER_FLOAT = 30.0, 1e-7
"""A measurement that takes longer has failed: this, and of each version its floats' share."""


class Place(NamedTuple):
    """Where the weights of one size lie, and the version that the reader has; picklable."""

    num_params: int
    segment: Segment

    @classmethod
    def create(cls, arena: Arena, num_params: int) -> Place:
        """Take memory for them."""
        return cls(num_params, arena.extend(cls._layout(num_params).nbytes))

    @staticmethod
    def _layout(num_params: int) -> Layout:
        layout = Layout()
        layout.add("weights", weights_bytes(num_params), np.uint8)
        layout.add("read", 1, np.int64)
        return layout

    def open(self, arena: Arena) -> tuple[Weights, Counters]:
        """The weights, and the reader's counter."""
        views = self._layout(self.num_params).views(arena.map(self.segment))
        return Weights(views["weights"], self.num_params), Counters(views["read"])


class Reader:
    """The peer: takes over each new version as `Inference.refresh` does, and notes when."""

    def __init__(self, places: tuple[Place, ...]) -> None:
        self._places = places

    def __call__(self, lines: Lines) -> None:
        """Serve requests until main ends this process."""
        opened = [place.open(lines.arena) for place in self._places]
        flats = [np.zeros(place.num_params, np.float32) for place in self._places]
        lines.pipe.send("open")
        while True:
            at, count = lines.pipe.recv()
            (weights, read), flat = opened[at], flats[at]
            times = np.empty((2, count), np.int64)
            last = weights.version
            lines.pipe.send("ready")
            for nth in range(count):
                while weights.version == last:
                    pass
                times[0, nth] = time.monotonic_ns()
                last = weights.read(flat)
                times[1, nth] = time.monotonic_ns()
                if not flat[0] == flat[-1] == np.float32(last):
                    raise AssertionError(f"version {last} was read as {flat[0]} to {flat[-1]}")
                read.store(0, last)
            lines.pipe.send(times)


def run(options: PublishOptions) -> int:
    """Measure and report; 1 where a reader failed."""
    check_numbers(options)
    if not options.params:
        raise ConfigError("--params names no size; name at least one.")
    # Two halves, what is published and what is read into.
    needed, available = 4 * 4 * sum(options.params), available_memory()
    if needed > 0.9 * available:
        raise ConfigError(
            f"--params needs {needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB "
            "are available; name smaller sizes."
        )
    check_outputs(options.json, options.plot)
    before = machine()
    try:
        samples = measure(options)
    except BenchFailed as failure:
        print(f"fastrl-bench: {failure}", file=sys.stderr)
        return 1
    report(options, samples, before).deliver(options.json, options.plot)
    return 0


Samples = dict[int, dict[str, list[np.ndarray]]]
"""By size and part: per repetition the µs of each version, float64 [versions]."""


def measure(options: PublishOptions) -> Samples:
    """Publish versions of every size in turn; raises BenchFailed."""
    samples: Samples = {size: {part: [] for part in PARTS} for size in options.params}
    with contextlib.ExitStack() as stack:
        arena = Arena.create()
        stack.callback(arena.close)
        places = tuple(Place.create(arena, size) for size in samples)
        peer = Peer(Launcher(), arena, "reader", Reader(places))
        stack.callback(peer.end)
        peer.answer()
        opened = [place.open(arena) for place in places]
        for _ in range(options.repeats):
            for at, size in enumerate(samples):
                weights, read = opened[at]
                patience = PATIENCE_SECONDS + PATIENCE_PER_FLOAT * size * options.versions
                with within(patience, peer, f"Publishing {size:,} parameters"):
                    peer.ask(at, options.versions)
                    times = publish(weights, read, size, options.versions, peer)
                for part, microseconds in times.items():
                    samples[size][part].append(microseconds)
    return samples


def publish(
    weights: Weights, read: Counters, size: int, versions: int, peer: Peer
) -> dict[str, np.ndarray]:
    """Publish versions that the peer waits for; µs of each part, float64 [versions]."""
    source = np.zeros(size, np.float32)
    own = np.empty((2, versions), np.int64)
    peer.answer()
    for nth in range(versions):
        source[[0, -1]] = weights.version + 1
        own[0, nth] = time.monotonic_ns()
        version = weights.publish(source)
        own[1, nth] = time.monotonic_ns()
        while read.load(0) != version:
            pass
    theirs: np.ndarray = peer.answer()
    return {
        "publish_us": (own[1] - own[0]) / 1e3,
        "read_us": (theirs[1] - theirs[0]) / 1e3,
        "until_read_us": (theirs[1] - own[0]) / 1e3,
    }


def report(options: PublishOptions, samples: Samples, before: dict[str, Any]) -> Report:
    """Tables, JSON and plot of what was measured."""
    spreads = {
        size: {
            part: {
                name: Spread.of([float(np.percentile(times, q)) for times in repetitions])
                for name, q in (("median", 50), ("p99", 99))
            }
            for part, repetitions in parts.items()
        }
        for size, parts in samples.items()
    }

    def draw(axes: Any) -> None:
        sizes = sorted(spreads)
        for part, name in PARTS.items():
            medians = [spreads[size][part]["median"] for size in sizes]
            reach = [[m.median - m.low for m in medians], [m.high - m.median for m in medians]]
            axes.errorbar(sizes, [m.median for m in medians], reach, marker="o", label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("parameters of the network (4 bytes each)")
        axes.set_ylabel("µs, median")
        axes.legend()

    return Report(
        bench="publish",
        flags=given(options),
        units={
            "publish": "µs that the writer's call takes",
            "read": "µs that the reader's copy takes",
            "publication to the end of the read": "µs from the beginning of publish",
            "a (b to c)": f"median, lowest, highest of {options.repeats} repetitions",
        },
        tables=[
            Table(
                f"{size:,} parameters, {options.versions} versions",
                ("part", "median µs", "99th percentile µs"),
                [
                    (name, spreads[size][part]["median"].text(), spreads[size][part]["p99"].text())
                    for part, name in PARTS.items()
                ],
            )
            for size in spreads
        ],
        values={
            "sizes": [
                {
                    "params": size,
                    **{
                        part: {name: spread.as_json() for name, spread in both.items()}
                        for part, both in parts.items()
                    },
                }
                for size, parts in spreads.items()
            ]
        },
        draw=draw,
        machine=before,
    )
