"""Stable-Baselines3's PPO, with the environments that its own functions make.

All environments are stepped in this process: its vector of processes has one environment each,
which costs more than it gains for CartPole, and for 128 Atari environments more memory than a
small machine has.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
from runner_lines import FRAMES_PER_STEP, Progress, arguments
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack
from torch import Tensor, nn

ROLLOUT = 32
MINIBATCHES = 4
ENVIRONMENTS = {"pong": 128, "cartpole": 128}


class SharedTower(BaseFeaturesExtractor):
    """2 x 64 tanh for policy and value alike; its own network has two such towers."""

    def __init__(self, observation_space: gymnasium.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=64)
        size = observation_space.shape[0]
        self.layers = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Vectors f32 [N, D] → features f32 [N, 64]."""
        return self.layers(obs)


class Tell(BaseCallback):
    """Tells, whenever a rollout begins, of the steps that have been learned from by then."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress
        self.is_over = False

    def _on_rollout_start(self) -> None:
        self.is_over = self.progress.told(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.is_over


def make_trainer(work: str, num_envs: int) -> PPO:
    """Build trainer and environments."""
    common = {
        "n_steps": ROLLOUT,
        "batch_size": num_envs * ROLLOUT // MINIBATCHES,
        "n_epochs": 1,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "device": "cpu",
        "seed": 1,
    }
    if work == "pong":
        gymnasium.register_envs(ale_py)
        envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", num_envs, seed=1), 4)
        return PPO("CnnPolicy", envs, learning_rate=5e-4, clip_range=0.1, **common)
    policy = {"features_extractor_class": SharedTower, "net_arch": []}
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", num_envs, seed=1),
        learning_rate=1e-3,
        clip_range=0.2,
        policy_kwargs=policy,
        **common,
    )


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(ENVIRONMENTS), __doc__)
    num_envs = options.environments or ENVIRONMENTS[options.work]
    trainer = make_trainer(options.work, num_envs)
    packages = ("stable-baselines3", "torch", "gymnasium", "ale-py")
    frames = FRAMES_PER_STEP[options.work]
    progress = Progress(options.folder, options.seconds, frames, num_envs, packages)
    trainer.learn(10**12, callback=Tell(progress), log_interval=None)


if __name__ == "__main__":
    main()
