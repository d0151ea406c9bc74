"""The options of an environment, once, with their defaults; the docstrings become `--help`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

from fastrl.errors import ConfigError
from fastrl.option_types import flag_of


@dataclass(frozen=True)
class EnvOptions:
    """How an environment is set up; Atari's defaults are those of the published PPO results."""

    noop_max: int = 30
    """Atari: an episode starts after a number of no-op frames drawn uniformly from 1 to this (the
    press of FIRE counts as one); also after a lost life with --episodic-life."""
    fire_reset: bool = True
    """Atari: press FIRE at the start of an episode and after a lost life, in games that have the
    button."""
    episodic_life: bool = True
    """Atari: a lost life ends the episode for the learner, not for the statistics. On in training,
    as in the field's PPO results; evaluation always turns it off."""
    sticky_actions: float = 0.0
    """Atari: probability that the game repeats the previous action in a frame (0.25 in the protocol
    of Machado et al., 2018)."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; unset: what the id's family says, 27,000 for
    Atari."""
    frame_skip: int = 4
    """Atari: frames that one action is repeated for; the observation is the maximum of the last
    two."""
    frame_stack: int = 4
    """Atari: number of last observations that make one, oldest first."""
    full_action_space: bool = False
    """Atari: all 18 actions rather than those that the game reacts to."""
    vector_entry_point: bool = False
    """gym: step a whole group through the environment's own vector entry point. It has one
    generator for all, so how environments are spread over groups changes their episodes, and it
    plays no --stagger."""


def evaluation_options(env_id: str, options: EnvOptions) -> EnvOptions:
    """`options` without what only serves training: a lost life ends no episode."""
    return replace(options, episodic_life=False) if env_id.startswith("atari:") else options


_MOST = {
    "noop_max": 1000,
    "frame_skip": 1000,
    "frame_stack": 64,
    "max_episode_steps": 2**31 - 1,
}


def check_ranges(options: EnvOptions) -> None:
    """Refuse values that make sense in no environment; ConfigError names the flag."""
    for name, most in _MOST.items():
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{flag_of(name)} is {value}; it must be 1 to {most:,}.")
    if not 0.0 <= options.sticky_actions < 1.0:
        raise ConfigError(
            f"--sticky-actions is {options.sticky_actions}; it must be a probability, at least 0 "
            "and less than 1."
        )


def check_options(env_id: str, options: EnvOptions, used: Collection[str]) -> None:
    """Refuse options that `env_id` does not look at.

    Args:
        env_id: for the sentence.
        options: as the user set them, within :func:`check_ranges`.
        used: names of the fields that this environment's adapter applies.

    Raises:
        ConfigError: naming the option and its value.
    """
    for field in fields(EnvOptions):
        value = getattr(options, field.name)
        if field.name not in used and value != field.default:
            takes = ", ".join(flag_of(name) for name in sorted(used)) or "none of them"
            raise ConfigError(
                f"{env_id} does not use {flag_of(field.name)}, which was set to {value}: leave it "
                f"unset (of the environment options this id takes {takes})."
            )
