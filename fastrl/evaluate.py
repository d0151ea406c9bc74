"""Playing a checkpoint: the true returns of whole episodes, in one process.

The environment is the run's own (its ``config.toml``) without what only serves training: no clipped
rewards, no ends at lost lives, no stagger.
"""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from fastrl.checkpoint import load_chosen
from fastrl.config import INT32_MAX, TrainConfig
from fastrl.config_file import has_config, load_config
from fastrl.envs import EnvSpec, StepOut, VectorEnv, describe, evaluation_options, make
from fastrl.envs.finite import all_finite, refuse_observation, refuse_reward
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError
from fastrl.models.acting import ActingPolicy
from fastrl.models.noise import uniform
from fastrl.option_types import shown

MAX_ENVS = 128
EPISODE_LIMIT = 100_000
"""Steps after which an episode is taken for one that never ends; Atari's are at most 27,000."""


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths of the episodes played, in the order of (environment, episode)."""

    path: Path
    steps: int
    seed: int
    greedy: bool
    """Whether the most probable actions were taken, not sampled ones."""
    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    def margin(self, level: float = 0.95) -> float:
        """Half the width of the confidence interval of the mean return; NaN of one episode.

        By the normal distribution, of which the mean of some 30 returns is not far. Two intervals
        that overlap need not be of one policy.
        """
        if len(self.returns) < 2:
            return math.nan
        deviations = NormalDist().inv_cdf(0.5 + level / 2)
        return deviations * float(self.returns.std(ddof=1)) / math.sqrt(len(self.returns))

    def describe(self) -> str:
        """Say the result in two lines."""
        r = self.returns
        between = f" ± {self.margin():.3f} (95 %)" if len(r) > 1 else ""
        return (
            f"{self.path} ({self.steps:,} steps), seed {self.seed}: {len(r)} episodes, "
            f"{'the most probable' if self.greedy else 'sampled'} actions\n"
            f"return mean {r.mean():.3f}{between}  std {r.std():.3f}  min {r.min():.3f}  "
            f"max {r.max():.3f}  (mean length {self.lengths.mean():.1f})"
        )

    def as_json(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        return {
            "checkpoint": str(self.path),
            "steps": self.steps,
            "seed": self.seed,
            "greedy": self.greedy,
            "episodes": len(self.returns),
            "mean": self.mean,
            "margin_95": self.margin() if len(self.returns) > 1 else None,
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
        }


def load_policy(
    run: Path | str, checkpoint: Path | str = "newest"
) -> tuple[ActingPolicy, EnvSpec, TrainConfig, Path, int]:
    """Load a checkpoint of a run folder: the newest one that can be read, the best, or a path.

    `checkpoint` is newest, best (the highest mean return of 100 episodes while it was trained, or
    with --eval-every the one that was evaluated best), or the path of a file. Returns the acting
    policy, the environment's spaces, the run's configuration, the checkpoint's path and its step
    count. Each newer checkpoint that is damaged is named in a line on stderr. Raises ConfigError
    where the folder holds no run, no checkpoint that can be read, or not the one that is named.
    """
    # Absolute, before a module of the user's can change the current folder.
    run = Path(run).absolute()
    chosen = checkpoint if checkpoint in ("newest", "best") else Path(checkpoint).absolute()
    if not has_config(run, "the folder"):
        raise ConfigError(f"{run} is not a run's folder: it has no config.toml.")
    if isinstance(chosen, Path) and not os.path.isfile(chosen):  # which asks without an OSError
        raise ConfigError(
            f"--checkpoint: {chosen} is not a readable checkpoint: there is no such file; it must "
            "be newest, best, or the path of one."
        )
    config = load_config(run / "config.toml")
    spec = describe(config.env, config.section(EnvOptions))
    # One process on the CPU, wherever the run was trained.
    policy = ActingPolicy(spec, dataclasses.replace(config, device="cpu"))
    loaded = load_chosen(
        run, chosen, config.env, lambda state: policy.load_state_dict(state["model"])
    )
    for warning in loaded.warnings:
        print(warning, file=sys.stderr)
    return policy, spec, config, loaded.path, int(loaded.state["steps"])


def evaluate(
    run: Path | str,
    episodes: int,
    seed: int | None = None,
    greedy: bool = False,
    checkpoint: Path | str = "newest",
    progress: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Play `episodes` whole episodes with a checkpoint of `run` (see `load_policy`).

    Each of min(episodes, 128) environments plays as many, or one more, its first ones, so that
    short episodes are not preferred. Actions are sampled, or with `greedy` the most probable ones.
    torch computes in one thread meanwhile; `progress` is called after each step. Raises ConfigError
    as `load_policy`, and where an episode does not end.
    """
    if not 1 <= episodes <= INT32_MAX:
        bound = "at least 1" if episodes < 1 else f"at most {INT32_MAX:,}"
        raise ConfigError(f"--episodes is {shown(episodes)}; it must be {bound}.")
    seed = secrets.randbelow(INT32_MAX) if seed is None else seed
    if not 0 <= seed <= INT32_MAX:
        raise ConfigError(
            f"--seed is {shown(seed)}; it must be at least 0 and at most {INT32_MAX:,}."
        )
    num_envs = min(episodes, MAX_ENVS)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        policy, _, config, path, steps = load_policy(run, checkpoint)
        options = evaluation_options(config.env, config.section(EnvOptions))
        env = make(config.env, options, num_envs=num_envs, first_env_index=0, seed=seed)
        if (set_progress := getattr(env, "set_progress", None)) is not None:
            set_progress(steps, config.total_steps)
        try:
            records = _play(policy, env, quota, seed, greedy, progress)
        finally:
            env.close()
    finally:
        torch.set_num_threads(threads)
    return Evaluation(
        path,
        steps,
        seed,
        greedy,
        returns=np.array([episode[0] for env_records in records for episode in env_records]),
        lengths=np.array([episode[1] for env_records in records for episode in env_records]),
    )


def _play(
    policy: ActingPolicy,
    env: VectorEnv,
    quota: np.ndarray,
    seed: int,
    greedy: bool,
    progress: Callable[[], object] = lambda: None,
) -> list[list[tuple[float, int]]]:
    """Play until environment i has ended quota[i] episodes; (return, length) of each, in order."""
    spec = env.spec
    count = len(quota)
    obs = {
        key: np.zeros((count, *leaf.shape), leaf.dtype) for key, leaf in spec.observation.items()
    }
    flags = np.zeros((3, count), np.bool_)
    masks = {key: np.ones((count, size), np.bool_) for key, size in spec.masks.items()}
    out = StepOut(obs, np.zeros(count, np.float32), flags[0], flags[1], flags[2], masks)
    index = np.arange(count, dtype=np.int64)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    records: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    ignored = np.zeros(count, np.bool_)
    env.reset(obs, action_mask=masks)
    step = 0
    while any(len(done) < wanted for done, wanted in zip(records, quota.tolist(), strict=True)):
        noise = None
        if not greedy:
            keys = np.full(count, step, np.int64)
            noise = {
                key: torch.from_numpy(uniform(seed, index, keys, leaf, dims))
                for leaf, (key, dims) in enumerate(policy.noise_dims.items())
            }
        actions, _, _ = policy.act(
            {k: torch.from_numpy(v) for k, v in obs.items()},
            noise,
            {k: torch.from_numpy(v) for k, v in masks.items()},
        )
        env.step({key: action.numpy() for key, action in actions.items()}, out)
        if not all_finite(out.reward):
            refuse_reward(spec, out.reward, index, step)
        for key, rows in obs.items():
            # What is after `terminated` is never acted on.
            if rows.dtype == np.float32 and not all_finite(rows[~out.terminated]):
                refuse_observation(spec, key, rows[None], index, step + 1)
        returns += out.reward
        lengths += ~ignored
        for i in np.flatnonzero(out.episode_over).tolist():
            if len(records[i]) < quota[i]:
                records[i].append((float(returns[i]), int(lengths[i])))
            returns[i], lengths[i] = 0.0, 0
        # An environment that has played its episodes may go on as it likes.
        if any(len(records[i]) < quota[i] for i in np.flatnonzero(lengths >= EPISODE_LIMIT)):
            raise ConfigError(
                f"An episode of {spec.env_id} has not ended after {EPISODE_LIMIT:,} steps; the "
                "policy may go round in circles where the environment sets no limit (least so "
                "without --greedy)."
            )
        ignored = out.terminated | out.truncated
        step += 1
        progress()
    return records
