"""What an environment may do to its process: each has its expected sentence and outcome.

Every class does its worst once, in environment 0 of the first process that comes to it (a file says
that it has happened), unless it is always wrong.
"""

from __future__ import annotations

import re
import signal
import time

import pytest
from commands import TINY, Command

pytestmark = pytest.mark.slow

TROUBLE = '''
import ctypes
import os
import pathlib
import random
import signal
import sys
import threading
import time
import uuid

import gymnasium
import numpy as np

HERE = pathlib.Path(__file__).parent


def once(name):
    """True for the first caller of all processes."""
    try:
        os.close(os.open(HERE / f"{name}.done", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


class Sound(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 300:
            self.trouble()
        return np.zeros(3, np.float32), 1.0, False, self.steps % 50 == 0, {}

    def trouble(self):
        pass


class Worst(Sound):
    """Everything that ends a process, one after the other."""

    def reset(self, *, seed=None, options=None):
        if self.steps > 300 and once("reset"):
            raise RuntimeError("no level left")
        return super().reset(seed=seed)

    def trouble(self):
        if once("raises"):
            raise RuntimeError("the level is broken")
        if once("exits"):
            os._exit(3)
        if once("system_exits"):
            sys.exit()
        if once("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if once("segfaults"):
            ctypes.string_at(0)


class Nuisance(Sound):
    def trouble(self):
        if once("loud"):
            print("x" * 1_000_000)
        if once("threads"):
            for _ in range(3):
                threading.Thread(target=time.sleep, args=(3600,)).start()
        np.random.seed(0)
        random.seed(0)
        os.chdir("/")


class AlwaysRaises(Sound):
    def trouble(self):
        raise RuntimeError("the level is broken")


class Sleeps(Sound):
    def trouble(self):
        if once("sleeps"):
            time.sleep(60)


class Closes(Sound):
    def __init__(self):
        super().__init__()
        self.name = uuid.uuid4().hex  # an id() is another's once its object has gone

    def close(self):
        with open(HERE / "closed.txt", "a") as file:
            file.write(f"{os.getpid()} {self.name}\\n")


class RaisesInClose(Sound):
    def close(self):
        raise RuntimeError("cannot close")


class RefusesToClose(Sound):
    def close(self):
        if self.steps:
            time.sleep(3600)
'''


def start(tmp_path, env, *more):
    (tmp_path / "trouble.py").write_text(TROUBLE)
    return Command(
        "--env", f"py:trouble:{env}", *TINY, "--stagger", "0", "--run-dir", "run", *more,
        cwd=tmp_path,
    )  # fmt: skip


REPLACED = (
    r"Rollout worker \d \(environments \d+ to \d+\):? {}.* "
    r"It is replaced( in [\d.]+ s)? \(\d of at most 10 in 10 minutes\)\."
)


def test_one_that_ends_its_process_is_replaced_and_training_goes_on(tmp_path):
    train = start(tmp_path, "Worst")
    assert train.interrupt_after("(6 of at most 10 in 10 minutes)") == 130, train.output
    for how in (
        r"ended with exit code 3\.",
        r"ended with exit code 1\.",  # SystemExit
        r"was killed by SIGKILL \(.*out of memory.*\)\.",
        r"was killed by SIGSEGV\.",
        r"py:trouble:Worst raised RuntimeError: the level is broken .*in step 300 of",
        r"py:trouble:Worst raised RuntimeError: no level left .*in reset\(\) of",
    ):
        assert re.search(REPLACED.format(how), train.output), (how, train.output)
    assert train.output.count("Traceback") >= 2
    assert train.wait_until_alone(2.0) == {}


def test_without_replacements_the_first_one_ends_the_run(tmp_path):
    train = start(tmp_path, "AlwaysRaises", "--max-worker-restarts", "0")
    assert train.finish() == 1, train.output
    assert "replaced" not in train.output
    assert re.search(r"failed: Rollout worker \d .*the level is broken", train.output)
    assert train.output.strip().splitlines()[-1].startswith("the run has ended; ")


def test_too_many_in_the_window_end_the_run_with_the_first_cause(tmp_path):
    train = start(tmp_path, "AlwaysRaises", "--max-worker-restarts", "2")
    assert train.finish() == 1, train.output
    said = train.output[train.output.index("failed: ") :]
    assert said.startswith(
        "failed: More than 2 rollout workers died within 10 minutes (--max-worker-restarts). The "
        "first of them: Rollout worker "
    )
    assert said.count("the level is broken") >= 2


def test_one_that_hangs_is_named_with_its_age_and_training_goes_on(tmp_path):
    train = start(tmp_path, "Sleeps")
    train.wait_for("has been inside one step of environments")
    seconds = re.search(r"inside one step of environments \d+ to \d+ for (\d+) s", train.output)
    assert seconds is not None and 10 <= int(seconds[1]) <= 15, train.output
    assert "replaced" not in train.output
    train.wait_for("steps/s")  # the others step, and are learned from
    began = time.monotonic()
    train.process.send_signal(signal.SIGINT)
    assert train.finish() == 130, train.output
    assert time.monotonic() - began < 10
    assert "killed after" in train.output and train.wait_until_alone(2.0) == {}


def test_one_that_hangs_longer_than_the_timeout_is_replaced(tmp_path):
    train = start(tmp_path, "Sleeps", "--env-timeout", "2")
    assert train.interrupt_after("It is replaced") == 130, train.output
    how = r"was ended after \d s inside one step of its environments \(--env-timeout 2\)\."
    assert re.search(REPLACED.format(how), train.output), train.output


def test_one_that_is_a_nuisance_disturbs_nothing(tmp_path):
    """It prints a megabyte, leaves threads, seeds the global generators, leaves the folder."""
    train = start(tmp_path, "Nuisance", "--total-steps", "8000")
    assert train.finish() == 0, train.output[-3000:]
    assert "replaced" not in train.output and "killed" not in train.output
    assert train.wait_until_alone(2.0) == {}
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_every_environment_is_closed_once_on_ctrl_c(tmp_path):
    train = start(tmp_path, "Closes")
    train.wait_for("all 2 workers step")
    train.process.send_signal(signal.SIGINT)
    assert train.finish() == 130, train.output
    closed = (tmp_path / "closed.txt").read_text().splitlines()
    # 16 of the run; worker 0 looks at one first.
    assert len(closed) == len(set(closed)) and len(closed) in (16, 17), closed


def test_one_that_raises_in_close_is_named_and_saves_all_the_same(tmp_path):
    train = start(tmp_path, "RaisesInClose", "--total-steps", "2000")
    assert train.finish() == 0, train.output
    assert re.search(r"Rollout worker \d \(.*\) ended with exit code 1\.\nTraceback", train.output)
    assert "RuntimeError: cannot close" in train.output
    assert train.wait_until_alone(2.0) == {}
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_one_that_refuses_to_close_does_not_hold_the_end_up(tmp_path):
    train = start(tmp_path, "RefusesToClose")
    train.wait_for("all 2 workers step")
    began = time.monotonic()
    train.process.send_signal(signal.SIGINT)
    assert train.finish() == 130, train.output
    assert time.monotonic() - began < 10
    assert re.search(r"killed after \d s without an end: rollout worker", train.output)
    assert train.wait_until_alone(2.0) == {}
