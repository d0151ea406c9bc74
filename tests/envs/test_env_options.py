"""The options of an environment: which values make sense, and what an argument's text means."""

import datetime

import pytest

from fastrl.envs import EnvOptions
from fastrl.envs.options import check_options, check_ranges, keyword_arguments
from fastrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("size=3", "size", 3),
        ("gravity=-1.5", "gravity", -1.5),
        ("rate=1e-3", "rate", 1e-3),
        ("on=true", "on", True),
        ("sides=[1, 2]", "sides", [1, 2]),
        ("start={x=1}", "start", {"x": 1}),
        ('name="3"', "name", "3"),
        ("name=large", "name", "large"),
        ("name=True", "name", True),
        ("name=two words", "name", "two words"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("day=2020-01-02", "day", datetime.date(2020, 1, 2)),
        ("name=1\nother = 2", "name", "1\nother = 2"),
    ],
)
def test_an_argument_is_read_as_toml_or_else_as_text(text, key, value):
    arguments = keyword_arguments(EnvOptions(env_args=(text,)))
    assert arguments == {key: value} and type(arguments[key]) is type(value)
    check_ranges(EnvOptions(env_args=(text,)))


def test_the_defaults_and_the_ends_of_the_ranges_are_taken():
    check_ranges(EnvOptions())
    check_ranges(EnvOptions(frame_stack=64, action_repeat=1000, noop_max=1, sticky_actions=0.99))
    twice = "py:gymnasium.wrappers:FlattenObservation"
    check_ranges(EnvOptions(wrap=(twice, twice), log_info=("a", "a.b"), action_mask="off"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noop_max": 0}, "--noop-max is 0; it must be 1 to 1,000."),
        ({"frame_skip": 1001}, "--frame-skip is 1001; it must be 1 to 1,000."),
        ({"frame_stack": 0}, "--frame-stack is 0; it must be 1 to 64."),
        ({"frame_stack": 65}, "--frame-stack is 65; it must be 1 to 64."),
        ({"action_repeat": 0}, "--action-repeat is 0; it must be 1 to 1,000."),
        ({"max_episode_steps": 0}, "--max-episode-steps is 0; it must be 1 to 2,147,483,647."),
        ({"sticky_actions": 1.0}, "--sticky-actions is 1.0; it must be a probability"),
        ({"sticky_actions": -0.1}, "--sticky-actions is -0.1"),
        ({"sticky_actions": float("nan")}, "--sticky-actions is nan"),
        ({"env_args": ("size",)}, "--env-args has 'size'; it must be key=value, with a key that"),
        ({"env_args": ("=3",)}, "--env-args has '=3'; it must be key=value"),
        ({"env_args": ("the size=3",)}, "--env-args has 'the size=3'"),
        ({"env_args": ("a=3", "b=4", "a=5")}, "--env-args names 'a' more than once"),
        ({"log_info": ("x", "x")}, "--log-info names 'x' more than once"),
        ({"log_info": ("",)}, "--log-info names '' more than once, or not at all."),
        ({"wrap": ("gymnasium.wrappers:TimeLimit",)}, "it must be py:module:function."),
        ({"wrap": ("py:module",)}, "--wrap is 'py:module'; it must be py:module:function."),
        ({"wrap": ("py:module:a:b",)}, "--wrap is 'py:module:a:b'"),
        ({"action_mask": ""}, "--action-mask is empty; it must be a key, or off."),
    ],
)
def test_values_that_make_sense_nowhere_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        check_ranges(EnvOptions(**options))
    assert words in str(caught.value)


def test_what_an_environment_does_not_look_at_is_refused():
    everywhere = EnvOptions(
        frame_stack=3,
        action_bounds="squash",
        action_mask="off",
        log_info=("a",),
        env_args=("a=1",),
    )
    check_options("x:y", everywhere, ())
    check_options("x:y", EnvOptions(wrap=("py:a:b",), action_repeat=2), ("wrap", "action_repeat"))
    with pytest.raises(ConfigError) as caught:
        check_options("x:y", EnvOptions(wrap=("py:a:b",)), ("noop_max",))
    assert str(caught.value) == (
        "x:y does not use --wrap, which was set to ('py:a:b',): leave it unset (of the environment "
        "options this id takes --action-bounds, --action-mask, --env-args, --frame-stack, "
        "--log-info, --noop-max)."
    )
