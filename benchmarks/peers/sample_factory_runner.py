"""Sample Factory's APPO with environments in Python, one object each, as its own examples have it.

Atari's are those of its package `sf_examples`; CartPole is gymnasium's. The game is registered
here by name, since gymnasium 0.29 and wheels of ale-py that carry the ROMs do not know each other.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
from runner_lines import FRAMES_PER_STEP, Progress, arguments
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_utils import make_atari_env

NAMES = {"pong": "atari_pong", "cartpole": "CartPole-v1"}

COMMON = {
    "algo": "APPO",
    "device": "cpu",
    "experiment": "run",
    "restart_behavior": "overwrite",
    "serial_mode": False,
    "async_rl": True,
    "num_policies": 1,
    "worker_num_splits": 2,
    "use_rnn": False,
    "recurrence": 1,
    "rollout": 32,
    "num_batches_per_epoch": 4,
    "num_epochs": 1,
    "normalize_input": True,
    "normalize_returns": True,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "max_grad_norm": 0.5,
    "adam_eps": 1e-5,
    "value_loss_coeff": 0.5,
    "exploration_loss_coeff": 0.01,
    "adaptive_stddev": False,
    "decorrelate_envs_on_one_worker": False,
    "summaries_use_frameskip": False,  # so that its count is one of actions
    "save_every_sec": 10**6,
    "save_best_every_sec": 10**6,
    "with_wandb": False,
    "log_to_file": False,
}

OF_WORK: dict[str, dict[str, Any]] = {
    "pong": {
        "encoder_conv_architecture": "convnet_atari",
        "encoder_conv_mlp_layers": (512,),
        "nonlinearity": "relu",
        "obs_scale": 255.0,
        "env_frameskip": 4,
        "env_framestack": 4,
        "batch_size": 1024,
        "learning_rate": 5e-4,
        "ppo_clip_ratio": 0.1,
    },
    "cartpole": {
        "encoder_mlp_layers": (64, 64),
        "nonlinearity": "tanh",
        "learning_rate": 1e-3,
        "ppo_clip_ratio": 0.2,
    },
}

SPREAD = {
    "pong": {"batched_sampling": False, "num_workers": 4, "num_envs_per_worker": 32},
    "cartpole": {
        "batched_sampling": False,
        "num_workers": 2,
        "num_envs_per_worker": 64,
        "batch_size": 1024,
    },
}
"""Environments over processes."""


class Tell(AlgoObserver):
    """Tells of each training step how many environment steps were learned from."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """End the run by its own limit once the time is over."""
        if self.progress.told(runner.env_steps.get(0, 0)):
            runner.cfg.train_for_env_steps = 0


def train(
    work: str,
    options: dict[str, Any],
    progress: Progress,
    folder: str,
    more: dict[str, Any] | None = None,
) -> None:
    """Run Sample Factory with its options by name, as they would be on its command line.

    `more` is for the function that makes environments, beside Sample Factory's own options.
    """
    merged = {**COMMON, **OF_WORK[work], **options, "env": NAMES[work], "train_dir": folder}
    words = []
    for name, value in merged.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name}", *map(str, values)] if len(values) > 1 else [f"--{name}={values[0]}"]
    parser, _ = parse_sf_args(words)
    cfg = parse_full_cfg(parser, words)
    vars(cfg).update(more or {})
    _, runner = make_runner(cfg)
    runner.register_observer(Tell(progress))
    code = runner.init() or runner.run()
    if code:
        sys.exit(f"Sample Factory ended with status {code}.")


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Build one environment, in whichever process asks for it."""
    if name == NAMES["cartpole"]:
        return gymnasium.make(name, render_mode=render_mode)
    if "PongNoFrameskip-v4" not in gymnasium.registry:
        gymnasium.register(
            "PongNoFrameskip-v4",
            "ale_py.env:AtariEnv",
            max_episode_steps=400_000,
            kwargs={
                "game": "pong",
                "obs_type": "rgb",
                "frameskip": 1,
                "repeat_action_probability": 0.0,
                "full_action_space": False,
            },
        )
    return make_atari_env(name, cfg, env_config, render_mode)


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(NAMES), __doc__)
    spread = dict(SPREAD[options.work])
    if options.environments is not None:
        spread["num_envs_per_worker"] = options.environments // spread["num_workers"]
    num_envs = spread["num_workers"] * spread["num_envs_per_worker"]
    packages = ("sample-factory", "torch", "gymnasium", "ale-py")
    frames = FRAMES_PER_STEP[options.work]
    progress = Progress(options.folder, options.seconds, frames, num_envs, packages)
    register_env(NAMES[options.work], make_env)
    train(options.work, spread, progress, str(options.folder))


if __name__ == "__main__":
    main()
