"""The peers: what they are called, what they run in, and where their work differs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
WORKS = ("pong", "cartpole")


@dataclass(frozen=True)
class Peer:
    """Another trainer, executed by its own Python from `<key>_runner.py`."""

    key: str
    """Stem of its files here; `key.txt` has its requirements."""
    title: str
    differs: dict[str, str]
    """Per work, what it does otherwise than the work asks."""
    own_environment: bool = True
    """False: it runs in fastrl's."""

    @property
    def runner(self) -> Path:
        """The program that trains it."""
        return HERE / f"{self.key}_runner.py"

    @property
    def requirements(self) -> Path:
        """What its virtual environment has."""
        return HERE / f"{self.key}.txt"


PYTHON_ATARI = "Atari through gymnasium wrappers in Python"

PEERS = (
    Peer(
        "plain",
        "plain envpool + torch loop",
        {
            "pong": "synchronous; GAE in place of V-trace; pixels scaled, not normalised",
            "cartpole": "synchronous; GAE in place of V-trace; nothing normalised but advantages",
        },
        own_environment=False,
    ),
    Peer(
        "sample_factory",
        "Sample Factory, Python environments",
        {
            "pong": f"{PYTHON_ATARI}; GAE in place of V-trace",
            "cartpole": "gymnasium's CartPole in Python; GAE in place of V-trace; "
            "batches of 4,096 steps",
        },
    ),
    Peer(
        "sample_factory_envpool",
        "Sample Factory, envpool",
        {
            "pong": "envpool 0.8.4; GAE in place of V-trace",
            "cartpole": "envpool 0.8.4; GAE in place of V-trace",
        },
    ),
    Peer(
        "rllib",
        "RLlib APPO",
        {
            "pong": f"{PYTHON_ATARI}, f32 observations; a linear layer of 512 each for policy and "
            "value; batches of 1,024 steps, one optimiser step each; pixels scaled, not normalised",
            "cartpole": "gymnasium's CartPole in Python; batches of 1,024 steps, one optimiser "
            "step each; nothing normalised but advantages",
        },
    ),
    Peer(
        "stable_baselines3",
        "Stable-Baselines3 PPO",
        {
            "pong": f"synchronous; {PYTHON_ATARI}, in the trainer's process; GAE; pixels scaled, "
            "not normalised",
            "cartpole": "synchronous; gymnasium's CartPole in Python; GAE; nothing normalised but "
            "advantages",
        },
    ),
    Peer(
        "rl_games",
        "rl_games PPO",
        {
            "pong": "synchronous; GAE in place of V-trace; torch.compile (its default)",
            "cartpole": "synchronous; GAE in place of V-trace; torch.compile (its default)",
        },
    ),
)

FASTRL = "fastrl"
BF16 = "computes its encoder in bf16 where that is faster, all others in f32"
FASTRL_DIFFERS = {"pong": BF16, "cartpole": BF16}
FASTRL_FLAGS: dict[str, tuple[str, ...]] = {
    "pong": (
        *("--env", "atari:Pong", "--preset", "atari-throughput"),
        *("--workers", "8", "--envs-per-worker", "16"),
    ),
    "cartpole": (
        *("--env", "envpool:CartPole-v1", "--workers", "3", "--envs-per-worker", "2048"),
        *("--rollout-length", "32", "--epochs", "1", "--minibatches", "4"),
    ),
}
"""Of fastrl-train; those after `--` on the command line follow them, and the last one counts."""


def peer(key: str) -> Peer:
    """Return the peer of that key."""
    return next(one for one in PEERS if one.key == key)


def environment_of(token: str) -> dict[str, str]:
    """Environment variables of a runner: this process's, less what would bend the peer."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, TOKEN: token, "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled"}


TOKEN = "FASTRL_PEER_RUN"
"""Environment variable by which the processes of a run are known, whatever their group."""
