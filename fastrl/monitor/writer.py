"""Metric records on disk: TensorBoard events and one JSON object per line, from the same values."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class MetricWriter:
    """Appends records to ``metrics.jsonl`` and to a TensorBoard event file of the same folder.

    The x-axis of both is environment steps. torch's SummaryWriter would do, but main has no other
    use for torch, whose import costs two seconds and 160 MB.
    """

    def __init__(self, folder: Path) -> None:
        self._events = EventFileWriter(str(folder), flush_secs=5)
        self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def write(self, steps: int, seconds: float, metrics: dict[str, float], **texts: str) -> None:
        """Write one record; a metric that is not finite is left out. ``texts`` go to the JSON line
        only."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=v) for name, v in finite.items()]
        )
        self._events.add_event(Event(wall_time=time.time(), step=steps, summary=summary))
        record = {"steps": steps, "seconds": round(seconds, 3), **finite, **texts}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Flush and close both files."""
        self._events.close()
        self._lines.close()
