"""One child process as main sees it: its pidfd, its start-up pipe, its crash report, how it
ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fastrl.shm import CrashReport


def describe_signal(number: int, about_kills: Callable[[], str] | None) -> str:
    """Say that a signal ended a process; of SIGKILL also what is known of its cause."""
    often = ""
    if number == signal.SIGKILL:
        often = f" ({about_kills() if about_kills else 'often out of memory'})"
    return f"was killed by {signal.Signals(number).name}{often}"


class Child:
    """A started process; owned by main."""

    def __init__(
        self,
        role: str,
        process: Any,
        pipe: Connection,
        crash: CrashReport,
        worker: int | None = None,
    ) -> None:
        self.role = role
        self.worker = worker
        self.process = process
        self.pipe = pipe
        self.pipe_ended = False
        self.messages: list[tuple[str, Any]] = []
        self.crash = crash
        self.envs: range | None = None
        """Of a rollout worker: the run-wide indices of its environments, once they are known."""
        self.ended_by_main: str | None = None
        """Why main has killed it, where it has: what is then said in place of the signal."""
        self.about_kills: Callable[[], str] | None = None
        """Says what is known of the cause of a SIGKILL."""
        # A pidfd tells the truth also where the forkserver that would report the end is dead
        # itself.
        try:
            self.pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            # It has ended and been reaped already: a pipe without a writer is as readable as its
            # pidfd.
            self.pidfd, writer = os.pipe()
            os.close(writer)

    @property
    def name(self) -> str:
        """Name in sentences: the learner, rollout worker 3."""
        return (
            f"the {self.role} process"
            if self.worker is None
            else f"{self.role} worker {self.worker}"
        )

    def receive(self) -> list[tuple[str, Any]]:
        """Return the messages that lie in the start-up pipe; never waits for one."""
        messages = []
        while not self.pipe_ended and self.pipe.poll():
            try:
                messages.append(self.pipe.recv())
            except (EOFError, OSError):
                self.pipe_ended = True
        return messages

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Wait up to `timeout` seconds for the end of the process."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def exit_code(self) -> int | None:
        """Exit code of an ended process, negative for a signal; None where nobody can know it."""
        self.process.join(1.0)
        # 255 is what multiprocessing reports for a child whose forkserver has died.
        code: int | None = self.process.exitcode
        return None if code == 255 else code

    def how_it_ended(self) -> str:
        """Say how an ended process ended, for a sentence that begins with its name."""
        code = self.exit_code()
        if self.ended_by_main is not None:
            return self.ended_by_main
        if code is None:
            return "ended with an unknown exit code"
        if code < 0:
            return describe_signal(-code, self.about_kills)
        return f"ended with exit code {code}"

    def story(self) -> str:
        """Who ended and how, and the traceback that it left, if any."""
        name = self.name[0].upper() + self.name[1:]
        if self.envs is not None:
            first, last = self.envs[0], self.envs[-1]
            name += (
                f" (environment {first})" if first == last else f" (environments {first} to {last})"
            )
        said, _, rest = self.crash.read().strip().partition("\n")
        if said.startswith(("Traceback", "Fatal Python error")) or not said:
            lines = (f"{name} {self.how_it_ended()}.", said, rest)
            return "\n".join(line for line in lines if line)
        return f"{name}: {said}" + (f"\n{rest}" if rest else "")

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                # By pidfd: once reaped by the forkserver, the pid may be another process's.
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Release the descriptors of an ended process."""
        self.exit_code()
        os.close(self.pidfd)
        self.pipe.close()
        self.crash.close()
