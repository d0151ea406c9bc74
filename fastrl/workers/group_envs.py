"""The environments of a group: made from the run's configuration, with seeds of their own."""

from __future__ import annotations

import random

import numpy as np

from fastrl.config import TrainConfig, save_interval
from fastrl.envs import VectorEnv, make
from fastrl.envs.options import EnvOptions
from fastrl.envs.seeding import part_seed
from fastrl.errors import ConfigError


def make_group(config: TrainConfig, group: int, first_row: int, generation: int) -> VectorEnv:
    """Construct the environments of a group; `first_row` is `Start.rows`.

    Neither a resumed run nor the replacement of a dead process plays the episodes from before once
    more: their environments have other seeds.
    """
    envs_per_group = config.envs_per_worker // config.groups_per_worker
    return make(
        config.env,
        config.section(EnvOptions),
        num_envs=envs_per_group,
        first_env_index=group * envs_per_group,
        seed=part_seed(config.seed, first_row, generation),
    )


def make_first_group(config: TrainConfig, first_row: int, generation: int) -> VectorEnv:
    """Construct group 0; ConfigError where its environments cannot be made at all."""
    try:
        return make_group(config, 0, first_row, generation)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{config.env} could not be constructed: {type(error).__name__}: {error}."
        ) from error


def anew_every(config: TrainConfig) -> int:
    """Updates after which all environments are made anew; 0: never."""
    return int(save_interval(config.save_every).number) if config.exact_resume else 0


def seed_globals(config: TrainConfig, worker: int, first_row: int, generation: int) -> None:
    """Seed numpy's and Python's own generators, for environments that draw from them: all processes
    have the forkserver's state."""
    seed = part_seed(config.seed, worker + 1, generation)
    if config.exact_resume:
        seed = part_seed(seed, first_row, 0)
    np.random.seed(seed)
    random.seed(seed)
