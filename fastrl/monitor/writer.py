"""Metric records on disk: TensorBoard events and one JSON object per line, from the same values.

A record is whole or absent, and a disk that is full does not end a run that trains::

    write ─▶ JSON line ─▶ metrics.jsonl            an error takes the half record back, is reported
          └▶ event ─────▶ events.out.tfevents.*    once of its kind, and the next record is tried
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class MetricWriter:
    """Appends records to ``metrics.jsonl`` and to a TensorBoard event file of the same folder.

    The x-axis of both is environment steps. torch's SummaryWriter would do, but main has no other
    use for torch, whose import costs two seconds and 160 MB; and tensorboard's EventFileWriter
    writes in a thread, which the first error ends for good and with a traceback on the terminal.
    """

    def __init__(self, folder: Path, *, on_error: Callable[[str], None]) -> None:
        """Open both files; ``on_error`` is given one sentence per kind of later failure.

        Raises OSError where the files cannot be opened.
        """
        self._on_error = on_error
        self._reported: set[tuple[type, int | None]] = set()
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._lines = _RecordFile(folder / "metrics.jsonl", self._report)
        self._events = _RecordFile(folder / name, self._report, first=_framed(version))

    def write(self, steps: int, seconds: float, metrics: dict[str, float], **texts: str) -> None:
        """Write one record; a metric that is not finite is left out. ``texts`` go to the JSON line
        only.

        Raises nothing where the disk is full or the writer closed: see ``on_error``.
        """
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        record = {"steps": steps, "seconds": round(seconds, 3), **finite, **texts}
        self._lines.append(json.dumps(record).encode() + b"\n")
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=v) for name, v in finite.items()]
        )
        self._events.append(_framed(Event(wall_time=time.time(), step=steps, summary=summary)))

    def resume(self, steps: int, seconds: float) -> None:
        """Say that the run goes on from a checkpoint taken after so many steps.

        What was recorded after it is undone; TensorBoard then hides it.
        """
        record = {"steps": steps, "seconds": round(seconds, 3), "resumed": True}
        self._lines.append(json.dumps(record).encode() + b"\n")
        session = SessionLog(status=SessionLog.START)
        # TensorBoard drops what has this step or a later one.
        self._events.append(
            _framed(Event(wall_time=time.time(), step=steps + 1, session_log=session))
        )

    def close(self) -> None:
        """Close both files; a second call does nothing."""
        self._lines.close()
        self._events.close()

    def _report(self, path: Path, error: Exception) -> None:
        # Both files meet the same full disk: one sentence is enough.
        kind = (type(error), getattr(error, "errno", None))
        if kind not in self._reported:
            self._reported.add(kind)
            self._on_error(
                f"{path} cannot be written: {error}; training goes on, and metric records are lost "
                "until it can be."
            )


def _framed(event: Event) -> bytes:
    """The event as one record of an event file: length, bytes, and the check sums of both."""
    frame = io.BytesIO()
    RecordWriter(frame).write(event.SerializeToString())
    return frame.getvalue()


class _RecordFile:
    """A file that is appended to, one whole record at a time; errors are reported, not raised."""

    def __init__(
        self, path: Path, report: Callable[[Path, Exception], None], first: bytes = b""
    ) -> None:
        """`first` precedes the first record of an empty file."""
        self._path = path
        self._report = report
        self._first = first
        # Unbuffered: what a full disk refused must not come back with a later record.
        self._file = path.open("ab", buffering=0)

    def append(self, record: bytes) -> None:
        try:
            self._append(record)
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self._report(self._path, error)

    def _append(self, record: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        rest = memoryview(record if size else self._first + record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # Readers of either format stop at half a record in the middle.
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._report(self._path, error)
