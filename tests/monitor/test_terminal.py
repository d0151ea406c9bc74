"""A terminal that takes nothing holds nobody up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from fastrl.monitor.terminal import LAST_SECONDS, MOST_LINES, Terminal


def small_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


def test_texts_come_out_in_order():
    reader, writer = small_pipe()
    terminal = Terminal(writer)
    for number in range(50):
        terminal.put(f"{number}\n")
    terminal.close()
    os.close(writer)
    with os.fdopen(reader) as output:
        assert output.read().split() == [str(number) for number in range(50)]


def test_a_pipe_that_nobody_reads_keeps_neither_put_nor_close():
    reader, writer = small_pipe()
    terminal = Terminal(writer)
    began = time.monotonic()
    for _ in range(MOST_LINES + 500):
        terminal.put("x" * 100 + "\n")
    terminal.close()
    assert time.monotonic() - began < 5 * LAST_SECONDS
    os.close(reader)  # the thread ends with an error of its own
    os.close(writer)


def test_what_was_dropped_is_said_once_the_reader_is_back():
    reader, writer = small_pipe()
    terminal = Terminal(writer)
    for number in range(MOST_LINES + 500):
        terminal.put(f"line {number}\n")
    text = b""
    deadline = time.monotonic() + 30
    while b"not shown" not in text and time.monotonic() < deadline:
        text += os.read(reader, 4096)
        terminal.put("later\n")
    assert b"lines were not shown" in text
    os.close(reader)


def test_what_was_dropped_is_said_in_its_place():
    reader, writer = small_pipe()
    terminal = Terminal(writer)
    for number in range(MOST_LINES + 500):
        terminal.put(f"line {number:04} {'x' * 20}\n")
    os.set_blocking(reader, False)
    text = b""
    deadline = time.monotonic() + 30
    while b"last" not in text and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            text += os.read(reader, 4096)
        terminal.put("last\n")
    assert b"last" in text
    expected = 0
    for line in text.decode().split("last")[0].splitlines():
        if line.startswith("("):
            expected += int(line[1:].split()[0])
        else:
            assert int(line.split()[1]) == expected
            expected += 1
    assert expected >= MOST_LINES + 500  # a "last" that came too early is counted too
    os.close(reader)


def test_a_reader_that_has_gone_stops_nothing():
    reader, writer = small_pipe()
    os.close(reader)
    terminal = Terminal(writer)
    for _ in range(10):
        terminal.put("to nobody\n")
    terminal.close()
    os.close(writer)
