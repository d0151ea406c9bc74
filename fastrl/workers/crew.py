"""The crew of a run: every child process, from its launch to its end; owned by the supervisor.

Start-up messages go over a pipe per child (main waits for them one by one); from then on the arena
is the only link, and main looks at pidfds.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import multiprocessing
import os
import pickle
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError
from fastrl.shm import Arena, CrashReport
from fastrl.workers.bodies import Bodies
from fastrl.workers.children import Child, describe_signal
from fastrl.workers.memory import FreeMemory, by_role
from fastrl.workers.process import ENV_VARIABLE, Launcher, Lines
from fastrl.workers.reports import ReportQueue
from fastrl.workers.rollout import RolloutStart

LONG_WAIT_SECONDS = 10.0
DOING = {
    "spec": "looking at the environment's spaces",
    "constructed": "constructing its first environments",
    "built": "importing torch and building the network",
}
"""What a child does before it sends a start-up message of a kind."""


class ProcessDied(RuntimeError):
    """A process whose death ends the run has died; the message tells who, how, and its
    traceback."""

    def __init__(self, story: str, again: bool = False) -> None:
        """`again`: the engine may do better if it is started once more (`--max-restarts`)."""
        super().__init__(story)
        self.again = again


class Interrupted(Exception):
    """A signal came before training began."""


class Crew:
    """All child processes of a run and what they share from the start: the arena and the report
    queue."""

    def __init__(self, bodies: Bodies | None = None) -> None:
        """Prepare to start processes with these bodies, by default those of training."""
        self._bodies = Bodies() if bodies is None else bodies
        self.arena = Arena.create()
        self.reports = ReportQueue()
        self.members: list[Child] = []
        self._launcher = Launcher()
        self._forkserver_fd: int | None = None
        self.wake: int | None = None
        """Descriptor that becomes readable when a signal has come."""
        self.tell: Callable[[str], None] = lambda line: None
        """Takes a line about a start-up that takes long."""
        self.free_memory = FreeMemory()
        # At exit multiprocessing sends SIGTERM to what still runs and waits for it; children leave
        # that signal to main, so a main that fails before `end` must kill them first.
        atexit.register(self.kill)

    def launch_rollout(self, start: RolloutStart) -> Child:
        """Start a rollout process from the forkserver."""
        ours, theirs = multiprocessing.Pipe()
        crash = CrashReport.create()
        lines = Lines(self.arena, crash, theirs, parent_pid=None)
        name, config = f"rollout-{start.worker}", start.config
        try:
            process = self._launcher.fork(
                name,
                self._bodies.rollout,
                *(start, lines),
                variables={ENV_VARIABLE: _packed_env(config.env, config.section(EnvOptions))},
            )
        except (EOFError, OSError) as error:
            for end in (ours, theirs):
                end.close()
            crash.close()
            self.raise_if_interrupted()
            gone = isinstance(error, EOFError | ConnectionError)
            if self.forkserver_ended() or (start.plan is None and gone):
                raise self.forkserver_death() from error
            if start.plan is None:
                raise ProcessDied(
                    "The forkserver, which starts the rollout workers, could not be started: "
                    f"{error}. Its socket lies in the temporary folder (TMPDIR)."
                ) from error
            raise ProcessDied(
                f"Rollout worker {start.worker} could not be started: {error or 'no answer'}."
            ) from error
        theirs.close()
        child = self._enlist(Child("rollout", process, ours, crash, start.worker))
        if start.plan is not None:
            share = start.plan.config.envs_per_worker
            child.envs = range(start.worker * share, (start.worker + 1) * share)
        return child

    def launch_learner(self) -> Child:
        """Start the learner; it begins with importing torch and waits for its configuration."""
        return self._spawn("learner", self._bodies.learner, self.reports.fifo)

    def launch_inference(self) -> Child:
        """Start the inference worker; it begins with importing torch and waits for its
        configuration."""
        return self._spawn("inference", self._bodies.inference)

    def launch_evaluator(self) -> Child:
        """Start an evaluator, which waits for its `EvaluatorStart`."""
        return self._spawn("evaluator", self._bodies.evaluator)

    def _spawn(self, role: str, body: Any, *args: Any) -> Child:
        ours, theirs = multiprocessing.Pipe()
        crash = CrashReport.create()
        lines = Lines(self.arena, crash, theirs, parent_pid=os.getpid())
        process = self._launcher.spawn(role, body, lines, *args)
        theirs.close()
        return self._enlist(Child(role, process, ours, crash))

    def _enlist(self, child: Child) -> Child:
        child.about_kills = self.free_memory.describe_kill
        self.members.append(child)
        return child

    def watch_forkserver(self, pid: int) -> None:
        """Watch the forkserver as well: without it no worker can be replaced, and its children
        die."""
        self._forkserver_fd = os.pidfd_open(pid)

    def memory(self) -> dict[str, float]:
        """Metrics of resident memory by role, in MB; see `by_role`."""
        members = [(member.role, member.process.pid) for member in self.members]
        return by_role([*members, ("main", os.getpid())])

    def send(self, child: Child, message: Any) -> None:
        """Send a start-up message; raises ProcessDied where the child has ended meanwhile."""
        try:
            child.pipe.send(message)
        except OSError:
            child.has_ended(5.0)
            self.receive()
            raise ProcessDied(child.story(), again=child.role != "rollout") from None

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted where a signal has come."""
        if self.wake is not None and _poll([self.wake], 0.0):
            raise Interrupted

    def expect(self, child: Child, kind: str) -> Any:
        """Wait for a start-up message of `child` and return its value.

        Raises ConfigError with the sentence of any child that refuses, ProcessDied when any has
        died, Interrupted after a signal. A wait that takes long is told, again and again.
        """
        began, due = time.monotonic(), LONG_WAIT_SECONDS
        while True:
            waited = time.monotonic() - began
            if waited >= due:
                due *= 2
                self.tell(f"{child.name} has been {DOING[kind]} for {waited:.0f} s")
            self.raise_if_interrupted()
            self.receive()
            if child.messages:
                received, value = child.messages.pop(0)
                assert received == kind, f"{child.name} sent {received!r} where {kind!r} was due"
                return value
            for member in self.members:
                if member.has_ended():
                    self.receive()
                    raise ProcessDied(member.story(), again=member.role != "rollout")
            pipes = [m.pipe.fileno() for m in self.members if not m.pipe_ended]
            wake = [] if self.wake is None else [self.wake]
            _poll([*pipes, *wake, *(m.pidfd for m in self.members)], 1.0)

    def receive(self) -> None:
        """Take in start-up messages; raises ConfigError for a refusal."""
        for member in self.members:
            for kind, value in member.receive():
                if kind == "refused":
                    raise ConfigError(value)
                member.messages.append((kind, value))

    def wait_for_events(self, wake: int, timeout: float) -> None:
        """Sleep until a process ends, reports come, `wake` becomes readable, or `timeout` seconds
        have passed."""
        descriptors = [self.reports.arrival, *(member.pidfd for member in self.members)]
        # Of the others nothing comes any more.
        descriptors += [m.pipe.fileno() for m in self.members if m.role == "evaluator"]
        if self._forkserver_fd is not None:
            descriptors.append(self._forkserver_fd)
        _poll([*descriptors, wake], timeout)

    def forkserver_ended(self) -> bool:
        """Whether the forkserver has ended; it ends before its children, so ask this before blaming
        one."""
        return self._forkserver_fd is not None and bool(_poll([self._forkserver_fd], 0.0))

    def forkserver_death(self) -> ProcessDied:
        """How the forkserver ended, once it has."""
        how = "was killed"
        if self._forkserver_fd is not None:
            with contextlib.suppress(ChildProcessError):
                # Left for multiprocessing to reap, whose child it is.
                seen = os.waitid(
                    os.P_PIDFD, self._forkserver_fd, os.WEXITED | os.WNOHANG | os.WNOWAIT
                )
                if seen is not None and seen.si_code != os.CLD_EXITED:
                    how = describe_signal(seen.si_status, self.free_memory.describe_kill)
                elif seen is not None:
                    how = f"ended with exit code {seen.si_status}"
        return ProcessDied(
            f"The forkserver, which starts the rollout workers, {how}; they end with it.",
            again=True,
        )

    def discharge(self, child: Child) -> None:
        """Forget a child that has ended."""
        self.members.remove(child)
        child.close()

    def wait_for_end(self, members: Iterable[Child], timeout: float) -> bool:
        """Wait until all of these have ended; False when `timeout` seconds passed first."""
        deadline = time.monotonic() + timeout
        return all(m.has_ended(max(0.0, deadline - time.monotonic())) for m in members)

    def end(self) -> None:
        """Kill whatever still runs, wait for it, release everything. Safe to call again."""
        self.kill()
        for member in list(self.members):
            member.has_ended(5.0)
            self.discharge(member)
        self.reports.stop()
        atexit.unregister(self.kill)
        if self._forkserver_fd is not None:
            os.close(self._forkserver_fd)
            self._forkserver_fd = None
        self.reports.close()
        self.arena.close()

    def kill(self) -> None:
        """Kill every child at once."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.kill()


def _poll(descriptors: list[int], timeout: float) -> list[tuple[int, int]]:
    # select() refuses descriptors over 1023, which hundreds of workers reach.
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return poller.poll(timeout * 1000)


def _packed_env(env_id: str, options: EnvOptions) -> str:
    """An environment as the text that `ENV_VARIABLE` holds."""
    return base64.b64encode(pickle.dumps((env_id, options))).decode()
