"""Standard output that nobody has to read: what it does not take is dropped, never waited for.

::

    put(text) ─▶ a bounded queue ─▶ a thread of its own ─▶ write(2) to the descriptor

A terminal that was stopped (Ctrl-S), a pager that shows its first page or a pipe that nobody
empties blocks a write for ever; only the thread is kept by it.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
import time

MOST_LINES = 1000
"""Texts that wait; more than that are dropped, and counted."""

LAST_SECONDS = 1.0
"""Time for what waits to be written when the run ends."""


class Terminal:
    """The process's standard output as a descriptor; owned by a `Console`."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        """Write to `descriptor`, which stays open."""
        self._descriptor = descriptor
        self._encoding = encoding
        self._texts: queue.Queue[tuple[int, str | None]] = queue.Queue(MOST_LINES)
        """Each with the number of texts dropped just before it; None is the end."""
        self._dropped = 0
        self._gone = False
        self._thread = threading.Thread(target=self._write_all, name="fastrl-console", daemon=True)
        self._thread.start()

    @staticmethod
    def of_stdout() -> Terminal | None:
        """Standard output, where it is a file of the system's: not in a notebook, nor where a test
        has put something else in its place."""
        stream = sys.stdout
        if stream is not sys.__stdout__ or not isinstance(stream, io.TextIOWrapper):
            return None
        try:
            descriptor = stream.fileno()
            stream.flush()  # what was printed before comes first
        except (OSError, ValueError):
            return None
        return Terminal(descriptor, stream.encoding)

    def put(self, text: str) -> None:
        """Have a text written; never waits."""
        try:
            self._texts.put_nowait((self._dropped, text))
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def _write_all(self) -> None:
        text: str | None = ""
        while text is not None:
            dropped, text = self._texts.get()
            if dropped:
                self._write(f"({dropped} lines were not shown: the terminal did not take them)\n")
            if text:
                self._write(text)

    def _write(self, text: str) -> None:
        if self._gone:
            return
        rest = memoryview(text.encode(self._encoding, errors="replace"))
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody has set it so
                time.sleep(0.05)
            except BrokenPipeError:
                self._gone = True
                return
            except OSError:  # a full disk may have room again
                return

    def close(self) -> None:
        """Write what waits, for `LAST_SECONDS` at most."""
        try:
            self._texts.put((self._dropped, None), timeout=LAST_SECONDS)
        except queue.Full:
            return
        self._thread.join(LAST_SECONDS)
