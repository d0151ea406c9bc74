"""RLlib's APPO on its current API, one machine, one learner in this process.

The workers that step environments are its processes; the learner is a thread of this one, as it
is with RLlib's own setting for a single machine.
"""

from __future__ import annotations

import os
from typing import Any

# Before ray is imported. The second one, meant for other systems, is what makes it keep to the
# loopback interface: it replaces 127.0.0.1 by the machine's address otherwise.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ale_py
import gymnasium
import numpy as np
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from runner_lines import FRAMES_PER_STEP, Progress, arguments, cores

ROLLOUT = 32
MINIBATCH = {"pong": 1024, "cartpole": 1024}
WORKERS = 2
ENVIRONMENTS = {"pong": 128, "cartpole": 128}
"""In all."""

MODELS = {
    "pong": DefaultModelConfig(
        conv_filters=[[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]],
        conv_activation="relu",
        head_fcnet_hiddens=[512],
        head_fcnet_activation="relu",
        vf_share_layers=True,
    ),
    "cartpole": DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True
    ),
}


def make_pong(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Build Pong with gymnasium's wrappers; observations f32 [84, 84, 4] in [0, 1]."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(
        "ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True
    )
    env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
    env = gymnasium.wrappers.FrameStackObservation(env, 4)
    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: obs.transpose(1, 2, 0) * np.float32(1 / 255), space
    )


def make_config(work: str, num_envs: int) -> APPOConfig:
    """Return RLlib's configuration of one work."""
    if work == "pong":
        ray.tune.register_env("pong", make_pong)
    config = APPOConfig()
    config.environment("pong" if work == "pong" else "CartPole-v1", clip_rewards=work == "pong")
    config.env_runners(
        num_env_runners=WORKERS,
        num_envs_per_env_runner=num_envs // WORKERS,
        rollout_fragment_length=ROLLOUT,
        num_cpus_per_env_runner=1,
    )
    config.learners(num_learners=0)
    config.training(
        train_batch_size_per_learner=MINIBATCH[work],
        lr=5e-4 if work == "pong" else 1e-3,
        gamma=0.99,
        clip_param=0.1 if work == "pong" else 0.2,
        entropy_coeff=0.01,
        vf_loss_coeff=0.5,
        grad_clip=0.5,
        use_circular_buffer=False,
        simple_queue_size=2,  # soon full: sampling goes no faster than learning
    )
    config.rl_module(model_config=MODELS[work])
    config.reporting(min_time_s_per_iteration=1, metrics_num_episodes_for_smoothing=5)
    config.debugging(seed=1, log_level="ERROR")
    return config


def counted(result: dict[str, Any]) -> int:
    """Return the environment steps so far, of what one iteration reports.

    Those sampled: a short queue that blocks lies between them and the learner, which takes each
    once, and counts an artificial row per piece of an episode beside them.
    """
    return int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(MODELS), __doc__)
    num_envs = options.environments or ENVIRONMENTS[options.work]
    packages = ("ray", "torch", "gymnasium", "ale-py")
    frames = FRAMES_PER_STEP[options.work]
    progress = Progress(options.folder, options.seconds, frames, num_envs, packages)
    # More processors than there are, of which RLlib counts one per process.
    ray.init(
        num_cpus=cores() + WORKERS,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(options.folder.resolve() / "ray"),
    )
    try:
        algorithm = make_config(options.work, num_envs).build_algo()
        while not progress.told(counted(algorithm.train())):
            pass
        algorithm.stop()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
