"""A plan and an arena for tests that play the other side, and an engine in one process."""

from __future__ import annotations

import dataclasses

import counting
import numpy as np
import torch

from fastrl.config import TrainConfig
from fastrl.envs import ActionSpec
from fastrl.envs.spec import sample_actions
from fastrl.monitor.accounts import ROW_SHIFT
from fastrl.resolve import resolve
from fastrl.shm import Arena
from fastrl.workers.learner import Learner
from fastrl.workers.plan import Plan
from fastrl.workers.rollout import RolloutWorker
from fastrl.workers.shared import Shared
from fastrl.workers.slot_queue import SlotQueue
from fastrl.workers.update import Updater


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
    if action.kind == "discrete":
        mask = shared.action_mask["action"][slot, row] if action.masked else None
        chosen = sample_actions(action, plan.envs_per_group, rng, mask)
        shared.action["action"][slot, row] = chosen
    else:
        shared.action["action"][slot, row] = rng.normal(size=(plan.envs_per_group, *action.shape))
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


def make_learner(arena: Arena, spec, **options) -> tuple[Shared, Updater, Learner]:
    """A learner with fresh weights, published, and the arena of its plan."""
    probe = make_plan(Arena.create(), spec, **options)
    torch.manual_seed(0)
    updater = Updater(spec, probe.config)
    shared = Shared(make_plan(arena, spec, updater.num_params, **options), arena)
    return shared, updater, Learner(shared, updater)


class Engine:
    """A rollout worker and a learner in one process; actions are random."""

    def __init__(self, action: ActionSpec = counting.DISCRETE, **options) -> None:
        spec = counting.spec("count:x", action)
        self.shared, self.updater, self.learner = make_learner(Arena.create(), spec, **options)
        self.plan = self.shared.plan
        self.queue = SlotQueue(self.shared)
        self.rng = np.random.default_rng(0)
        self.start_workers()
        for group in range(self.plan.num_groups):
            assert self.worker.begin(group)

    def start_workers(self) -> None:
        E = self.plan.envs_per_group
        action = self.plan.spec.action["action"]
        envs = [
            counting.CountingEnv("count:x", E, g * E, action) for g in range(self.plan.num_groups)
        ]
        self.worker = RolloutWorker(self.shared, 0, envs)

    def step(self, group: int, version: int = 1) -> bool:
        act_for(self.shared, group, self.rng, version)
        ready, full = self.worker.step(group)
        if full:
            self.queue.look_at(group)
        return ready

    def fill(self, group: int, version: int = 1) -> None:
        filled = self.shared.filled.load(group)
        while self.shared.filled.load(group) == filled:
            self.step(group, version)

    def train(self, slots: np.ndarray, dropped: int = 0) -> dict:
        metrics = self.learner.train(slots, dropped)
        for group in range(self.plan.num_groups):
            self.worker.resume(group)
        return metrics
