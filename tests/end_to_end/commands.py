"""Running the commands from outside, and seeing what they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

HANG = 120.0  # seconds; far above what any of these runs takes

TINY = [
    "--workers", "2", "--envs-per-worker", "8", "--rollout-length", "8", "--minibatches", "2",
    "--epochs", "1", "--log-every", "0.5",
]  # fmt: skip


class Command:
    """A started command; every process of its family carries a mark in its environment."""

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

    def wait_for(self, text: str) -> None:
        """Read the output until a line holds `text`."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + HANG
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
            assert time.monotonic() < deadline, self.output
        raise AssertionError(f"the output ended without {text!r}:\n{self.output}")

    def finish(self) -> int:
        """Wait for the end; returns the exit code, all output is then in `output`."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(HANG, self._kill_family)
        watchdog.start()
        try:
            # Not communicate(), which does not know what has been read ahead of the last line.
            self.output += self.process.stdout.read()
            code = self.process.wait(HANG)
        finally:
            watchdog.cancel()
        assert not self._hung, f"it hung:\n{self.output}"
        return code

    def _kill_family(self) -> None:
        self._hung = True
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
