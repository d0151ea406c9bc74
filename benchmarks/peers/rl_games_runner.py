"""rl_games' PPO with its own envpool adapter.

Its count has the rows in which an environment resets, and the action has no effect. There is one
after each end of an episode, so as many as ends that its observer is told of are taken off.
"""

from __future__ import annotations

from typing import Any

from rl_games.common.algo_observer import AlgoObserver
from rl_games.torch_runner import Runner
from runner_lines import FRAMES_PER_STEP, Progress, arguments, cores
from torch import Tensor

ROLLOUT = 32
MINIBATCHES = 4
ENVIRONMENTS = {"pong": 128, "cartpole": 4096}

NETWORKS: dict[str, dict[str, Any]] = {
    "pong": {
        "cnn": {
            "type": "conv2d",
            "permute_input": False,
            "activation": "relu",
            "initializer": {"name": "default"},
            "convs": [
                {"filters": filters, "kernel_size": kernel, "strides": stride, "padding": 0}
                for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1))
            ],
        },
        "mlp": {"units": [512], "activation": "relu", "initializer": {"name": "default"}},
    },
    "cartpole": {
        "mlp": {"units": [64, 64], "activation": "tanh", "initializer": {"name": "default"}},
    },
}

TASKS: dict[str, dict[str, Any]] = {
    "pong": {"env_name": "Pong-v5", "has_lives": True, "reward_clip": True, "episodic_life": True},
    "cartpole": {"env_name": "CartPole-v1"},
}


class Tell(AlgoObserver):
    """Tells of each epoch of the trainer (one rollout, learned from once)."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress
        self.num_resets = 0

    def after_init(self, algo: Any) -> None:
        """Keep the trainer, whose limit of epochs ends it."""
        self.algo = algo

    def process_infos(self, infos: Any, done_indices: Tensor) -> None:
        """Count ends of episodes."""
        self.num_resets += len(done_indices)

    def after_clear_stats(self) -> None:
        """There is nothing to clear."""

    def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
        """Tell, and let the trainer end with this epoch once the time is over."""
        if self.progress.told(frame - self.num_resets):
            self.algo.max_epochs = epoch_num


def parameters(work: str, num_envs: int, folder: str) -> dict[str, Any]:
    """Return its configuration, as its YAML files have it."""
    space: dict[str, Any] = {"discrete": None}
    network = {"name": "actor_critic", "separate": False, "space": space, **NETWORKS[work]}
    config = {
        "name": work,
        "env_name": "envpool",
        "env_config": {
            **TASKS[work],
            "env_type": "gymnasium",
            "num_threads": cores(),
        },
        "train_dir": folder,
        "device": "cpu",
        "reward_shaper": {},
        "normalize_input": True,
        "normalize_value": True,
        "normalize_advantage": True,
        "value_bootstrap": False,
        "mixed_precision": False,
        "gamma": 0.99,
        "tau": 0.95,
        "learning_rate": 5e-4 if work == "pong" else 1e-3,
        "lr_schedule": None,
        "grad_norm": 0.5,
        "truncate_grads": True,
        "entropy_coef": 0.01,
        "critic_coef": 0.5,
        "e_clip": 0.1 if work == "pong" else 0.2,
        "clip_value": False,
        "num_actors": num_envs,
        "horizon_length": ROLLOUT,
        "minibatch_size": num_envs * ROLLOUT // MINIBATCHES,
        "mini_epochs": 1,
        "max_epochs": 10**9,
        "score_to_win": 10**9,
        "save_best_after": 10**9,
        "save_frequency": 0,
        "print_stats": False,
    }
    return {
        "seed": 1,
        "algo": {"name": "a2c_discrete"},
        "model": {"name": "discrete_a2c"},
        "network": network,
        "config": config,
    }


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(TASKS), __doc__)
    num_envs = options.environments or ENVIRONMENTS[options.work]
    frames = FRAMES_PER_STEP[options.work]
    packages = ("rl-games", "torch", "envpool")
    progress = Progress(options.folder, options.seconds, frames, num_envs, packages)
    runner = Runner(Tell(progress))
    runner.load({"params": parameters(options.work, num_envs, str(options.folder))})
    runner.run({"train": True})


if __name__ == "__main__":
    main()
