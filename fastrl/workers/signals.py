"""Signals that end a run: the first one asks for an orderly end, a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

SAME_SIGNAL_SECONDS = 0.5
"""A second signal so soon is the same one: timeout(1) and others send it to a process and to its
group. Nobody presses Ctrl-C twice so fast to have a run killed unsaved."""


class StopSignal:
    """The signal that has come, if any; `wake` is a descriptor that is readable from then on."""

    def __init__(self, wake: int) -> None:
        self.wake = wake
        self.number: int | None = None

    @property
    def name(self) -> str:
        """Its name, such as SIGINT; empty while none has come."""
        return "" if self.number is None else signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """What a shell shows for a process that this signal ended."""
        return 128 + (self.number or 0)


@contextlib.contextmanager
def stop_signals(kill: Callable[[], None], debugger: bool = False) -> Iterator[StopSignal]:
    """Note SIGINT, SIGTERM and SIGHUP instead of being ended by them; at a second one, call `kill`
    and exit.

    Handlers only note the signal: one that raised could lose a process between its start and its
    entry in a list. With `debugger`, one that runs keeps its own Ctrl-C. A thread other than the
    main one, which may set no handler, gets none.
    """
    reader, writer = os.pipe()
    stop = StopSignal(reader)
    came = 0.0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if stop.number is not None:
            if time.monotonic() - came < SAME_SIGNAL_SECONDS:
                return
            kill()
            os._exit(128 + number)
        came = time.monotonic()
        stop.number = number
        os.write(writer, b".")

    numbers = [signal.SIGTERM]
    if not debugger or sys.gettrace() is None:
        numbers.append(signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        numbers.append(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
