"""A run outlives numbers that are none for a while, says whose they are, and ends before they do
harm."""

from __future__ import annotations

import json
import re

import pytest
from commands import Command

from fastrl import checkpoint
from fastrl.checkpoint import find_checkpoints

BROKEN = """
import gymnasium
import numpy as np

spaces = gymnasium.spaces



class Sound(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Discrete(2)
    broken = range(0)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        # The first seed that it is given says which environment it is: one of four breaks.
        if not self.steps:
            self.breaks = self.np_random.random() < 0.25
        return self.look(), {}

    def look(self):
        if self.breaks and self.steps in self.broken:
            return np.full(4, 3e38, np.float32)
        return self.np_random.standard_normal(4).astype(np.float32)

    def step(self, action):
        self.steps += 1
        return self.look(), float(action), False, self.steps % 50 == 0, {}


class ForAWhile(Sound):
    broken = range(300, 340)


class ForGood(Sound):
    broken = range(300, 10**9)
"""
SMALL = [
    "--envs-per-worker", "8", "--rollout-length", "8", "--minibatches", "2", "--log-every", "5u",
]  # fmt: skip
# Otherwise an observation is clipped, and tanh bounds what follows from it.
PLAIN = ["--normalize-obs", "false", "--activation", "relu"]
CAUSE = (
    r"the \w+ loss is not finite; the first bad tensor is the features of environments? "
    r"[\d, and]+( and \d+ others?)?, whose observation reaches 3e\+38"
)


def start(tmp_path, env, *more, workers="2"):
    (tmp_path / "overflowing.py").write_text(BROKEN)
    options = ["--env", f"py:overflowing:{env}", "--run-dir", "run", "--seed", "1", *PLAIN]
    return Command(*options, "--workers", workers, *SMALL, *more, cwd=tmp_path)


def finish(command):
    code = command.finish()
    assert command.wait_until_alone(5) == {}
    return code, command.output.strip().splitlines()


def assert_newest_is_finite(run_dir) -> dict:
    state = checkpoint.load(find_checkpoints(run_dir)[-1])
    moments = {name: state["optimizer"][name] for name in ("exp_avg", "exp_avg_sq", "steps")}
    for name, value in (state["model"] | moments).items():
        assert value.isfinite().all(), name
    return state


@pytest.mark.slow
def test_training_goes_on_after_observations_that_break_it(tmp_path):
    command = start(tmp_path, "ForAWhile", "--total-steps", "12000", "--max-skipped", "100000")
    code, lines = finish(command)
    assert code == 0, lines
    notice = (
        rf"update \d+: \d of 8 optimiser steps (was|were) skipped: {CAUSE} \(\d+ skipped so far\)"
    )
    assert any(re.fullmatch(notice, line) for line in lines), lines
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    skipped = [json.loads(line).get("losses/skipped") for line in records]
    shares = [value for value in skipped if value is not None]
    # In the beginning and in the end none, in between some.
    assert shares[0] == shares[-1] == 0 < max(shares) <= 8
    state = assert_newest_is_finite(tmp_path / "run")
    steps = int(state["optimizer"]["steps"])
    assert 0.3 * 8 * state["updates"] < steps < 8 * state["updates"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "0"])
def test_what_does_not_stop_ends_the_run_and_the_checkpoint_before_is_kept(tmp_path, workers):
    often = ("--max-skipped", "5", "--save-every", "5u")
    command = start(tmp_path, "ForGood", *often, workers=workers)
    code, lines = finish(command)
    assert code == 1, lines
    begin = r"failed: The learner process: " if workers == "2" else r"fastrl\.errors\.NotFinite: "
    (sentence,) = (line for line in lines if re.match(begin, line))
    assert re.fullmatch(
        begin + r"\d+ optimiser steps in a row were skipped up to update \d+, more than "
        rf"--max-skipped 5 allows: {CAUSE}; lower --learning-rate, look at the environment's "
        r"rewards and observations, or raise --max-skipped \(the last checkpoint is kept\)\.",
        sentence,
    ), sentence
    # After it, at most what there is of the run.
    assert sentence in lines[-2:]
    assert ("Traceback (most recent call last):" in lines) == (workers == "0")
    state = assert_newest_is_finite(tmp_path / "run")
    # A multiple of what is saved every so often: nothing was saved in the end.
    assert state["updates"] > 0 and state["updates"] % 5 == 0
