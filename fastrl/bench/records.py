"""A run's ``metrics.jsonl`` as records, and the steady rate that they show.

::

    start-up │ first learned step │ warm-up │ ........ the measured time ........ │ end (stopped_by)
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""``steps`` (learned so far), ``seconds`` (since the start), metrics by name; the last one may have
``stopped_by``."""

SPANS = 6
"""Equal parts of the measured time whose rates show the spread of the learned steps."""


class NoRate(ValueError):
    """The measured time was too short; the message says what it showed."""


def read_records(run: Path) -> list[Record]:
    """Read the records of a run's folder, without a last line that is still being written.

    Raises ValueError where there is none.
    """
    path = run / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise ValueError(f"{run} has no metrics.jsonl that can be read: {error}.") from error
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    if not records:
        raise ValueError(f"{path} has no record yet.")
    return records


def warm_at(records: list[Record], warm_up: float) -> float | None:
    """Seconds at which the measured time begins: `warm_up` after the first learned steps."""
    first = next((record for record in records if record["steps"] > 0), None)
    return None if first is None else first["seconds"] + warm_up


def steady(records: list[Record], warm_up: float, seconds: float) -> list[Record]:
    """Keep the records of the measured time; empty where the run learned nothing.

    The last record of a run is not one: stopping and saving lie in it.
    """
    begin = warm_at(records, warm_up)
    if begin is None:
        return []
    return [
        record
        for record in records
        if begin <= record["seconds"] <= begin + seconds and "stopped_by" not in record
    ]


@dataclass(frozen=True)
class Rate:
    """Steps per second: over all of the time, and how far its parts lie apart."""

    mean: float
    median: float
    low: float
    high: float
    parts: int

    def __str__(self) -> str:
        return (
            f"{self.mean:,.0f} steps/s (median {self.median:,.0f}, "
            f"{self.low:,.0f} to {self.high:,.0f} over {self.parts} parts)"
        )


def learned_rate(records: list[Record]) -> Rate:
    """Rate of learned steps (trained and masked) between the first and the last record.

    Steps are counted once a batch, which may be rarer than a record. So the first and last record
    are those in which a batch has just been counted: the error is that of one interval between
    records, not that of one batch. Raises NoRate where fewer than two batches were.
    """
    fresh = [record for before, record in pairwise(records) if record["steps"] > before["steps"]]
    if len(fresh) < 2:
        raise NoRate(
            f"{len(fresh)} of {len(records)} records show a new batch, and a rate takes two: "
            "measure for longer."
        )
    first, last = fresh[0], fresh[-1]
    length = last["seconds"] - first["seconds"]
    marks = [first]
    for part in range(1, SPANS):
        at = first["seconds"] + part * length / SPANS
        mark = min(fresh, key=lambda record: abs(record["seconds"] - at))
        if mark["seconds"] > marks[-1]["seconds"]:
            marks.append(mark)
    if last["seconds"] > marks[-1]["seconds"]:
        marks.append(last)
    rates = [_slope(a, b) for a, b in pairwise(marks)]
    return Rate(_slope(first, last), statistics.median(rates), min(rates), max(rates), len(rates))


def _slope(first: Record, last: Record) -> float:
    return float((last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"]))


def sampled_rate(records: list[Record]) -> Rate:
    """Rate of sampled steps: the records' ``charts/SPS``, each over the time since the one before.

    Raises NoRate where there are fewer than two records.
    """
    if len(records) < 2:
        raise NoRate(f"{len(records)} records cannot show a rate: measure for longer.")
    rates = [record["charts/SPS"] for record in records[1:]]
    lengths = [b["seconds"] - a["seconds"] for a, b in pairwise(records)]
    mean = math.fsum(r * s for r, s in zip(rates, lengths, strict=True)) / math.fsum(lengths)
    return Rate(mean, statistics.median(rates), min(rates), max(rates), len(rates))


def mean_of(records: list[Record], name: str) -> float | None:
    """Mean of a metric over the records that have it; None where none has."""
    values = [record[name] for record in records if name in record]
    return statistics.fmean(values) if values else None
