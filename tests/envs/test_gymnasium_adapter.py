"""`gym:` ids: which are found, with which options, and what is said of the others."""

import warnings

import gymnasium
import pytest
from group import Group

from fastrl.envs import EnvOptions, describe, make, registry
from fastrl.errors import ConfigError


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("gym:CartPole-v9", "There is no environment 'gym:CartPole-v9', did you mean gym:CartPole"),
        ("gym:cartpole-v1", "did you mean gym:CartPole-v1"),
        ("gym:CartPole", "did you mean gym:CartPole-v1"),
        (
            "gym:Pong",
            " (An id that importing a module registers is gym:module:ID.)",
        ),
        ("gym:LunarLander-v3", "gym:LunarLander-v3 needs a package that is not installed: "),
        (
            "gym:phys2d/CartPole-v1",
            "could not be constructed: ModuleNotFoundError: No module named",
        ),
        (
            "gym:no_such_module:Maze-v0",
            "There is no module no_such_module (of 'gym:no_such_module:",
        ),
        (
            "gym:toys:CartPol-v1",
            "gymnasium has no CartPol-v1, registered by itself or by toys; did",
        ),
        ("gym:toys:qqqqqqq", "by toys; nor any that is like it."),
        ("gym:a:b:c", "'a:b' in 'gym:a:b:c' is not a module's name"),
    ],
)
def test_what_cannot_be_used_is_told(env_id, words):
    for call in (describe, lambda *args: make(*args, 1, 0, 0)):
        with pytest.raises(ConfigError) as caught:
            call(env_id, EnvOptions())
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_id_that_gymnasium_lists_is_described_or_refused_in_a_sentence():
    described = 0
    for name in registry._load("gym").names("gym"):
        if not str(gymnasium.registry[name].entry_point).startswith("gymnasium."):
            continue  # another test's
        try:
            spec = describe(f"gym:{name}", EnvOptions())
        except ConfigError as error:
            assert f"gym:{name}" in str(error)
        else:
            described += 1
            assert spec.frame_skip == 1
    assert described >= 8


def test_a_module_of_the_current_folder_registers_its_environment(folder):
    known = dict(gymnasium.registry)
    (folder / "halls.py").write_text(
        "import gymnasium\n"
        "from toys import Toy\n"
        "gymnasium.register('mine/Hall-v0', Toy, reward_threshold=7, max_episode_steps=5)\n"
    )
    try:
        spec = describe("gym:halls:mine/Hall-v0", EnvOptions())
        assert (spec.env_id, spec.reward_threshold) == ("gym:halls:mine/Hall-v0", 7.0)
        assert Group("gym:halls:mine/Hall-v0").play(5).truncated[4].all()
        assert describe("gym:mine/Hall-v0", EnvOptions()).reward_threshold == 7.0
    finally:
        gymnasium.registry.clear()
        gymnasium.registry.update(known)


def test_options_are_used_or_refused_by_name():
    rows = Group("gym:Pendulum-v1", EnvOptions(max_episode_steps=4)).play(5)
    assert rows.truncated[3].all() and not rows.truncated[:3].any()
    with pytest.raises(ConfigError, match="gym:Pendulum-v1 does not use --frame-skip, which was"):
        describe("gym:Pendulum-v1", EnvOptions(frame_skip=2))
    with pytest.raises(ConfigError) as caught:
        describe("gym:Pendulum-v1", EnvOptions(noop_max=1))
    assert (
        "(of the environment options this id takes --action-bounds, --action-mask, "
        "--action-repeat, --env-args, --frame-stack, --log-info, --max-episode-steps, "
        "--vector-entry-point, --wrap)."
    ) in str(caught.value)
    with pytest.raises(ConfigError, match="does not use --vector-entry-point"):
        describe("atari:Pong", EnvOptions(vector_entry_point=True))


@pytest.mark.parametrize("env_id", ["gym:CartPole-v0", "gym:Pendulum-v1"])
def test_gymnasiums_remarks_are_muted(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(env_id, EnvOptions(), 2, 0, 0).close()


def test_the_threshold_is_that_of_the_id():
    assert describe("gym:CartPole-v1", EnvOptions()).reward_threshold == 475.0
    assert describe("gym:Pendulum-v1", EnvOptions()).reward_threshold is None
