"""The inference process: one forward pass over the rows of all ready groups.

::

    pop ready groups ─▶ gather their rows ─▶ forward, sample
                     ─▶ write action, log_prob, value, version in place ─▶ push acted
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from fastrl.models.acting import ActingPolicy, picks_images
from fastrl.models.noise import uniform
from fastrl.models.pixels import PickedImages
from fastrl.models.registry import register_models
from fastrl.monitor.accounts import ROW_SHIFT, Clock
from fastrl.shm import Weights
from fastrl.workers.batch import aligned_empty
from fastrl.workers.heap import HeapCare, keep_freed_memory
from fastrl.workers.plan import Plan
from fastrl.workers.process import Lines, be_nice
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK, Shared
from fastrl.workers.travel import unpack

AUTO_WAIT_SECONDS = 0.010

SYNC_WAIT_SECONDS = 0.050
"""Between two looks at who is still to come: a group that fills its slot does not say so here."""


class Policy(Protocol):
    """What inference asks to choose actions; see `ActingPolicy`."""

    flat: np.ndarray
    noise_dims: dict[str, int]

    def refresh(self) -> None:
        """Take over what was written to `flat`."""

    def act(
        self,
        obs: Mapping[str, torch.Tensor | PickedImages],
        noise: dict[str, torch.Tensor] | None,
        action_mask: dict[str, torch.Tensor] | None = None,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Actions by leaf, log-probabilities and values of rows, on the CPU."""
        ...


class Inference:
    """Chooses actions for groups, with the newest published weights; owns the acting copy of the
    policy."""

    def __init__(self, shared: Shared, policy: Policy) -> None:
        plan = shared.plan
        self._shared = shared
        self._policy = policy
        self._weights: Weights = shared.weights()
        self._version = 0
        self._seed = plan.config.seed
        self._T, self._K = plan.rollout_length, plan.slots_per_group
        E = plan.envs_per_group
        self._env_index = np.arange(plan.num_envs, dtype=np.int64).reshape(-1, E)
        self._first_row = plan.start.rows
        self._progress = np.zeros(plan.num_groups, np.int64)
        self._filled = np.zeros(plan.num_groups, np.int64)
        slots = plan.num_slots
        device = torch.device(plan.config.device)
        self._images = {
            key: torch.from_numpy(obs.reshape(-1, *obs.shape[3:]))
            for key, obs in shared.obs.items()
            if picks_images(plan.spec.observation[key], device)
        }
        self._obs_rows = {
            key: obs.reshape(slots * (self._T + 1), E, *obs.shape[3:])
            for key, obs in shared.obs.items()
            if key not in self._images
        }
        self._obs_batch = {
            key: aligned_empty((plan.num_groups, *rows.shape[1:]), rows.dtype)
            for key, rows in self._obs_rows.items()
        }
        self._within_group = np.arange(E, dtype=np.int64)
        self._mask_rows = {
            key: mask.reshape(slots * (self._T + 1), E, mask.shape[-1])
            for key, mask in shared.action_mask.items()
        }
        self._action_rows = {
            key: action.reshape(slots * self._T, E, *action.shape[3:])
            for key, action in shared.action.items()
        }
        self._log_prob_rows = shared.log_prob.reshape(slots * self._T, E)
        self._value_rows = shared.value.reshape(slots * self._T, E)
        self._version_rows = shared.version.reshape(slots * self._T, E)

    def refresh(self) -> int:
        """Take over the newest published weights; return their version (0: none yet)."""
        if self._weights.version != self._version:
            self._version = self._weights.read(self._policy.flat)
            self._policy.refresh()
        return self._version

    def run(self, groups: np.ndarray) -> None:
        """Act for `groups` (int64 [n]): each group's current row gets its actions."""
        shared, count = self._shared, len(groups)
        progress, filled = self._progress[:count], self._filled[:count]
        shared.progress.load_many(groups, progress)
        shared.filled.load_many(groups, filled)
        row = progress >> ROW_SHIFT
        slot = groups * self._K + filled % self._K
        obs: dict[str, torch.Tensor | PickedImages] = {}
        at = slot * (self._T + 1) + row
        if self._images:
            E = len(self._within_group)
            index = torch.from_numpy((at[:, None] * E + self._within_group).ravel())
            obs = {key: PickedImages(images, index) for key, images in self._images.items()}
        for key, rows in self._obs_rows.items():
            batch = self._obs_batch[key][:count]
            # mode="raise" would gather into a buffer first, to leave `out` alone on an error.
            np.take(rows, at, axis=0, out=batch.numpy(), mode="clip")
            obs[key] = batch.flatten(0, 1)
        masks = {
            key: torch.from_numpy(rows[at]).flatten(0, 1) for key, rows in self._mask_rows.items()
        }
        # Keyed by the environment and the number of its row. Where a worker died in a slot, its
        # replacement draws the numbers of rows that nobody will train on once more.
        env_index = self._env_index[groups].ravel()
        step = np.repeat(self._first_row + filled * self._T + row, self._env_index.shape[1])
        noise = {
            key: torch.from_numpy(uniform(self._seed, env_index, step, leaf, dims))
            for leaf, (key, dims) in enumerate(self._policy.noise_dims.items())
        }
        actions, log_prob, value = self._policy.act(obs, noise, masks)
        at = slot * self._T + row
        for key, rows in self._action_rows.items():
            rows[at] = actions[key].numpy().reshape(count, *rows.shape[1:])
        self._log_prob_rows[at] = log_prob.numpy().reshape(count, -1)
        self._value_rows[at] = value.numpy().reshape(count, -1)
        self._version_rows[at] = self._version


def _patience(plan: Plan) -> tuple[int, float]:
    """How many groups to wait for, and how long after the first (seconds).

    Where processes outnumber cores, small batches cost more than they save: whoever is not served
    yet would not have a core to run on either.
    """
    if plan.sync:
        return 1, SYNC_WAIT_SECONDS
    wait = plan.config.inference_wait
    auto = AUTO_WAIT_SECONDS if plan.crowded else 0.0
    seconds = auto if wait == "auto" else wait / 1000
    return (math.ceil(plan.num_groups / 3) if seconds > 0 else 1), seconds


class _Everyone:
    """In sync: groups wait here until all have come that will, and are then served together.

    So every forward pass has the same rows in the same order, whatever process steps them.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._words: dict[int, int] = {}
        self._filled = np.zeros(shared.plan.num_groups, np.int64)

    @property
    def missing(self) -> int:
        """How many groups are still to come: all but those whose slot is full."""
        filled, returned = self._shared.filled.snapshot(), self._shared.returned.snapshot()
        return int(np.count_nonzero(filled == returned)) - len(self._words)

    @property
    def wait(self) -> bool:
        """Whether any group waits here."""
        return bool(self._words)

    def add(self, words: np.ndarray) -> None:
        """Let groups wait; a word of a dead process gives way to that of its replacement."""
        self._words |= {word & GROUP_MASK: word for word in words.tolist()}

    def take(self) -> np.ndarray:
        """Return the words of those who wait, by group."""
        words = [self._words[group] for group in sorted(self._words)]
        self._words.clear()
        return np.array(words, np.int64)


def run(lines: Lines) -> None:
    """Build the policy that acts, and serve."""
    torch.set_num_threads(1)
    keep_freed_memory()
    plan, models = lines.pipe.recv()
    register_models(unpack(models, "register_model"))
    shared = Shared(plan, lines.arena)
    begin(shared, Inference(shared, ActingPolicy(plan.spec, plan.config)))


def begin(shared: Shared, inference: Inference) -> None:
    """Turn this process into an inference process, which serves once there are weights."""
    be_nice(shared.plan.niceness("inference"))
    gc.collect()
    gc.freeze()  # what is there will stay; no collection need look at it
    while inference.refresh() == 0:
        # The learner publishes its first weights within milliseconds of the plan.
        shared.raise_if_closed()
        time.sleep(0.001)
    serve(shared, inference)


def serve(shared: Shared, inference: Inference) -> None:
    """Serve ready groups until the engine closes."""
    plan = shared.plan
    inbox, outbox = shared.inference_inbox(), shared.inference_outbox()
    clock = shared.inference_clock
    at_least, linger = _patience(plan)
    everyone = _Everyone(shared) if plan.sync else None
    words = np.zeros(plan.num_groups, np.uint64)
    sources = np.zeros(plan.num_groups, np.uint32)
    heap = HeapCare()
    clock.store(Clock.STARTED, time.monotonic_ns())
    while True:
        heap.after_update()
        timeout = 1.0
        if everyone is not None:
            at_least = max(1, everyone.missing)
            timeout = SYNC_WAIT_SECONDS if everyone.wait else 1.0
        before = time.monotonic_ns()
        count = inbox.pop_many(words, sources, timeout=timeout, at_least=at_least, linger=linger)
        clock.add(Clock.WAIT, time.monotonic_ns() - before)
        word = words[:count].astype(np.int64)
        if everyone is not None:
            everyone.add(word)
            if everyone.missing > 0:
                continue
            word = everyone.take()
        worker = (word & GROUP_MASK) // plan.groups_per_worker
        current = (word >> GENERATION_SHIFT) == shared.generation.snapshot()[worker]
        if not current.all():
            # Of a worker that has died since; its replacement asks again.
            word, worker = word[current], worker[current]
        if len(word) == 0:
            continue
        inference.refresh()
        inference.run(word & GROUP_MASK)
        if outbox.push_many(worker.astype(np.uint32), word.astype(np.uint64)) != len(word):
            raise AssertionError("an acted ring is full; plan.layout sizes it")
        clock.add(Clock.BATCHES, 1)
        clock.add(Clock.ROWS, len(word) * plan.envs_per_group)
