"""Running the commands from outside, and seeing what they leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

HANG = 120.0  # seconds; far above what any of these runs takes

TINY = [
    "--workers", "2", "--envs-per-worker", "8", "--rollout-length", "8", "--minibatches", "2",
    "--epochs", "1", "--log-every", "0.5",
]  # fmt: skip


class Command:
    """A started command; every process of its family carries a mark in its environment."""

    started: ClassVar[list[Command]] = []
    """Those of the present test, which ends what it leaves (conftest.py)."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        program: str = "fastrl-train",
        safe_path: bool = False,
        cores: set[int] | None = None,
    ) -> None:
        """Start it, on these cores alone if they are given."""
        self.mark = uuid.uuid4().hex
        entry = {"fastrl-train": "train_main", "fastrl-eval": "eval_main"}[program]
        call = f"import sys; from fastrl.cli import {entry}; sys.exit({entry}())"
        # With -P as the installed command: `python -c` would look into the current folder first.
        flags = ["-P"] if safe_path else []
        self._start([sys.executable, *flags, "-c", call, *map(str, arguments)], cwd, cores)

    @classmethod
    def script(cls, text: str, cwd: Path, *arguments: str) -> Command:
        """Run a user's script, as `python script.py arguments`."""
        command = cls.__new__(cls)
        command.mark = uuid.uuid4().hex
        path = cwd / "script.py"
        path.write_text(text)
        command._start([sys.executable, str(path), *arguments], cwd)
        return command

    def _start(self, call: list[str], cwd: Path, cores: set[int] | None = None) -> None:
        def before() -> None:
            # A suite that runs in the background of a shell has SIGINT ignored, and children
            # inherit that until they set a handler of their own.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if cores is not None:
                os.sched_setaffinity(0, cores)

        self.process = subprocess.Popen(
            call,
            cwd=cwd,
            env={**os.environ, "FASTRL_TEST_MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=before,
        )
        self.output = ""
        self._hung = False
        Command.started.append(self)

    def wait_for(self, text: str) -> str:
        """Read the output until a line holds `text`, and return the line."""
        assert self.process.stdout is not None
        with self._watched():
            for line in self.process.stdout:
                self.output += line
                if text in line:
                    return line
        raise AssertionError(f"the output ended without {text!r}:\n{self.output}")

    def interrupt_after(self, *texts: str) -> int:
        """Have it go on until lines hold these texts, in their order, and until it has learned from
        more steps; interrupt it, and return its exit code.

        For runs that are about an event: a number of steps, however many, is over too early on one
        machine and takes too long on another.
        """
        for text in texts:
            self.wait_for(text)
        first = self._wait_for_steps()
        deadline = time.monotonic() + HANG
        while self._wait_for_steps() <= first:
            assert time.monotonic() < deadline, f"it learns no more:\n{self.output}"
        self.process.send_signal(signal.SIGINT)
        return self.finish()

    def _wait_for_steps(self) -> int:
        """The steps of the next line of figures."""
        found = re.search(r"([\d,]+) steps ", self.wait_for("steps/s"))
        assert found is not None, self.output
        return int(found[1].replace(",", ""))

    def finish(self) -> int:
        """Wait for the end; returns the exit code, all output is then in `output`."""
        assert self.process.stdout is not None
        with self._watched():
            # Not communicate(), which does not know what has been read ahead of the last line.
            self.output += self.process.stdout.read()
            code = self.process.wait(HANG)
        return code

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End all of it where what is done here takes too long; an AssertionError says so."""
        watchdog = threading.Timer(HANG, self._give_up)
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
        assert not self._hung, f"it hung:\n{self.output}"

    def _give_up(self) -> None:
        self._hung = True
        self.kill()

    def kill(self) -> None:
        """End all processes that are left of it."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def family(self) -> dict[int, str]:
        """Living processes of this command: process id to command line."""
        mark = f"FASTRL_TEST_MARK={self.mark}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if mark in (folder / "environ").read_bytes():
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(folder.name)] = line.decode(errors="replace")
            except OSError:
                continue
        return found

    def wait_until_alone(self, seconds: float) -> dict[int, str]:
        """Wait until no process of the family lives; returns those that are left."""
        deadline = time.monotonic() + seconds
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left
