"""What `fastrl-bench train` measures under one name: flags to begin with, and sizes to try."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """One run that is measured."""

    flags: tuple[str, ...]
    group_sizes: tuple[int, ...]
    """Environments per group that c_env is tried with, besides the run's own."""
    batch_sizes: tuple[int, ...]
    """Rows that c_inf and c_train are tried with."""
    sweep: tuple[tuple[str, ...], ...]
    """Flags of the arrangements that `--sweep` compares."""


def _spread(workers: int, envs_per_worker: int, *more: str) -> tuple[str, ...]:
    return ("--workers", str(workers), "--envs-per-worker", str(envs_per_worker), *more)


PROFILES = {
    "pong": Profile(
        ("--env", "atari:Pong", *_spread(8, 32), "--preset", "atari-throughput"),
        group_sizes=(1, 8, 32),
        batch_sizes=(64, 256, 1024),
        sweep=tuple(
            _spread(workers, envs)
            for workers, envs in ((2, 64), (2, 128), (8, 32), (16, 16), (64, 2), (64, 4))
        ),
    ),
    "cartpole": Profile(
        (
            *("--env", "envpool:CartPole-v1", *_spread(3, 2048), "--rollout-length", "32"),
            *("--epochs", "1", "--minibatches", "4"),
        ),
        group_sizes=(256, 1024, 4096, 16384),
        batch_sizes=(512, 2048, 8192, 32768),
        sweep=tuple(
            _spread(workers, envs, "--minibatches", str(minibatches))
            for workers, envs, minibatches in itertools.product((1, 2, 3), (2048, 8192), (1, 4))
        ),
    ),
}
