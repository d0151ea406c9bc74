"""Ids and options: what is refused says what to do; what a process imports stays small."""

import subprocess
import sys

import pytest

from fastrl.envs import (
    EnvOptions,
    FunctionEnvs,
    describe,
    evaluation_options,
    make,
    register_family,
    registry,
)
from fastrl.errors import ConfigError


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pong", "has no family: write family:name, did you mean ale:pong or atari:Pong"),
        ("CartPole-v1", "did you mean envpool:CartPole-v1 or gym:CartPole-v1 or"),
        ("ALE/Pong-v5", "ale:pong or atari:Pong"),
        ("atari:pong", "There is no environment 'atari:pong', did you mean atari:Pong or ale:pong"),
        ("atari:Pong-v5", "did you mean atari:Pong or ale:pong"),
        ("atari:PongNoFrameskip-v4", "atari:Pong or ale:pong"),
        ("atari:Brekout", "did you mean atari:Breakout"),
        ("atari:CartPole-v1", "did you mean envpool:CartPole-v1"),
        ("envpool:Pong-v5", "did you mean ale:pong or atari:Pong"),
        ("envpool:cartpole-v1", "did you mean envpool:CartPole-v1"),
        ("envpool:CartPole-v9", "did you mean envpool:CartPole-v1"),
        ("envpool:a:b", "There is no environment 'envpool:a:b'"),
        (
            "foo:Pong",
            "There is no family foo: (of 'foo:Pong'), only ale:, atari:, envpool:, gym: and py:, "
            "did you mean ale:pong or atari:Pong",
        ),
        ("ale:Pong", "There is no environment 'ale:Pong', did you mean ale:pong or atari:Pong"),
        ("atari:", "There is no environment 'atari:'"),
        ("envpool:qqqqqqqqqqqq", "try one like atari:Pong"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest(env_id, words):
    for call in (describe, lambda *args: make(*args, 1, 0, 0)):
        with pytest.raises(ConfigError) as caught:
            call(env_id, EnvOptions())
        assert words in str(caught.value)


@pytest.mark.slow
def test_ids_that_envpool_lists_are_described_or_refused_in_a_sentence():
    # All of them are benchmarks/envpool_census.py's: envpool loads most to describe them.
    described = 0
    for family in ("atari", "envpool"):
        for name in registry._load(family).names(family)[::12]:
            try:
                spec = describe(f"{family}:{name}", EnvOptions())
            except ConfigError as error:
                assert f"{family}:{name}" in str(error)
            else:
                described += 1
                assert spec.frame_skip >= 1
    assert described > 100


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("envpool:CartPole-v1", {"noop_max": 1}, "does not use --noop-max, which was set to 1"),
        ("envpool:CartPole-v1", {"episodic_life": False}, "does not use --episodic-life"),
        ("envpool:HalfCheetah-v4", {"frame_skip": 2}, "does not use --frame-skip"),
        # Their C++ looks at no limit: the option would be silently without effect.
        ("envpool:CliffWalking-v0", {"max_episode_steps": 9}, "does not use --max-episode-steps"),
        ("envpool:Highway-v0", {"max_episode_steps": 9}, "does not use --max-episode-steps"),
    ],
)
def test_options_without_effect_are_refused_by_name(env_id, options, words):
    with pytest.raises(ConfigError) as caught:
        describe(env_id, EnvOptions(**options))
    assert words in str(caught.value)


@pytest.mark.parametrize(("num_envs", "first", "seed"), [(0, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_an_impossible_group_is_refused(num_envs, first, seed):
    with pytest.raises(ConfigError, match="cannot be made"):
        make("envpool:CartPole-v1", EnvOptions(), num_envs, first, seed)


def test_every_atari_option_reaches_envpool(monkeypatch):
    import envpool

    class Constructed(BaseException):  # passes what turns an Exception into a sentence
        pass

    seen = {}

    def spy(task, **keywords):
        seen.update(keywords, task=task)
        raise Constructed

    monkeypatch.setattr(envpool, "make_gymnasium", spy)
    options = EnvOptions(
        noop_max=3,
        fire_reset=False,
        episodic_life=False,
        sticky_actions=0.25,
        max_episode_steps=11,
        frame_skip=5,
        frame_stack=6,
        full_action_space=True,
    )
    with pytest.raises(Constructed):
        make("atari:SpaceInvaders", options, 2, 0, 0)
    seeds = seen.pop("env_seed")
    assert len(set(seeds)) == 2
    assert seen == {
        "task": "SpaceInvaders-v5",
        "num_envs": 2,
        "num_threads": 1,
        "noop_max": 3,
        "use_fire_reset": False,
        "episodic_life": False,
        "repeat_action_probability": 0.25,
        "max_episode_steps": 11,
        "frame_skip": 5,
        "stack_num": 6,
        "full_action_space": True,
    }


def test_evaluation_plays_whole_games():
    trained = EnvOptions(sticky_actions=0.25)
    judged = EnvOptions(sticky_actions=0.25, episodic_life=False)
    assert evaluation_options("atari:Breakout", trained) == judged
    assert evaluation_options("envpool:CartPole-v1", EnvOptions()) == EnvOptions()


def test_the_limit_of_the_id_stands_where_none_is_given():
    import envpool

    assert envpool.make_spec("Pong-v5").config.max_episode_steps == 27_000


def test_a_family_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    calls = []
    family = FunctionEnvs(
        describe=lambda env_id, options: calls.append(("describe", env_id)),
        make=lambda *args: calls.append(("make", *args)),
    )
    register_family("toy", family)
    options = EnvOptions()
    describe("toy:anything", options)
    make("toy:anything", options, 3, 6, 1)
    assert calls == [("describe", "toy:anything"), ("make", "toy:anything", options, 3, 6, 1)]
    with pytest.raises(ConfigError, match="lower-case word"):
        register_family("Toy:", family)


@pytest.mark.parametrize(
    "env_id",
    [
        "atari:Pong",
        "envpool:CartPole-v1",
        "gym:Pendulum-v1",
        "py:gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    ],
)
@pytest.mark.slow
def test_a_rollout_process_imports_no_torch_and_prints_nothing(env_id):
    program = f"""
import sys
import numpy as np
from fastrl.envs import EnvOptions, make
env = make({env_id!r}, EnvOptions(), 2, 0, 0)
spec = env.spec.observation["obs"]
env.reset({{"obs": np.zeros((2, *spec.shape), spec.dtype)}})
env.close()
assert "torch" not in sys.modules, "torch was imported"
assert "jax" not in sys.modules, "jax was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
