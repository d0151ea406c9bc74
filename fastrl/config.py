"""Every option of a training run, once, with its documentation.

The options are grouped in sections (one dataclass each), which become the groups of ``--help`` and
the sections of a run's ``config.toml``. :class:`TrainConfig` has all of them as flat fields, so a
script writes ``TrainConfig(env="atari:Pong", workers=8)``::

    defaults here ─▶ preset (presets/*.toml) fills what is UNSET ─▶ the user's flags win
                    resolve.resolve(config, spec) ─▶ a config without UNSET, saved as config.toml
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastrl.envs.options import EnvOptions, check_ranges
from fastrl.errors import ConfigError
from fastrl.models.config import MAX_WIDTH, ModelConfig, check_cnn
from fastrl.models.registry import model_builder
from fastrl.option_types import as_declared, flag_of, shown
from fastrl.preset import load_preset

UNSET: Any = None
"""The value of an option that the preset (or the size of the run) decides when the user does
not."""

INT32_MAX = 2**31 - 1
DEFAULT_EVAL_EPISODES = 32
DEFAULT_ANNEAL_STEPS = 1_000_000


@dataclass(frozen=True)
class RunOptions:
    """What is trained, for how long, and where the results go."""

    env: str = UNSET
    """The environment: atari:NAME (such as atari:Pong), envpool:ID, gym:ID (such as
    gym:CartPole-v1), py:module:function for your own. A resumed run knows its own."""
    total_steps: int = 10_000_000
    """Environment steps to learn from before the run ends (frames = steps x frame skip)."""
    stop_at_return: float | None = None
    """End earlier, once the mean of the last 100 episodes' raw returns reaches this."""
    seed: int = UNSET
    """Seed of environments, initial weights, sampled actions and batch order; drawn and stored if
    unset."""
    mode: Literal["async", "sync"] = UNSET
    """async: collect while learning. sync: collect, then learn; equal seeds give equal bits.
    Default async, and sync with --workers 0 and for ppo."""
    preset: str = UNSET
    """Name of the preset; by default chosen by the environment (see the printed plan)."""
    run_dir: Path = UNSET
    """The run's own folder; default runs/<env>/<date-time>-<seed>."""
    resume: Literal["never", "auto", "must"] = "never"
    """What to do with a --run-dir that exists. never: refuse it. must: go on from its newest
    checkpoint, with its own options. auto: as must, but begin where there is none yet."""
    init_from: Path | None = UNSET
    """Folder of a run whose weights and normalisers the new run begins with."""
    save_every: str = "300s"
    """Time between checkpoints: seconds (300s) or updates (100u; taken at multiples of it)."""
    keep: int = 3
    """Newest checkpoints that are kept; older ones are removed, but for the best and milestones."""
    keep_best: bool = True
    """Keep the checkpoint whose mean return of the last 100 episodes was the highest (with
    --eval-every the one that was evaluated best), as checkpoints/best.pt."""
    milestone_every: int | None = None
    """Steps between checkpoints that are kept for ever (the first one taken at or after each
    multiple), as checkpoints/milestone_STEPS.pt; unset: none."""
    eval_every: int | None = None
    """Steps between evaluations, each in environments of its own, in a process of its own: their
    returns are the curve eval/episodic_return, and best.pt is the best of these policies. Unset:
    none."""
    eval_episodes: int | None = None
    """Episodes of each of these evaluations; default 32."""
    exact_resume: bool = False
    """In sync: a run that was killed and resumed gives the bits of one that was not. Every
    environment is made anew at each scheduled checkpoint (--save-every in updates), so episodes
    under way end there uncounted. Environments that draw from numpy's or Python's global generators
    are excepted, and so is a run in which a worker died."""
    max_restarts: int = 0
    """Times that the engine goes on from its newest checkpoint by itself after the death of the
    learner, of inference or of what starts the workers."""
    log_every: float | str = UNSET
    """Time between console lines and metric records: seconds (5 or 5s) or updates (10u). Default
    5s, and in sync 10u."""


@dataclass(frozen=True)
class RolloutOptions:
    """How environments are spread over processes."""

    workers: int | Literal["auto"] = "auto"
    """Rollout processes; auto takes one per core that this process may use, or as many as can share
    about the preset's environments evenly. 0: everything in one process, for a debugger, with the
    bits of --mode sync."""
    groups_per_worker: int = UNSET
    """Groups a worker alternates between: while one waits for actions, the other steps. Default 2,
    and in async 1 where there are more than two workers per core: other workers step meanwhile, and
    larger groups cost less."""
    envs_per_worker: int = UNSET
    """Environments of one worker over all its groups; by default the preset's number of
    environments is spread evenly."""
    rollout_length: int = UNSET
    """T, the steps of every environment in one rollout."""
    stagger: int = 100
    """Each environment first plays a number of random steps below this, so that episodes do not end
    in step."""
    max_worker_restarts: int = 10
    """Rollout workers that may die within ten minutes and be replaced; one more ends the run. 0:
    the first one does."""
    env_timeout: float | None = None
    """Seconds after which a worker inside one step of a group of environments counts as dead, and
    is replaced; unset: never. From 10 seconds on the console names it in any case."""
    inference_wait: float | Literal["auto"] = "auto"
    """Milliseconds inference waits for a third of the groups; auto: 10 where processes outnumber
    cores."""
    reward_scale: float = 1.0
    """Factor that the learner sees rewards multiplied by; returns are always reported raw."""
    reward_clip: Literal["sign", "off"] | float = UNSET
    """What the learner sees of a (scaled) reward: its sign, all of it, or, for a number, what of it
    lies within plus and minus that number."""


@dataclass(frozen=True)
class LearnOptions:
    """The algorithm and its coefficients."""

    algorithm: Literal["appo", "impala", "ppo"] = "appo"
    """appo: V-trace with the clipped surrogate of PPO. impala: V-trace's policy gradient, without
    --clip and --normalize-advantage. ppo: GAE once per batch; it implies --mode sync."""
    batch_size: int = UNSET
    """Steps in a batch, a multiple of T x (environments per group); default: one rollout of every
    group."""
    batches_ahead: int = UNSET
    """In async, batches that may be collected while the learner trains on one: 2 keeps both sides
    busy, 1 keeps rows young."""
    minibatches: int = UNSET
    """Optimiser steps per epoch over a batch."""
    epochs: int = UNSET
    """Passes over each batch."""
    targets: Literal["batch", "minibatch"] = UNSET
    """When V-trace's targets are computed. minibatch: in each step, by the network as it is; a
    minibatch is whole rollouts. batch: once, by the network at the batch's start, around which the
    surrogate clips; a minibatch is random rows. impala has the first; ppo has targets per batch, of
    the collecting network."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop is TensorFlow's, as IMPALA was published with: epsilon inside the root."""
    learning_rate: float = UNSET
    """The optimizer's step size at the start."""
    lr_schedule: Literal["constant", "linear", "kl"] = UNSET
    """linear: falls to 0 at total_steps. kl: after each batch it rises or falls so that the policy
    moves by about --target-kl."""
    target_kl: float = UNSET
    """Of --lr-schedule kl: how far a batch should move the policy, in nats."""
    target_kl_final: float | None = None
    """What --target-kl falls to, linearly over --anneal-steps. Unset: the preset's, but where
    --target-kl is given it stays."""
    anneal_steps: int | None = None
    """Steps over which --target-kl-final, --entropy-final and --barrier-final are reached. Unset:
    the preset's, else 1,000,000."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    rmsprop_eps: float = 0.1
    """RMSProp's epsilon, inside the root."""
    rmsprop_decay: float = 0.99
    """RMSProp's decay of the mean of squares."""
    momentum: float = 0.0
    """RMSProp's momentum."""
    max_grad_norm: float = UNSET
    """Gradients are scaled down to this global norm."""
    gamma: float = UNSET
    """Discount per step."""
    gae_lambda: float = UNSET
    """Lambda of the trace."""
    rho_bar: float = 1.0
    """V-trace's truncation of the importance ratio in the temporal difference and, with --targets
    batch, of the weight of an old row's advantage."""
    c_bar: float = 1.0
    """V-trace's truncation of the importance ratio in the trace; at most rho_bar."""
    clip: float = UNSET
    """The surrogate's ratio is clipped to [1 - clip, 1 + clip]."""
    entropy_coef: float = UNSET
    """Weight of the entropy bonus."""
    entropy_final: float | None = None
    """Weight that the entropy bonus falls to, linearly over --anneal-steps. Unset: the preset's,
    but where --entropy-coef is given it stays."""
    barrier_coef: float = UNSET
    """Weight of the log barrier, KL(uniform‖policy): keeps every discrete action possible."""
    barrier_final: float | None = None
    """Weight that the log barrier falls to, linearly over --anneal-steps. Unset: the preset's, but
    where --barrier-coef is given it stays."""
    value_coef: float = UNSET
    """Weight of the value loss."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 in each minibatch."""
    max_skipped: int = 10
    """Optimiser steps in a row that may be skipped because loss or gradient is not finite; one more
    ends the run."""
    max_policy_lag: int = UNSET
    """Rows chosen by weights older than this many versions are not trained on; default: the
    versions of 8 batches."""
    publish: Literal["batch", "step"] = UNSET
    """When the learner publishes weights: after each batch, or after each optimiser step."""


@dataclass(frozen=True)
class ComputeOptions:
    """Number formats and devices."""

    device: str = "cpu"
    """Where the networks run: cpu, cuda or cuda:N."""
    dtype: Literal["f32", "bf16"] = UNSET
    """Compute format of the encoder; default f32, but in async, on a processor with bf16
    instructions, the cheaper one of both, tried out at the first start and remembered."""


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


class Interval(NamedTuple):
    """Time between two events of one kind."""

    number: float
    unit: Literal["s", "u"]
    """Seconds or updates of the learner."""


def save_interval(text: str) -> Interval:
    """Parse ``save_every``: ``300s`` (at least 1) or ``100u``; ConfigError names the flag."""
    return _interval("save_every", text, least=1)


def log_interval(value: float | str) -> Interval:
    """Parse ``log_every``: ``5``, ``5s`` (at least 0.1) or ``10u``; ConfigError names the flag."""
    return _interval("log_every", value if isinstance(value, str) else f"{value}s", least=0.1)


def _interval(name: str, text: str, least: float) -> Interval:
    unit: Literal["s", "u"] = "u" if text.endswith("u") else "s"
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        number = math.nan
    fits = number.is_integer() and number >= 1 if unit == "u" else least <= number < math.inf
    # A bare number could be meant as updates.
    if not fits or (name == "save_every" and not text.endswith(unit)):
        raise ConfigError(
            f"{flag_of(name)} is {shown(text)}; it must be a number of seconds, at least {least:g} "
            "(300s), or a whole number of updates, at least 1 (100u)."
        )
    return Interval(number, unit)


TARGETS: dict[str, Literal["batch", "minibatch"]] = {"impala": "minibatch", "ppo": "batch"}
"""`targets` of the algorithms that leave no choice."""

# (option, lower bound, whether the bound itself is allowed, upper bound)
_RANGES: list[tuple[str, float, bool, float]] = [
    ("total_steps", 1, True, 10**15),
    ("seed", 0, True, INT32_MAX),
    ("workers", 0, True, 4096),
    ("groups_per_worker", 1, True, 64),
    ("envs_per_worker", 1, True, 2**20),
    ("rollout_length", 1, True, 4096),
    ("stagger", 0, True, 10**6),
    ("keep", 1, True, 10**6),
    ("milestone_every", 1, True, 10**15),
    ("eval_every", 1, True, 10**15),
    ("eval_episodes", 1, True, 10**6),
    ("max_restarts", 0, True, 10**6),
    ("max_worker_restarts", 0, True, 10**6),
    ("env_timeout", 0, False, 10**6),
    ("max_skipped", 0, True, 10**6),
    ("inference_wait", 0, True, 1000),
    ("reward_scale", 0, False, 1e9),
    ("reward_clip", 0, False, 1e9),
    ("batch_size", 1, True, 2**31),
    ("batches_ahead", 1, True, 100),
    ("minibatches", 1, True, 2**16),
    ("epochs", 1, True, 1000),
    ("learning_rate", 0, True, 10),
    ("target_kl", 0, False, 1e3),
    ("target_kl_final", 0, False, 1e3),
    ("anneal_steps", 1, True, 10**15),
    ("adam_eps", 0, False, 1),
    ("rmsprop_eps", 0, False, 1e3),
    ("rmsprop_decay", 0, True, 1),
    ("momentum", 0, True, 1),
    ("max_grad_norm", 0, False, 1e9),
    ("gamma", 0, True, 1),
    ("gae_lambda", 0, True, 1),
    ("rho_bar", 0, False, 1e9),
    ("c_bar", 0, False, 1e9),
    ("clip", 0, False, 10),
    ("entropy_coef", 0, True, 1e6),
    ("entropy_final", 0, True, 1e6),
    ("barrier_coef", 0, True, 1e6),
    ("barrier_final", 0, True, 1e6),
    ("value_coef", 0, True, 1e6),
    ("max_policy_lag", 0, True, 10**9),
    ("initial_std", 1e-3, True, 1e3),
]


def check(config: TrainConfig) -> TrainConfig:
    """Return `config` with every value of its option's declared type.

    Raises ConfigError, one sentence naming the option, for another type, a value out of range and
    a contradiction: all that can be refused without knowing the environment's spaces.
    """
    config = as_declared(config)
    if config.env is None:
        raise ConfigError(
            "--env is not given; name an environment, such as --env atari:Pong (with --resume, "
            "the --run-dir of a run that has one)."
        )
    for name, low, inclusive, high in _RANGES:
        value = getattr(config, name)
        if value is None or isinstance(value, str):
            continue
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{flag_of(name)} is {value}; it must be a number.")
        if value < low or (value == low and not inclusive) or value > high:
            bound = "at least" if inclusive else "more than"
            raise ConfigError(
                f"{flag_of(name)} is {shown(value)}; it must be {bound} {low:,} and at most "
                f"{high:,}."
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
    if config.hidden is not None and (
        not config.hidden or min(config.hidden) < 1 or max(config.hidden) > MAX_WIDTH
    ):
        raise ConfigError(
            f"--hidden is {shown(config.hidden)}; it must name one or more positive layer sizes, "
            f"each at most {MAX_WIDTH:,}."
        )
    try:
        model_builder(config.model)
    except ConfigError as error:
        raise ConfigError(f"--model: {error}") from None
    check_cnn(config)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        raise ConfigError(f"--device is {shown(config.device)}; it must be cpu, cuda or cuda:N.")
    if config.eval_episodes is not None and config.eval_every is None:
        raise ConfigError(
            "--eval-episodes means nothing without --eval-every; give both or neither."
        )
    if config.preset is not None:
        load_preset(config.preset)  # refuses one that there is not
    save_interval(config.save_every)
    if config.log_every is not None:
        log_interval(config.log_every)
    _check_mode(config)
    check_sizes(config)
    return config


def _check_mode(config: TrainConfig) -> None:
    """Refuse what `sync` cannot keep its promise with."""
    if config.workers == 0 and config.mode == "async":
        raise ConfigError(
            "--workers 0 runs everything in one process, so --mode cannot be async; leave one of "
            "the two out."
        )
    only = TARGETS.get(config.algorithm)
    if only is not None and config.targets not in (None, only):
        raise ConfigError(
            f"--targets is {config.targets}, but --algorithm {config.algorithm} computes them once "
            f"per {only}; leave it out."
        )
    if config.algorithm == "ppo" and config.mode == "async":
        raise ConfigError(
            "--algorithm ppo has no correction for policy lag, so --mode cannot be async; leave "
            "one of the two out (appo is its asynchronous form)."
        )
    if config.exact_resume:
        _check_exact(config)
    if not is_sync(config):
        return
    if config.inference_wait != "auto":
        raise ConfigError(
            f"--inference-wait is {config.inference_wait}, but in sync mode inference waits for "
            "everyone; leave it out."
        )
    if config.log_every is not None and log_interval(config.log_every).unit == "s":
        raise ConfigError(
            f"--log-every is {config.log_every} in sync mode, where records are written every "
            "fixed number of updates, so that equal seeds write equal ones; give updates (10u)."
        )


def _check_exact(config: TrainConfig) -> None:
    """Refuse what `--exact-resume` cannot keep its promise with."""
    if not is_sync(config):
        raise ConfigError(
            "--exact-resume needs --mode sync: in async what is learned depends on time."
        )
    save = save_interval(config.save_every)
    if save.unit == "s":
        raise ConfigError(
            f"--exact-resume needs checkpoints at fixed updates, and --save-every is "
            f"{config.save_every}; give updates (100u)."
        )
    log = Interval(10, "u") if config.log_every is None else log_interval(config.log_every)
    if log.unit == "u" and save.number % log.number:
        raise ConfigError(
            f"--exact-resume needs records that end with a checkpoint: --save-every "
            f"{save.number:g}u is not a multiple of --log-every {log.number:g}u."
        )


def is_sync(config: TrainConfig) -> bool:
    """Whether the run collects, then learns; known before the configuration is resolved."""
    return config.mode == "sync" or config.workers == 0 or config.algorithm == "ppo"


def check_sizes(config: TrainConfig) -> None:
    """Refuse sizes that do not divide each other, as far as they are known by now."""
    groups, batch_size, length = config.groups_per_worker, config.batch_size, config.rollout_length
    if config.envs_per_worker is None:
        return
    if groups is not None and config.envs_per_worker % groups:
        raise ConfigError(
            f"--envs-per-worker {config.envs_per_worker} is not a multiple of --groups-per-worker "
            f"{groups}; the groups of a worker have equal sizes."
        )
    if batch_size is None or length is None:
        return
    if groups is not None and batch_size % (length * config.envs_per_worker // groups):
        envs_per_group = config.envs_per_worker // groups
        raise ConfigError(
            f"--batch-size {batch_size} is not a multiple of {length * envs_per_group}, the steps "
            f"of one slot (--rollout-length {length} x {envs_per_group} environments per group, "
            f"with --groups-per-worker {groups})."
        )
    every_env = max(1, config.workers) * config.envs_per_worker if config.workers != "auto" else 0
    if is_sync(config) and every_env and batch_size != every_env * length:
        raise ConfigError(
            f"--batch-size is {batch_size}, but in sync mode a batch is one rollout of every "
            f"environment: {every_env} x --rollout-length {length} = {every_env * length}; leave "
            "it out."
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
