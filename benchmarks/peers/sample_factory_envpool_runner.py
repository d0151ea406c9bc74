"""Sample Factory's APPO with envpool, stepped a batch at a time, as its own examples have it.

Each worker has two pools: while one waits for actions, the other steps.
"""

from __future__ import annotations

from typing import Any

import envpool
from runner_lines import FRAMES_PER_STEP, Progress, arguments, cores
from sample_factory.envs.env_utils import register_env
from sample_factory_runner import NAMES, train
from sf_examples.envpool.envpool_wrappers import (
    BatchedRecordEpisodeStatistics,
    EnvPoolResetFixWrapper,
)

WORKERS = {"pong": 2, "cartpole": 1}
POOLS_PER_WORKER = 2
ENVIRONMENTS = {"pong": 128, "cartpole": 4096}
"""In all."""


def make_pool(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Build one pool; `env_agents` and `pool_threads` are in the configuration."""
    common = {
        "env_type": "gymnasium",
        "num_envs": cfg.env_agents,
        "num_threads": cfg.pool_threads,
        "seed": 0 if env_config is None else env_config.env_id,
    }
    if name == NAMES["pong"]:
        pool = envpool.make("Pong-v5", reward_clip=True, episodic_life=True, **common)
        env: Any = BatchedRecordEpisodeStatistics(EnvPoolResetFixWrapper(pool), cfg.env_agents)
    else:
        env = EnvPoolResetFixWrapper(envpool.make(name, **common))
    env.num_agents = cfg.env_agents
    return env


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(NAMES), __doc__)
    num_envs = options.environments or ENVIRONMENTS[options.work]
    workers = WORKERS[options.work]
    frames = FRAMES_PER_STEP[options.work]
    packages = ("sample-factory", "torch", "envpool")
    progress = Progress(options.folder, options.seconds, frames, num_envs, packages)
    register_env(NAMES[options.work], make_pool)
    spread = {
        "batched_sampling": True,
        "num_workers": workers,
        "num_envs_per_worker": POOLS_PER_WORKER,
        "batch_size": num_envs * 32 // 4,
    }
    more = {
        "env_agents": num_envs // (workers * POOLS_PER_WORKER),
        "pool_threads": max(1, cores() // workers),
    }
    train(options.work, spread, progress, str(options.folder), more)


if __name__ == "__main__":
    main()
