"""The options of an environment, once, with their defaults; the docstrings become `--help`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from fastrl.errors import ConfigError
from fastrl.option_types import flag_of, shown


@dataclass(frozen=True)
class EnvOptions:
    """How an environment is set up; Atari's defaults are those of the published PPO results."""

    noop_max: int = 30
    """Atari: an episode starts after a number of no-op frames drawn uniformly up to this (the
    press of FIRE counts as one); with atari: also after a lost life with --episodic-life."""
    fire_reset: bool = True
    """Atari: press FIRE at the start of an episode and after a lost life, in games that have the
    button."""
    episodic_life: bool = True
    """Atari: a lost life ends the episode for the learner, not for the statistics. On in training,
    as in the field's PPO results; evaluation always turns it off."""
    sticky_actions: float = 0.0
    """Atari: probability that the game repeats the previous action in a frame (0.25 in the protocol
    of Machado et al., 2018)."""
    frame_skip: int = 4
    """Atari: frames that one action is repeated for; the observation is the maximum of the last
    two."""
    full_action_space: bool = False
    """Atari: all 18 actions rather than those that the game reacts to."""
    max_episode_steps: int | None = None
    """The environment's own steps after which an episode is truncated; unset: what the id's family
    says, 27,000 for Atari."""
    action_repeat: int = 1
    """Steps of the environment that one action is taken for, unless the episode ends; rewards add
    up. Not for vectors that Gymnasium or ale: steps as a whole (ale: has --frame-skip)."""
    frame_stack: int | None = None
    """Number of last observations that make one, oldest first; unset: 4 for Atari, else 1. Images
    are joined along their channels."""
    action_bounds: Literal["clip", "squash"] = "clip"
    """How a sample becomes a bounded action: clipped to [-1, 1], or through tanh; then [-1, 1] is
    stretched to the bounds. Log-probabilities are those of the sample before."""
    action_mask: str = "action_mask"
    """Key, of a Dict observation or of info, that says which discrete actions are allowed; off:
    none."""
    log_info: tuple[str, ...] = ()
    """Keys of info whose value at the end of an episode becomes a metric, info/KEY (a.b for
    info["a"]["b"])."""
    env_args: tuple[str, ...] = ()
    """Arguments of the environment's constructor, as key=value; a value is read as TOML (3, true,
    [1, 2]), else as text."""
    wrap: tuple[str, ...] = ()
    """Wrappers, the innermost first: py:module:function takes an environment and returns it
    wrapped (py:gymnasium.wrappers:FlattenObservation)."""
    vector_entry_point: bool = False
    """gym: step a whole group through the environment's own vector entry point. It has one
    generator for all, so how environments are spread over groups changes their episodes, and it
    plays no --stagger."""


def evaluation_options(env_id: str, options: EnvOptions) -> EnvOptions:
    """`options` without what only serves training: a lost life ends no episode."""
    lives = env_id.startswith(("atari:", "ale:"))
    return replace(options, episodic_life=False) if lives else options


_MOST = {
    "noop_max": 1000,
    "frame_skip": 1000,
    "frame_stack": 64,
    "action_repeat": 1000,
    "max_episode_steps": 2**31 - 1,
}


def check_ranges(options: EnvOptions) -> None:
    """Refuse values that make sense in no environment; ConfigError names the flag."""
    for name, most in _MOST.items():
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{flag_of(name)} is {shown(value)}; it must be 1 to {most:,}.")
    if not 0.0 <= options.sticky_actions < 1.0:
        raise ConfigError(
            f"--sticky-actions is {options.sticky_actions}; it must be a probability, at least 0 "
            "and less than 1."
        )
    for text in options.env_args:
        _env_arg(text)
    for text in options.wrap:
        if not re.fullmatch(r"py:[^:]+:[^:]+", text):
            raise ConfigError(f"--wrap is {shown(text)}; it must be py:module:function.")
    for name in ("log_info", "env_args", "wrap"):
        given = getattr(options, name)
        keys = [text.partition("=")[0] for text in given] if name == "env_args" else given
        for key in keys:
            if not key or (keys.count(key) > 1 and name != "wrap"):
                raise ConfigError(
                    f"{flag_of(name)} names {shown(key)} more than once, or not at all."
                )
    if not options.action_mask:
        raise ConfigError("--action-mask is empty; it must be a key, or off.")


def keyword_arguments(
    options: EnvOptions, owned: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """`env_args` as keyword arguments.

    Args:
        options: as the user set them.
        owned: names that the engine gives itself, and what decides each.

    Raises:
        ConfigError: one is not key=value, or has such a name.
    """
    arguments = dict(_env_arg(text) for text in options.env_args)
    for name in arguments.keys() & owned.keys():
        raise ConfigError(f"--env-args cannot give {name}, which {owned[name]} decides.")
    return arguments


# Nobody who writes these means a text.
_PYTHON = {"True": True, "False": False, "None": None}


def _env_arg(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(
            f"--env-args has {shown(text)}; it must be key=value, with a key that is a Python name."
        )
    if value in _PYTHON:
        return key, _PYTHON[value]
    try:
        read = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than it reads
        return key, value
    return key, read["value"] if len(read) == 1 else value  # a second line is no other option


# What every family takes; most of it is applied outside of the adapters.
_EVERYWHERE = ("frame_stack", "action_bounds", "action_mask", "log_info", "env_args")


def check_options(env_id: str, options: EnvOptions, used: Collection[str]) -> None:
    """Refuse options that `env_id` does not look at.

    Args:
        env_id: for the sentence.
        options: as the user set them, within :func:`check_ranges`.
        used: names of the fields that this environment's adapter applies, beside those that all do.

    Raises:
        ConfigError: naming the option and its value.
    """
    used = {*used, *_EVERYWHERE}
    for field in fields(EnvOptions):
        value = getattr(options, field.name)
        if field.name not in used and value != field.default:
            takes = ", ".join(flag_of(name) for name in sorted(used)) or "none of them"
            raise ConfigError(
                f"{env_id} does not use {flag_of(field.name)}, which was set to {value}: leave it "
                f"unset (of the environment options this id takes {takes})."
            )
