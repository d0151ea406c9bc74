"""Starting processes, ending with one's parent, and leaving a traceback behind.

Rollout processes come from a forkserver that has numpy and the environments imported; learner and
inference are spawned. None of them re-runs the user's main script, and none outlives main::

    main ──PDEATHSIG──▶ forkserver ──PDEATHSIG──▶ rollout 0..N
     └─────PDEATHSIG──▶ learner, inference
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fastrl.errors import ConfigError, NotFinite
from fastrl.shm import Arena, Closed, CrashReport

MAIN_PID_VARIABLE = "FASTRL_MAIN_PID"
ENV_VARIABLE = "FASTRL_ENV"
"""In the forkserver: the environment that its children will make, see `fastrl.workers.preload`."""
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, and exit at once if it already
    has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process(name: str) -> None:
    """Name this process, and threads it will start, for `top` and the like; at most 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def be_nice(niceness: int) -> None:
    """Give every thread of this process this nice level; those it starts later inherit it.

    The level belongs to a thread, and an environment may have started some (envpool does): at level
    0 they would keep learner and inference from their cores.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            level = os.getpriority(os.PRIO_PROCESS, int(thread))
            os.setpriority(os.PRIO_PROCESS, int(thread), min(19, level + niceness))


def _do_nothing(number: int, frame: types.FrameType | None) -> None:
    pass


def ignore_stop_signals() -> None:
    """Leave signals that end a run to main; terminals and service managers send them to all.

    By a handler that does nothing: a signal that is ignored stays so in the programs that an
    environment starts, which it may want to end by SIGTERM.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@dataclass(frozen=True)
class Lines:
    """What a child is given at its start: shared memory, its crash report, and a pipe for the
    start-up."""

    arena: Arena
    crash: CrashReport
    pipe: Connection
    parent_pid: int | None  # None: the forkserver's, known to its children


@contextlib.contextmanager
def child_of_main(lines: Lines) -> Iterator[None]:
    """Run a child's body: the end by `Closed` is the normal one, a traceback goes to the crash
    report.

    The exit code is 0 after Closed, 2 after a ConfigError (whose sentence goes up the pipe) and
    after NotFinite, else 1. The process ends here: threads that an environment has left running are
    not waited for.
    """
    ignore_stop_signals()
    if lines.parent_pid is not None:
        # Meant for this interpreter's start alone.
        os.environ.pop(SAFE_PATH_VARIABLE, None)
        die_with_parent(lines.parent_pid)
    else:
        _die_with_forkserver(lines)
    faulthandler.enable(file=lines.crash.fileno(), all_threads=True)
    try:
        yield
    except Closed:
        pass
    except ConfigError as error:
        # Main reads the pipe while it starts the run, the report once it runs.
        lines.crash.write(str(error))
        with contextlib.suppress(OSError):
            lines.pipe.send(("refused", str(error)))
        _leave(2)
    except NotFinite as error:
        # It is of the numbers, not of the code: where that was says nothing. And another attempt
        # would come to the same.
        lines.crash.write(str(error))
        _leave(2)
    except BaseException as error:
        # What the environment's adapter says of it comes first, in one sentence.
        notes = getattr(error, "__notes__", None)
        said = f"{notes.pop()}\n" if notes else ""
        lines.crash.write(said + traceback.format_exc())
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _die_with_forkserver(lines: Lines) -> None:
    from fastrl.workers.preload import FORKSERVER_PID

    if os.getpid() == FORKSERVER_PID:
        # The module was imported here, not inherited: nothing ties this forkserver to main.
        lines.pipe.send(
            (
                "refused",
                "This program has started multiprocessing's forkserver before fastrl, which needs "
                "it to be its own; call train() first, or use another start method (spawn).",
            )
        )
        sys.exit(2)
    die_with_parent(FORKSERVER_PID)


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Show multiprocessing an empty ``__main__``, so that children do not run the user's script
    again."""
    module = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = module


@contextlib.contextmanager
def _current_folder_named() -> Iterator[None]:
    """Name the current folder where `sys.path` has it as "", as in an interpreter or a notebook:
    multiprocessing would hand on the folder that the program began in."""
    path = sys.path[:]
    sys.path[:] = [folder or os.getcwd() for folder in path]
    try:
        yield
    finally:
        sys.path[:] = path


class Launcher:
    """Starts the processes of a run; owned by main, used from its main thread alone.

    PDEATHSIG follows the thread that started a child, so a thread that ends would take its children
    along.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "fastrl starts its processes from the main thread; call train() there."
            )
        with _environment(**{SAFE_PATH_VARIABLE: "1"}):
            # Its start unblocks signals; later it would do so while a child is being started.
            resource_tracker.ensure_running()
        self._spawn = multiprocessing.get_context("spawn")
        self._forkserver = multiprocessing.get_context("forkserver")
        self._forkserver.set_forkserver_preload(["fastrl.workers.preload"])
        self._forkserver_runs = False

    def spawn(self, name: str, target: Callable[..., None], *args: Any) -> Any:
        """Start a process with a fresh interpreter (learner, inference); it may import torch."""
        process = self._spawn.Process(name=name, target=target, args=args, daemon=True)
        # The current folder may hold a file named like a module of the standard library.
        safe_path = _environment(**{SAFE_PATH_VARIABLE: "1"})
        with _hidden_main_module(), _current_folder_named(), _stop_signals_blocked(), safe_path:
            process.start()
        return process

    def fork(
        self,
        name: str,
        target: Callable[..., None],
        *args: Any,
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        """Start a process from the forkserver (rollout); cheap, and free of torch.

        The first call starts the forkserver, with these variables in its environment.
        """
        process = self._forkserver.Process(name=name, target=target, args=args, daemon=True)
        # Read by the forkserver at its first start. OpenBLAS would start a thread per core before
        # the fork; and the current folder may hold another `fastrl` than the one that runs.
        with (
            _hidden_main_module(),
            _current_folder_named(),
            # Only for the forkserver's own start: later its answer may be long in coming.
            contextlib.nullcontext() if self._forkserver_runs else _stop_signals_blocked(),
            _environment(
                **{
                    MAIN_PID_VARIABLE: str(os.getpid()),
                    SAFE_PATH_VARIABLE: "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    **(variables or {}),
                }
            ),
        ):
            process.start()
        self._forkserver_runs = True
        return process


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Start a child with the signals held back until it ignores them: until then they would kill
    it, or print a traceback of its imports."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
