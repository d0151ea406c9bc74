"""What an environment does wrong is told in one sentence, and nothing is left behind."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
from commands import TINY, Command

from fastrl import TrainConfig, register_env, train

FAULTY = '''
import gymnasium
import numpy as np

spaces = gymnasium.spaces


class Sound(gymnasium.Env):
    observation_space = spaces.Dict({"arm": spaces.Box(-1, 1, (3,)), "gear": spaces.Discrete(4)})
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def look(self):
        return {"arm": np.zeros(3, np.float32), "gear": 1}

    def step(self, action):
        self.steps += 1
        return self.look(), 1.0, False, self.steps % 50 == 0, {}


class Constructor(Sound):
    def __init__(self):
        raise OSError("no display")


class FirstReset(Sound):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no level")


class SecondReset(Sound):
    """Before the first step of training: in the random steps that episodes begin with."""

    def reset(self, *, seed=None, options=None):
        if self.steps:
            raise RuntimeError("no level left")
        return super().reset(seed=seed)


class Shape(Sound):
    def look(self):
        return super().look() | ({"arm": np.zeros(2, np.float32)} if self.steps > 300 else {})


class Type(Sound):
    def look(self):
        return super().look() | ({"gear": 1.5} if self.steps > 300 else {})


class Outside(Sound):
    def look(self):
        return super().look() | ({"gear": 4} if self.steps > 300 else {})


class NotANumber(Sound):
    def look(self):
        return super().look() | ({"arm": np.full(3, np.nan)} if self.steps == 301 else {})


class Reward(Sound):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, [1, 2] if self.steps > 300 else reward, *rest
'''
WORKER = r"failed: Rollout worker \d \(environments \d+ to \d+\): "
BY = r"environment \d+, first seeded \d+\.\)$"


def run(tmp_path, env, *more):
    (tmp_path / "faulty.py").write_text(FAULTY)
    command = Command("--env", f"py:faulty:{env}", *TINY, "--run-dir", "run", *more, cwd=tmp_path)
    code = command.finish()
    assert command.wait_until_alone(5) == {}
    return code, command.output.strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            "Constructor",
            r"fastrl-train: py:faulty:Constructor could not be constructed: OSError: no display "
            r"\(.*faulty.py, line \d+\)\.",
        ),
        (
            "FirstReset",
            r"fastrl-train: py:faulty:FirstReset raised RuntimeError: no level "
            r"\(.*faulty.py, line \d+\) in reset\(\) of environment 0, first seeded \d+\.",
        ),
    ],
)
def test_one_that_cannot_begin_is_refused_before_the_run_exists(tmp_path, env, sentence):
    code, lines = run(tmp_path, env)
    assert code == 2
    assert len(lines) == 1 and re.fullmatch(sentence, lines[0]), lines
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            "Shape",
            WORKER + r"py:faulty:Shape cannot be used: its observation\['arm'\] "
            r"is of shape \(2,\) and type float32, but its observation space says \(3,\) and "
            r"float32; correct the one or the other\. \(It was in step 301 of " + BY,
        ),
        (
            "NotANumber",
            WORKER + r"py:faulty:NotANumber cannot be used: observation\['arm'\] "
            r"of environment \d+ holds nan at \[0\] in row \d+, but all of it must be finite .*",
        ),
    ],
)
def test_one_that_breaks_its_word_ends_the_run(tmp_path, env, sentence):
    code, lines = run(tmp_path, env)
    assert code == 1
    assert re.fullmatch(sentence, lines[-2]), lines[-4:]
    assert lines[-1].startswith("the run has ended; ")
    assert not any("replaced" in line or "Traceback" in line for line in lines)


@pytest.mark.slow
def test_one_that_raises_before_the_first_step_is_not_tried_again(tmp_path):
    code, lines = run(tmp_path, "SecondReset")
    assert code == 1
    (at,) = [i for i, line in enumerate(lines) if line.startswith("failed: ")]
    assert re.fullmatch(
        WORKER + r"py:faulty:SecondReset raised RuntimeError: no level left "
        r"\(.*faulty.py, line \d+\) in reset\(\) of environment \d+, first seeded \d+\.",
        lines[at],
    )
    assert lines[at + 1].startswith("Traceback")
    assert not any("replaced" in line for line in lines)


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """The classes above, registered under their names."""
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    exec(FAULTY, space)
    for name, value in space.items():
        if isinstance(value, type) and issubclass(value, gymnasium.Env):
            register_env(name, value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Type", "its observation['gear'] is of shape () and type float64, but its observation"),
        ("Outside", "its observation['gear'] is 4, which is not in its space"),
        ("Reward", "its step() returned the reward [1, 2], but a reward is one number"),
        ("Shape", "its observation['arm'] is of shape (2,)"),
        ("NotANumber", "observation['arm'] of environment"),
    ],
)
def test_each_fault_has_its_sentence(faulty, env, words):
    with pytest.raises(RuntimeError) as caught:
        train(TrainConfig(env=f"py:{env}", workers=0, envs_per_worker=4, run_dir="run", seed=1))
    assert f"py:{env} cannot be used: {words}" in str(caught.value)
    assert np.all("\n" not in str(caught.value))
