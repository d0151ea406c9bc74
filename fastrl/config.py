"""Every option of a training run, once, with its documentation.

The options are grouped in sections (one dataclass each), which become the groups of ``--help`` and
the sections of a run's ``config.toml``. :class:`TrainConfig` has all of them as flat fields, so a
script writes ``TrainConfig(env="atari:Pong", workers=8)``::

    defaults here ─▶ preset (presets/*.toml) fills what is UNSET ─▶ the user's flags win
                             resolve(config, spec) ─▶ a config without UNSET, saved as config.toml
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fastrl.envs.options import EnvOptions, check_ranges
from fastrl.envs.spec import EnvSpec
from fastrl.errors import ConfigError
from fastrl.models.config import ModelConfig
from fastrl.option_types import as_declared, flag_of

UNSET: Any = None
"""The value of an option that the preset (or the size of the run) decides when the user does
not."""

DEFAULT_NUM_ENVS = 128
"""Environments in all, where ``envs_per_worker`` is not given: enough that a batch is worth its
overhead."""

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class RunOptions:
    """What is trained, for how long, and where the results go."""

    env: str
    """The environment: atari:NAME (such as atari:Pong) or envpool:ID (such as
    envpool:CartPole-v1)."""
    total_steps: int = 10_000_000
    """Environment steps to learn from before the run ends (frames = steps x frame skip)."""
    stop_at_return: float | None = None
    """End earlier, once the mean of the last 100 episodes' raw returns reaches this."""
    seed: int = UNSET
    """Seed of environments, initial weights, sampled actions and batch order; drawn and stored if
    unset."""
    preset: str = UNSET
    """Name of the preset; by default chosen by the kind of observation (see the printed plan)."""
    run_dir: Path = UNSET
    """The run's own folder, which must not exist; default runs/<env>/<date-time>-<seed>."""
    save_every: str = "300s"
    """Time between checkpoints: seconds (300s) or updates (100u)."""
    log_every: float = 5.0
    """Seconds between console lines and metric records."""


@dataclass(frozen=True)
class RolloutOptions:
    """How environments are spread over processes."""

    workers: int | Literal["auto"] = "auto"
    """Rollout processes; auto takes one per core that this process may use."""
    groups_per_worker: int = 2
    """Groups a worker alternates between: while one waits for actions, the other steps."""
    envs_per_worker: int = UNSET
    """Environments of one worker over all its groups; by default 128 environments are spread
    evenly."""
    rollout_length: int = UNSET
    """T, the steps of every environment in one rollout."""
    stagger: int = 100
    """Each environment first plays 0 to this many random steps, so that episodes do not end in
    step."""
    inference_wait: float | Literal["auto"] = "auto"
    """Milliseconds inference waits for a third of the groups; auto: 10 where processes outnumber
    cores."""
    reward_clip: Literal["sign", "off"] = UNSET
    """What the learner sees of a reward: its sign, or all of it; returns are always reported
    raw."""


@dataclass(frozen=True)
class LearnOptions:
    """The algorithm: V-trace with the clipped surrogate of PPO."""

    batch_size: int = UNSET
    """Steps in a batch, a multiple of T x (environments per group); default: one rollout of every
    group."""
    minibatches: int = UNSET
    """Optimiser steps per epoch over a batch."""
    epochs: int = UNSET
    """Passes over each batch."""
    learning_rate: float = UNSET
    """Adam's step size at the start."""
    lr_schedule: Literal["constant", "linear"] = UNSET
    """linear falls to 0 at total_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = UNSET
    """Gradients are scaled down to this global norm."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Lambda of the trace."""
    rho_bar: float = 1.0
    """V-trace's truncation of the importance ratio in the temporal difference."""
    c_bar: float = 1.0
    """V-trace's truncation of the importance ratio in the trace; at most rho_bar."""
    clip: float = UNSET
    """The surrogate's ratio is clipped to [1 - clip, 1 + clip]."""
    entropy_coef: float = UNSET
    """Weight of the entropy bonus."""
    value_coef: float = UNSET
    """Weight of the value loss."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 in each minibatch."""
    max_policy_lag: int = 8
    """Rows chosen by weights older than this many versions are not trained on."""


@dataclass(frozen=True)
class ComputeOptions:
    """Number formats and devices."""

    device: str = "cpu"
    """Where the networks run: cpu, cuda or cuda:N."""
    dtype: Literal["f32", "bf16"] = UNSET
    """Compute format of the encoder; default bf16 for images where the processor has bf16
    instructions."""


@dataclass(frozen=True)
class TrainConfig(
    ComputeOptions, ModelConfig, EnvOptions, LearnOptions, RolloutOptions, RunOptions
):
    """All options of a run as flat fields; see the sections for what each means."""

    def section(self, section: type) -> Any:
        """Return the options of one section, as an instance of its class."""
        names = [field.name for field in dataclasses.fields(section)]
        return section(**{name: getattr(self, name) for name in names})


SECTIONS: dict[str, type] = {
    "run": RunOptions,
    "rollout": RolloutOptions,
    "learn": LearnOptions,
    "environment": EnvOptions,
    "model": ModelConfig,
    "compute": ComputeOptions,
}


def field_names() -> list[str]:
    """Names of all options, in the order of ``--help``."""
    return [field.name for section in SECTIONS.values() for field in dataclasses.fields(section)]


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    folder = resources.files("fastrl") / "presets"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def load_preset(name: str) -> dict[str, Any]:
    """Read a shipped preset as flat option values; ConfigError names the presets there are."""
    if name not in preset_names():
        raise ConfigError(f"There is no preset {name!r}; there are: {', '.join(preset_names())}.")
    file = resources.files("fastrl") / "presets" / f"{name}.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {option: value for table in tables.values() for option, value in table.items()}


def save_interval(text: str) -> tuple[float, Literal["s", "u"]]:
    """Parse ``300s`` or ``100u`` into seconds (at least 1) or whole updates (at least 1), and the
    unit."""
    unit = text[-1:]
    try:
        number = float(text[:-1])
    except ValueError:
        number = math.nan
    whole_enough = unit == "s" or number.is_integer()
    if unit not in ("s", "u") or not 1 <= number < math.inf or not whole_enough:
        raise ConfigError(
            f"--save-every is {text!r}; it must be a number of seconds, at least 1 (300s), or a "
            "whole number of updates, at least 1 (100u)."
        )
    return number, "s" if unit == "s" else "u"


# (option, lower bound, whether the bound itself is allowed, upper bound)
_RANGES: list[tuple[str, float, bool, float]] = [
    ("total_steps", 1, True, 10**15),
    ("seed", 0, True, INT32_MAX),
    ("log_every", 0.1, True, 86_400),
    ("workers", 1, True, 4096),
    ("groups_per_worker", 1, True, 64),
    ("envs_per_worker", 1, True, 2**20),
    ("rollout_length", 1, True, 4096),
    ("stagger", 0, True, 10**6),
    ("inference_wait", 0, True, 1000),
    ("batch_size", 1, True, 2**31),
    ("minibatches", 1, True, 2**16),
    ("epochs", 1, True, 1000),
    ("learning_rate", 0, True, 10),
    ("adam_eps", 0, False, 1),
    ("max_grad_norm", 0, False, 1e9),
    ("gamma", 0, True, 1),
    ("gae_lambda", 0, True, 1),
    ("rho_bar", 0, False, 1e9),
    ("c_bar", 0, False, 1e9),
    ("clip", 0, False, 10),
    ("entropy_coef", 0, True, 1e6),
    ("value_coef", 0, True, 1e6),
    ("max_policy_lag", 0, True, 10**9),
]


def check(config: TrainConfig) -> TrainConfig:
    """Return `config` with every value of its option's declared type.

    Raises ConfigError, one sentence naming the option, for another type, a value out of range and
    a contradiction: all that can be refused without knowing the environment's spaces.
    """
    config = as_declared(config)
    for name, low, inclusive, high in _RANGES:
        value = getattr(config, name)
        if value is None or value == "auto":
            continue
        if math.isnan(value):
            raise ConfigError(f"{flag_of(name)} is {value}; it must be a number.")
        if value < low or (value == low and not inclusive) or value > high:
            bound = "at least" if inclusive else "more than"
            raise ConfigError(
                f"{flag_of(name)} is {value}; it must be {bound} {low:,} and at most {high:,}."
            )
    check_ranges(config)
    if config.stop_at_return is not None and not math.isfinite(config.stop_at_return):
        raise ConfigError(
            f"--stop-at-return is {config.stop_at_return}; it must be a finite number."
        )
    if config.c_bar > config.rho_bar:
        raise ConfigError(
            f"--c-bar {config.c_bar} is larger than --rho-bar {config.rho_bar}; V-trace needs "
            "rho-bar >= c-bar."
        )
    if not config.hidden or min(config.hidden) < 1:
        raise ConfigError(
            f"--hidden is {config.hidden}; it must name one or more positive layer sizes."
        )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        raise ConfigError(f"--device is {config.device!r}; it must be cpu, cuda or cuda:N.")
    if config.preset is not None:
        load_preset(config.preset)
    save_interval(config.save_every)
    _check_sizes(config)
    return config


def _check_sizes(config: TrainConfig) -> None:
    """Refuse sizes that do not divide each other, as far as they are known by now."""
    groups, batch_size, length = config.groups_per_worker, config.batch_size, config.rollout_length
    if config.envs_per_worker is None:
        return
    if config.envs_per_worker % groups:
        raise ConfigError(
            f"--envs-per-worker {config.envs_per_worker} is not a multiple of --groups-per-worker "
            f"{groups}; the groups of a worker have equal sizes."
        )
    if batch_size is None or length is None:
        return
    envs_per_group = config.envs_per_worker // groups
    if batch_size % (length * envs_per_group):
        raise ConfigError(
            f"--batch-size {batch_size} is not a multiple of {length * envs_per_group}, the steps "
            f"of one slot (--rollout-length {length} x {envs_per_group} environments per group)."
        )
    columns = batch_size // length
    if config.minibatches is not None and columns % config.minibatches:
        raise ConfigError(
            f"--minibatches {config.minibatches} does not divide the {columns} columns of a batch "
            f"(--batch-size {batch_size} / --rollout-length {length})."
        )


def draw_seed() -> int:
    """Draw a seed for a run that was given none."""
    return secrets.randbelow(INT32_MAX)


def resolve(config: TrainConfig, spec: EnvSpec, cores: int, bf16_cpu: bool) -> TrainConfig:
    """Fill every UNSET option that shapes the run, from the preset and from the environment's
    spaces.

    ``cores`` is the number this process may use; ``bf16_cpu`` whether the processor computes in
    bf16. Raises ConfigError where the sizes that result contradict each other.
    """
    image = any(leaf.kind == "image" for leaf in spec.observation.values())
    preset = config.preset or ("atari" if image else "vector")
    values = {
        name: value for name, value in load_preset(preset).items() if getattr(config, name) is None
    }
    values["preset"] = preset
    workers = cores if config.workers == "auto" else config.workers
    groups = config.groups_per_worker
    values["workers"] = workers
    if config.envs_per_worker is None:
        values["envs_per_worker"] = groups * math.ceil(DEFAULT_NUM_ENVS / (workers * groups))
    if config.dtype is None:
        use_bf16 = image and (bf16_cpu or config.device != "cpu")
        values["dtype"] = "bf16" if use_bf16 else "f32"
    resolved = dataclasses.replace(config, **values)
    if config.batch_size is None:
        every_env = workers * resolved.envs_per_worker
        resolved = dataclasses.replace(resolved, batch_size=every_env * resolved.rollout_length)
    _check_sizes(dataclasses.replace(resolved, minibatches=config.minibatches))
    if config.minibatches is None:
        # The preset thinks of its own number of environments; with fewer columns there are fewer
        # cuts.
        columns = resolved.batch_size // resolved.rollout_length
        cuts = range(1, min(resolved.minibatches, columns) + 1)
        resolved = dataclasses.replace(
            resolved, minibatches=max(n for n in cuts if columns % n == 0)
        )
    return resolved
