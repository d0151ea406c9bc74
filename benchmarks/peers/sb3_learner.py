"""Stable-Baselines3's PPO with the values that its own zoo has for a task: its curve.

``python benchmarks/peers/learn.py stable_baselines3 cartpole --out sb3-cartpole.json`` makes the
environment for it and runs it; by itself it is executed by that environment's Python. The values
are those of RL Zoo's hyperparams/ppo.yml (github.com/DLR-RM/rl-baselines3-zoo).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

WINDOW = 100


@dataclass(frozen=True)
class Zoo:
    """What the zoo has for a task."""

    env: str
    num_envs: int
    steps: int
    """That its schedules are for."""
    options: dict[str, Any]
    normalize: bool = False
    linear: tuple[str, ...] = ()
    """Options that fall to 0 over the steps."""
    policy: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "cartpole": Zoo(
        "CartPole-v1", 8, 100_000,
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
         "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2},
        linear=("learning_rate", "clip_range"),
    ),
    "acrobot": Zoo(
        "Acrobot-v1", 16, 1_000_000,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        normalize=True,
    ),
    "lunarlander": Zoo(
        "LunarLander-v3", 16, 1_000_000,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
         "ent_coef": 0.01},
    ),
    "pendulum": Zoo(
        "Pendulum-v1", 4, 100_000,
        {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
         "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4},
    ),
    "halfcheetah": Zoo(
        "HalfCheetah-v4", 1, 1_000_000,
        {"n_steps": 512, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05,
         "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92,
         "max_grad_norm": 0.8, "vf_coef": 0.58096},
        normalize=True,
        policy={"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU,
                "net_arch": {"pi": [256, 256], "vf": [256, 256]}},
    ),
}  # fmt: skip


def falling(start: float) -> Callable[[float], float]:
    """A schedule of SB3: of the share of steps that is left."""
    return lambda left: left * start


class Follow(BaseCallback):
    """Notes the mean of the last 100 episodes once a second, and ends the training at the goal."""

    def __init__(self, goal: float, began: float, seconds: float) -> None:
        super().__init__()
        self.rows: list[tuple[int, float, float]] = []
        self._goal, self._began, self._seconds = goal, began, seconds
        self._next = 0.0

    def _on_step(self) -> bool:
        now = time.time() - self._began
        infos = self.model.ep_info_buffer
        full = infos is not None and len(infos) == WINDOW
        reached = False
        if full and (now >= self._next or any(self.locals["dones"])):
            mean = float(np.mean([info["r"] for info in infos]))
            reached = mean >= self._goal
            if now >= self._next or reached:
                self.rows.append((self.num_timesteps, now, mean))
                self._next = now + 1.0
        return not reached and now < self._seconds


def main() -> None:
    """Train one task once; the curve as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--began", type=float, required=True, help="time.time() of the command")
    options = parser.parse_args()
    zoo = TASKS[options.task]
    envs = make_vec_env(zoo.env, zoo.num_envs, seed=options.seed)
    if zoo.normalize:
        envs = VecNormalize(envs, gamma=zoo.options["gamma"])
    more = {name: falling(zoo.options[name]) for name in zoo.linear}
    model = PPO(
        "MlpPolicy",
        envs,
        device="cpu",
        seed=options.seed,
        policy_kwargs=zoo.policy or None,
        **{**zoo.options, **more},
    )
    follow = Follow(options.goal, options.began, options.seconds)
    model.learn(zoo.steps, callback=follow, log_interval=None)
    columns = list(zip(*follow.rows, strict=True)) or [(), (), ()]
    names = ("steps", "seconds", "returns")
    print(json.dumps(dict(zip(names, columns, strict=True))))


if __name__ == "__main__":
    main()
