"""A plan and an arena for tests that play the other side: the test is inference and learner."""

from __future__ import annotations

import dataclasses

import numpy as np

from fastrl.config import TrainConfig, resolve
from fastrl.monitor.accounts import ROW_SHIFT
from fastrl.shm import Arena
from fastrl.workers.plan import Plan
from fastrl.workers.shared import Shared


def make_plan(arena: Arena, spec, num_params: int = 16, **options) -> Plan:
    defaults = {
        "workers": 1,
        "envs_per_worker": 6,
        "rollout_length": 8,
        "seed": 3,
        "minibatches": 1,
    }
    config = TrainConfig(env=spec.env_id, **{**defaults, "reward_clip": "off", **options})
    config = resolve(config, spec, cores=2, bf16_cpu=False)
    plan = Plan(config, spec, num_params, cores=2)
    return dataclasses.replace(plan, segment=arena.extend(plan.layout().nbytes))


def act_for(shared: Shared, group: int, rng: np.random.Generator, version: int = 1) -> None:
    """Choose random actions for a group's current row, as inference would."""
    plan = shared.plan
    row = shared.progress.load(group) >> ROW_SHIFT
    slot = group * plan.slots_per_group + shared.filled.load(group) % plan.slots_per_group
    action = plan.spec.action["action"]
    shared.action["action"][slot, row] = rng.integers(0, action.n, plan.envs_per_group)
    shared.log_prob[slot, row] = -1.0
    shared.value[slot, row] = 0.5
    shared.version[slot, row] = version


def column(shared: Shared, slot: int, e: int) -> tuple[np.ndarray, ...]:
    """What `counting.check_column` takes: the rows of one environment of a slot."""
    return (
        shared.obs["obs"][slot, :, e],
        shared.action["action"][slot, :, e],
        shared.reward[slot, :, e],
        shared.terminated[slot, :, e],
        shared.truncated[slot, :, e],
        shared.ignored[slot, :, e],
    )
