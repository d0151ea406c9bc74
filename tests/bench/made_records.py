"""Records of a run that never was."""

from __future__ import annotations

import numpy as np


def records_of(rate, batch, interval, seconds, start=10.0, phase=0.0):
    """A run that learns `rate` steps/s from second `start` on, counted one batch at a time."""
    records = []
    for at in np.arange(interval, start + seconds, interval):
        learned = max(0.0, (at - start) * rate + phase * batch)
        record = {"steps": int(learned // batch) * batch, "seconds": float(at)}
        records.append(record | {"charts/SPS": float(rate)})
    return records
