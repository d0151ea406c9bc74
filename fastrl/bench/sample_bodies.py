"""The processes of an engine that only samples: real rollouts, a policy that draws, no learning.

::

    rollout 0..N (as in training) ◀──▶ inference: its own loop, with `RandomPolicy`
          └── full slots ──▶ learner: gives each back at once
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fastrl.monitor.accounts import Clock
from fastrl.workers.bodies import Bodies
from fastrl.workers.plan import Plan
from fastrl.workers.process import Lines, be_nice, child_of_main, name_process
from fastrl.workers.shared import GROUP_MASK, Shared

NUM_PARAMS = 1
"""Weights of the policy that has none: the arena takes at least one, and inference waits for it."""


def inference_main(lines: Lines) -> None:
    """Body of the inference process: its loop as it is, and a policy without a network."""
    with child_of_main(lines):
        import torch

        from fastrl.bench.random_policy import RandomPolicy
        from fastrl.workers.heap import keep_freed_memory
        from fastrl.workers.inference import Inference, begin

        name_process("fastrl-infer")
        keep_freed_memory()
        torch.set_num_threads(1)
        plan: Plan = lines.pipe.recv()
        shared = Shared(plan, lines.arena)
        begin(shared, Inference(shared, RandomPolicy(plan.spec, plan.config.seed)))


def learner_main(lines: Lines, fifo: Any) -> None:
    """Body of the learner: returns full slots, oldest first, as soon as it hears of them."""
    with child_of_main(lines):
        name_process("fastrl-learn")
        plan: Plan = lines.pipe.recv()
        be_nice(plan.niceness("learner"))
        shared = Shared(plan, lines.arena)
        shared.weights().publish(np.zeros(NUM_PARAMS, np.float32))
        return_slots(shared)


def return_slots(shared: Shared) -> None:
    """Give every full slot back, until the engine closes."""
    plan = shared.plan
    inbox, outbox = shared.learner_inbox(), shared.learner_outbox()
    words, sources = np.zeros(plan.num_slots, np.uint64), np.zeros(plan.num_slots, np.uint32)
    shared.learner_clock.store(Clock.STARTED, time.monotonic_ns())
    while True:
        count = inbox.pop_many(words, sources, timeout=1.0)
        for word in words[:count].tolist():
            group = word & GROUP_MASK
            # All that are full: a word may have been lost with its process, as in training.
            filled = shared.filled.load(group)
            if filled == shared.returned.load(group):
                continue
            shared.returned.store(group, filled)
            if not outbox.push(group // plan.groups_per_worker, group):
                raise AssertionError("a returned ring is full; plan.layout sizes it")


BODIES = Bodies(inference=inference_main, learner=learner_main)
