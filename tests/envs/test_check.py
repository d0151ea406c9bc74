"""`fastrl-check`: one environment for each thing that it is to find, and some that have nothing."""

import gymnasium
import numpy as np
import pytest

from fastrl import cli
from fastrl.envs import EnvOptions, register_env
from fastrl.envs.check import check, describe_spec
from fastrl.errors import ConfigError

spaces = gymnasium.spaces
ROWS = 60


class Sound(gymnasium.Env):
    """Nothing is wrong: a random walk that ends after 20 steps."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-50, 50, (1,), np.float32), "time": spaces.Discrete(21)}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1), 0
        return self.look(), {}

    def look(self):
        return {"place": np.array([self.place], np.float32), "time": self.time}

    def step(self, action):
        self.time += 1
        self.place += self.draw() * (1 if action else -1)
        return self.look(), float(self.place), False, self.time == 20, {}

    def draw(self):
        return self.np_random.uniform()


class DrawsFromTheGlobalGenerator(Sound):
    def draw(self):
        return np.random.uniform()


class SharesSomething(Sound):
    steps = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            SharesSomething.steps = 0
        return super().reset(seed=seed)

    def draw(self):
        SharesSomething.steps += 1
        return SharesSomething.steps % 7 / 7


class BecomesNaN(Sound):
    def look(self):
        return super().look() | {"place": np.array([np.nan if self.time == 9 else 0], np.float32)}


class PaysNaN(Sound):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self.time == 9 else reward, *rest


class ChangesItsShape(Sound):
    def look(self):
        return super().look() | {"place": np.zeros(1 if self.time < 9 else 2, np.float32)}


class Raises(Sound):
    def draw(self):
        if self.time == 9:
            raise ValueError("the joint broke")
        return 0.5


class LeavesItsSpace(Sound):
    observation_space = spaces.Dict(
        {"place": spaces.Box(-50, 50, (1,), np.float32), "time": spaces.Discrete(9)}
    )


class LeavesItsBounds(Sound):
    def look(self):
        return super().look() | {"place": np.array([9 * (self.time > 3) - 5], np.float32)}

    observation_space = spaces.Dict(
        {"place": spaces.Box(-5, 3, (1,), np.float32), "time": spaces.Discrete(21)}
    )


class WrapsAround(Sound):
    observation_space = spaces.Dict(
        {"place": spaces.Box(-50, 50, (1,), np.int8), "time": spaces.Discrete(21)}
    )

    def look(self):
        return super().look() | {"place": np.array([300 * (self.time > 3)])}


class ReturnsNothing(Sound):
    def step(self, action):
        self.time += 1
        return None if self.time == 9 else super().step(action)


class FlagIsADict(Sound):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest[:-1], {"TimeLimit.truncated": False}, info


class ReturnsAList(Sound):
    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, None


class NeverEnds(Sound):
    def step(self, action):
        self.time = -1
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


def checked(env, **options):
    register_env("checked", env)
    return check("py:checked", EnvOptions(**options), ROWS)


def test_nothing_is_found_where_nothing_is_wrong():
    report = checked(Sound)
    assert report.findings == []
    # 60 rows are 20 steps, a reset row, 20 steps, a reset row and 18 steps.
    assert (report.steps, report.episodes) == (3 * 58, 6)
    assert 0 < report.seconds_per_step < 0.01
    assert describe_spec(report.spec) == [
        ("observation['place']", "vector, float32 [1]"),
        ("observation['time']", "discrete, int32 [], 21 values"),
        ("action", "discrete, [], 2 values"),
    ]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (DrawsFromTheGlobalGenerator, "Equal seeds and actions do not give equal rows: the reward"),
        (SharesSomething, "An environment plays otherwise alone than beside others: the reward"),
        (BecomesNaN, "observation['place'] of environment 0 is not finite in row 9."),
        (PaysNaN, "The reward of environment 0 is not finite in row 8."),
        (ChangesItsShape, "its observation['place'] is of shape (2,)"),
        (Raises, "py:checked raised ValueError: the joint broke ("),
        (LeavesItsSpace, "its observation['time'] is 9, which is not in its space"),
        (WrapsAround, "its observation['place'] holds 300 to 300, more than int8"),
        (ReturnsNothing, "its step() does not return Gymnasium's five values (observation, reward"),
        (FlagIsADict, "its step() returned truncated = {'TimeLimit.truncated': False}, but it is"),
        (ReturnsAList, "Gymnasium's checker says: "),
    ],
)
def test_a_fault_is_told_in_a_sentence(env, words):
    faults = checked(env).faults
    assert any(words in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


def test_a_value_outside_of_its_bounds_is_noted():
    report = checked(LeavesItsBounds)
    assert report.faults == []
    text = (
        "observation['place'] of environment 0 holds 4 at [0] in row 4, but its space says -5 to 3."
    )
    assert [found for _, found in report.findings if "its space says" in found] == [text]


def test_what_was_not_seen_is_noted():
    report = checked(NeverEnds)
    assert report.faults == []
    (note,) = [text for kind, text in report.findings if "No episode ended" in text]
    assert "--max-episode-steps" in note
    findings = checked(NeverEnds, max_episode_steps=15).findings
    assert [text for _, text in findings] == ["observation['time'] is the same in every row."]


def test_options_are_those_of_training():
    spec = checked(Sound, frame_stack=3, action_repeat=2).spec
    assert spec.observation["place"].shape == (3, 1)
    assert spec.frame_skip == 2


@pytest.mark.parametrize("env_id", ["envpool:CartPole-v1", "gym:Taxi-v4", "gym:Blackjack-v1"])
def test_real_environments_have_no_fault(env_id):
    assert check(env_id, EnvOptions(), 200).faults == []


def test_one_that_cannot_be_used_is_refused():
    class Text(Sound):
        observation_space = spaces.Text(5)

    with pytest.raises(ConfigError, match="observation space is Text"):
        checked(Text)


def test_the_command_prints_sentences_and_says_how_it_went(capsys):
    register_env("sound", Sound)
    register_env("raises", Raises)
    assert cli.check_main(["py:sound", "--rows", "30"]) == 0
    out = capsys.readouterr().out
    assert "episodes ended; a step takes" in out and out.endswith("no fault found\n")
    assert cli.check_main(["py:raises", "--rows", "30"]) == 1
    assert "1 fault found" in capsys.readouterr().out
    assert cli.check_main(["py:nothing"]) == 2
    assert "There is no environment 'py:nothing'" in capsys.readouterr().err
    assert cli.check_main(["py:sound", "--rows", "0"]) == 2
    assert cli.check_main(["py:sound", "--action-repeat", "0"]) == 2
    assert "--action-repeat is 0; it must be 1 to 1,000." in capsys.readouterr().err
