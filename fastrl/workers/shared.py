"""The arena of a run as named arrays, counters, rings and weights.

A slot belongs to its rollout process or to the learner; two counters say to whom::

    filled[group] - returned[group] = slots of the group that are full or in training (at most K)

The group's rollout process fills slot `filled mod K`; the learner returns slots in that order.
"""

from __future__ import annotations

import numpy as np

from fastrl.errors import ConfigError
from fastrl.shm import (
    Arena,
    Closed,
    Consumer,
    Counters,
    Producer,
    Weights,
    close_doorbell,
    doorbell_closed,
)
from fastrl.workers.plan import Plan

GENERATION_SHIFT = 32
"""A ring's word is ``generation << 32 | group``."""

GROUP_MASK = (1 << GENERATION_SHIFT) - 1


def place(plan: Plan, arena: Arena) -> Plan:
    """The plan with its arrays in new memory of the arena; ConfigError where there is none."""
    try:
        segment = arena.extend(plan.layout().nbytes)
    except MemoryError as error:
        raise ConfigError(f"{error} Use fewer environments or a shorter rollout.") from error
    return plan.with_segment(segment)


class Shared:
    """Views of the arena for one process; created after the plan is known, in every process
    alike."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        views = plan.layout().views(arena.map(plan.segment))
        self.plan = plan
        self._views = views
        self.obs = {key: views[f"obs/{key}"] for key in plan.spec.observation}
        self.action = {key: views[f"action/{key}"] for key in plan.spec.action}
        self.action_mask = {key: views[f"action_mask/{key}"] for key in plan.spec.masks}
        self.log_prob = views["log_prob"]
        self.value = views["value"]
        self.version = views["version"]
        self.reward = views["reward"]
        self.terminated = views["terminated"]
        self.truncated = views["truncated"]
        self.ignored = views["ignored"]
        self.sampled_through = views["sampled_through"]
        self.filled = Counters(views["counter/filled"])
        self.returned = Counters(views["counter/returned"])
        self.taken_through = Counters(views["counter/taken_through"])
        self.progress = Counters(views["counter/progress"])
        self.generation = Counters(views["counter/generation"])
        self.control = Counters(views["counter/control"])
        self.rollout_clock = Counters(views["counter/clock/rollout"])
        self.inference_clock = Counters(views["counter/clock/inference"])
        self.learner_clock = Counters(views["counter/clock/learner"])

    def weights(self) -> Weights:
        """Return the published weights: one writer (learner), any number of readers."""
        return Weights(self._views["weights"], self.plan.num_params)

    def episodes(self, worker: int) -> np.ndarray:
        """Return the region of a worker's ring of finished episodes."""
        region: np.ndarray = self._views["episodes"][worker]
        return region

    def rollout_inbox(self, worker: int) -> Consumer:
        """Words for a rollout process: source 0 from inference (acted), 1 from the learner
        (returned)."""
        rings = [self._views["ring/acted"][worker], self._views["ring/returned"][worker]]
        return Consumer(rings, self._views["doorbell/rollout"][worker])

    def rollout_outbox(self, worker: int) -> Producer:
        """Words of a rollout process: ring 0 to inference (ready), 1 to the learner (full)."""
        return Producer(
            [self._views["ring/ready"][worker], self._views["ring/full"][worker]],
            [self._views["doorbell/inference"], self._views["doorbell/learner"]],
        )

    def inference_inbox(self) -> Consumer:
        """Ready groups of all workers; the source is the worker."""
        rings = list(self._views["ring/ready"])
        return Consumer(rings, self._views["doorbell/inference"])

    def inference_outbox(self) -> Producer:
        """Acted groups; ring w goes to worker w."""
        return Producer(list(self._views["ring/acted"]), list(self._views["doorbell/rollout"]))

    def learner_inbox(self) -> Consumer:
        """Groups with a full slot; the source is the worker."""
        return Consumer(list(self._views["ring/full"]), self._views["doorbell/learner"])

    def learner_outbox(self) -> Producer:
        """Groups whose oldest slot was returned; ring w goes to worker w."""
        return Producer(list(self._views["ring/returned"]), list(self._views["doorbell/rollout"]))

    def raise_if_closed(self) -> None:
        """Raise Closed where the engine has been closed, for a loop that waits for something
        else."""
        if doorbell_closed(self._views["doorbell/inference"]):
            raise Closed

    def close(self) -> None:
        """Close every doorbell: each process raises Closed at its next wait or push."""
        close_doorbell(self._views["doorbell/learner"])
        close_doorbell(self._views["doorbell/inference"])
        for doorbell in self._views["doorbell/rollout"]:
            close_doorbell(doorbell)
