"""The rollout process: steps environments and writes each row where it will be trained on.

::

    pop acted ─▶ env.step(actions read from the arena) ─▶ write the next row in place ─▶ push ready
                              after row T: push full, go on in the next slot when it is free

Nothing here imports torch: a process of its own costs a few megabytes, and there may be hundreds.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastrl.config import TrainConfig
from fastrl.envs import StepOut, VectorEnv, describe, register_all
from fastrl.envs.finite import all_finite, refuse_observation, refuse_reward
from fastrl.envs.options import EnvOptions
from fastrl.envs.seeding import env_rng, part_seed
from fastrl.kernels import RowFinisher
from fastrl.monitor.accounts import (
    CLOCK_SIZE,
    ROW_SHIFT,
    SAMPLED_MASK,
    Clock,
    Control,
    episode_dtype,
)
from fastrl.shm import ByteRing
from fastrl.workers.group_envs import anew_every, make_first_group, make_group, seed_globals
from fastrl.workers.process import be_nice
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK, Shared
from fastrl.workers.travel import unpack

if TYPE_CHECKING:
    from fastrl.workers.plan import Plan
    from fastrl.workers.process import Lines

ACTED, RETURNED = 0, 1  # sources of the inbox
READY, FULL = 0, 1  # rings of the outbox


class RolloutGroup:
    """One group of E environments, its slots and its episode statistics; used by one process
    only."""

    def __init__(self, shared: Shared, env: VectorEnv, group: int) -> None:
        plan = shared.plan
        E = plan.envs_per_group
        self._shared = shared
        self._env = env
        self.group = group
        self._first_slot = group * plan.slots_per_group
        self._num_slots = plan.slots_per_group
        self._T = plan.rollout_length
        self._sampled = shared.progress.load(group) & SAMPLED_MASK
        self._filled = shared.filled.load(group)
        self._slot = self._first_slot + self._filled % self._num_slots
        self._row = 0
        self._reward = np.zeros(E, np.float32)
        self._episode_over = np.zeros(E, np.bool_)
        self._return = np.zeros(E, np.float64)
        self._length = np.zeros(E, np.int64)
        self._episode_dtype = episode_dtype(len(plan.config.log_info))
        keys = len(plan.config.log_info)
        self._info = np.zeros((E, keys)) if keys else None
        clip = plan.config.reward_clip
        self._rows = RowFinisher(
            reward=self._reward,
            episode_over=self._episode_over,
            terminated=shared.terminated,
            truncated=shared.truncated,
            ignored=shared.ignored,
            stored_reward=shared.reward,
            returns=self._return,
            lengths=self._length,
            scale=plan.config.reward_scale,
            limit=None if isinstance(clip, str) else clip,
            sign=clip == "sign",
        )
        # Views of each row are made once: a slot's turn comes again.
        self._views: list[tuple[dict[str, np.ndarray], StepOut] | None] = [None] * (
            self._num_slots * self._T
        )
        self._set_progress = getattr(env, "set_progress", None)
        self._anew_every = anew_every(plan.config)
        self._env_index = group * E + np.arange(E, dtype=np.int32)
        # The newest observation while the group waits for a slot: what the first reset wrote, later
        # row T of the slot before.
        self._pending_obs = {
            key: np.zeros((E, *leaf.shape), leaf.dtype)
            for key, leaf in plan.spec.observation.items()
        }
        self._pending_mask = {
            key: np.ones((E, size), np.bool_) for key, size in plan.spec.masks.items()
        }
        self._pending_ignored = np.zeros(E, np.bool_)
        self.waits_for_slot = False

    def begin(self) -> bool:
        """Reset the environments and place their first observations; False: no slot is free yet."""
        plan = self._shared.plan
        generation = self._shared.generation.load(self.group // plan.groups_per_worker)
        self._begin_episodes(plan.start.rows, generation)
        return self._enter_slot()

    def _begin_episodes(self, first_row: int, generation: int) -> None:
        """Reset the environments, whose next row is the run's number `first_row`."""
        plan = self._shared.plan
        # Keyed by the run-wide index, so that how environments are spread over groups changes no
        # episode.
        seed = part_seed(plan.config.seed, first_row, generation)
        rngs = [env_rng(seed, int(index)) for index in self._env_index]
        steps = np.array([rng.integers(0, max(1, plan.config.stagger)) for rng in rngs])
        self._tell_progress()
        self._return[:], self._length[:] = self._env.reset(
            self._pending_obs, steps, rngs, self._pending_mask
        )
        if not np.isfinite(self._return).all():
            refuse_reward(self._env.spec, self._return, self._env_index, 0)

    def _make_anew(self) -> None:
        """Put new environments in the place of these, keyed by the rows played until here.

        A run that resumes from the checkpoint of this moment makes the very same ones; see
        `--exact-resume`.
        """
        plan = self._shared.plan
        first_row = plan.start.rows + self._filled * self._T
        self._env.close()
        seed_globals(plan.config, self.group // plan.groups_per_worker, first_row, 0)
        self._env = make_group(plan.config, self.group, first_row, 0)
        self._set_progress = getattr(self._env, "set_progress", None)
        self._pending_obs = {key: obs.copy() for key, obs in self._pending_obs.items()}
        self._pending_mask = {key: mask.copy() for key, mask in self._pending_mask.items()}
        self._pending_ignored = np.zeros(self._env.num_envs, np.bool_)
        self._begin_episodes(first_row, 0)

    def resume(self) -> bool:
        """Go on in the next slot if one is free; False: still none."""
        return self._enter_slot() if self.waits_for_slot else False

    def _enter_slot(self) -> bool:
        shared = self._shared
        if self._filled - shared.returned.load(self.group) >= self._num_slots:
            self.waits_for_slot = True
            return False
        self.waits_for_slot = False
        updates = shared.plan.start.updates + self._filled
        if self._anew_every and self._filled and updates % self._anew_every == 0:
            self._make_anew()
        self._slot = slot = self._first_slot + self._filled % self._num_slots
        self._row = 0
        # First: what a dead process left in this slot must not be counted by the flags of ours.
        shared.progress.store(self.group, self._sampled)
        for key, obs in shared.obs.items():
            obs[slot, 0] = self._pending_obs[key]
        for key, mask in shared.action_mask.items():
            mask[slot, 0] = self._pending_mask[key]
        shared.ignored[slot, 0] = self._pending_ignored
        if self._filled > 0:
            self._tell_progress()
        return True

    def _tell_progress(self) -> None:
        """Tell the environments that ask how far training is."""
        if self._set_progress is not None:
            plan = self._shared.plan
            # The learner may still be loading what the run resumes.
            steps = max(plan.start.steps, self._shared.control.load(Control.STEPS))
            self._set_progress(steps, plan.config.total_steps)

    def step(self, episodes: ByteRing) -> tuple[bool, bool]:
        """Step the environments with the actions of the current row; write what that led to.

        Episodes that ended go to `episodes` before the slot is seen to be full.

        Returns (ready, full): whether the group has a new row for inference, and whether a slot was
        filled.
        """
        shared, slot, row = self._shared, self._slot, self._row
        place = (slot - self._first_slot) * self._T + row
        action, out = self._views[place] or self._make_views(place)
        if self._info is not None:
            self._info.fill(np.nan)
        self._env.step(action, out)
        valid, finite, terminated, over = self._rows.finish(slot, row)
        self._sampled += valid
        if not finite:
            this_row = self._filled * self._T + row
            refuse_reward(self._env.spec, self._reward, self._env_index, this_row)
        if terminated:
            self._make_finite(out.terminated)
        if over:
            episodes.push(self._take_episodes().tobytes())
        self._row = row = row + 1
        if row < self._T:
            # Progress last: it hands the row to inference, and counts its steps.
            shared.progress.store(self.group, row << ROW_SHIFT | self._sampled)
            return True, False
        shared.progress.store(self.group, row << ROW_SHIFT | self._sampled)
        self._check_observations(slot)
        shared.sampled_through[slot] = self._sampled
        self._filled += 1
        shared.filled.store(self.group, self._filled)
        # Row T is row 0 of the next slot. It stays readable here: only this process writes its
        # slots.
        self._pending_obs = {key: obs[slot, row] for key, obs in shared.obs.items()}
        self._pending_mask = {key: mask[slot, row] for key, mask in shared.action_mask.items()}
        self._pending_ignored = shared.ignored[slot, row]
        return self._enter_slot(), True

    def _make_views(self, place: int) -> tuple[dict[str, np.ndarray], StepOut]:
        """Views of a row of this group's slots: its actions, and where their outcome goes."""
        shared = self._shared
        slot, row = self._first_slot + place // self._T, place % self._T
        out = StepOut(
            obs={key: obs[slot, row + 1] for key, obs in shared.obs.items()},
            reward=self._reward,
            terminated=shared.terminated[slot, row],
            truncated=shared.truncated[slot, row],
            episode_over=self._episode_over,
            action_mask={key: mask[slot, row + 1] for key, mask in shared.action_mask.items()},
            info=self._info,
        )
        action = {key: values[slot, row] for key, values in shared.action.items()}
        self._views[place] = (action, out)
        return action, out

    def _make_finite(self, terminated: np.ndarray) -> None:
        """Replace what is not finite in the final observations of terminated episodes.

        Nothing is learned from them, but 0 times infinity would be NaN in the gradient; and a
        simulator may well end an episode because its state went out of bounds.
        """
        for obs in self._shared.obs.values():
            if obs.dtype != np.float32:
                continue
            row = obs[self._slot, self._row + 1]
            final = row[terminated]
            bad = ~np.isfinite(final)
            if bad.any():
                final[bad] = 0.0
                row[terminated] = final

    def _check_observations(self, slot: int) -> None:
        """Raise where an observation of a full slot is not finite.

        Looked at once per slot, in one pass: an environment that does it goes on doing so, and
        nothing is learned from the slot.
        """
        for key, obs in self._shared.obs.items():
            if obs.dtype == np.float32 and not all_finite(obs[slot]):
                first_row = self._filled * self._T
                refuse_observation(self._env.spec, key, obs[slot], self._env_index, first_row)

    def _take_episodes(self) -> np.ndarray:
        """Return the episodes that ended in the last step as records of `episode_dtype`."""
        over = np.flatnonzero(self._episode_over)
        episodes = np.empty(len(over), self._episode_dtype)
        episodes["env"] = self._env_index[over]
        episodes["length"] = self._length[over]
        episodes["return"] = self._return[over]
        episodes["row"] = self._filled * self._T + self._row
        if self._info is not None:
            episodes["info"] = self._info[over]
        self._return[over] = 0
        self._length[over] = 0
        return episodes

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class RolloutWorker:
    """All groups of one rollout process: `step(group)` is one turn of one of them."""

    def __init__(self, shared: Shared, worker: int, envs: list[VectorEnv]) -> None:
        plan = shared.plan
        self._first_group = worker * plan.groups_per_worker
        self._groups = [
            RolloutGroup(shared, env, self._first_group + index) for index, env in enumerate(envs)
        ]
        self._episodes = ByteRing(shared.episodes(worker))

    @property
    def waits_for_slots(self) -> bool:
        """Whether every group waits for a slot, not for actions."""
        return all(group.waits_for_slot for group in self._groups)

    def begin(self, group: int) -> bool:
        """Reset a group; True: its first row is ready."""
        return self._groups[group - self._first_group].begin()

    def resume(self, group: int) -> bool:
        """Let a group that waited for a slot go on; True: its next row is ready."""
        return self._groups[group - self._first_group].resume()

    def step(self, group: int) -> tuple[bool, bool]:
        """Step a group whose actions are in the arena; see `RolloutGroup.step`."""
        return self._groups[group - self._first_group].step(self._episodes)

    def close(self) -> None:
        """Close every environment once, also where one of them cannot be."""
        with contextlib.ExitStack() as stack:
            for group in reversed(self._groups):
                stack.callback(group.close)


@dataclass(frozen=True)
class RolloutStart:
    """What a rollout process is told at its start; without a plan it first reports the spaces."""

    worker: int
    generation: int
    config: TrainConfig
    registered: bytes
    """What was registered in main, by cloudpickle: a fresh process does not know it."""
    plan: Plan | None


def _explore(start: RolloutStart, lines: Lines) -> tuple[Plan, list[VectorEnv]]:
    """Worker 0 alone, first: report the spaces and prove that the first group can be
    constructed."""
    lines.pipe.send(("spec", describe(start.config.env, start.config.section(EnvOptions))))
    config, first_row = lines.pipe.recv()
    seed_globals(config, 0, first_row, start.generation)
    env = make_first_group(config, first_row, start.generation)
    lines.pipe.send(("constructed", os.getppid()))
    return lines.pipe.recv(), [env]


def run(start: RolloutStart, lines: Lines) -> None:
    """Step this worker's groups until the engine closes."""
    first_row = 0 if start.plan is None else start.plan.start.rows
    seed_globals(start.config, start.worker, first_row, start.generation)
    register_all(unpack(start.registered, "register_env"))
    plan, envs = (start.plan, []) if start.plan is not None else _explore(start, lines)
    first_group = start.worker * plan.groups_per_worker
    envs += [
        make_group(plan.config, first_group + index, plan.start.rows, start.generation)
        for index in range(len(envs), plan.groups_per_worker)
    ]
    be_nice(plan.niceness("rollout"))
    shared = Shared(plan, lines.arena)
    worker = RolloutWorker(shared, start.worker, envs)
    try:
        _loop(worker, shared, start)
    finally:
        worker.close()


def _loop(worker: RolloutWorker, shared: Shared, start: RolloutStart) -> None:
    plan = shared.plan
    inbox, outbox = shared.rollout_inbox(start.worker), shared.rollout_outbox(start.worker)
    clock, base = shared.rollout_clock, start.worker * CLOCK_SIZE
    tag = start.generation << GENERATION_SHIFT
    words = np.zeros(4 * plan.groups_per_worker, np.uint64)
    sources = np.zeros(len(words), np.uint32)

    def push(ring: int, group: int) -> None:
        if not outbox.push(ring, tag | group):
            raise AssertionError(
                f"ring {ring} of worker {start.worker} is full; plan.layout sizes it"
            )

    def begin_step(group: int) -> None:
        clock.store(base + Clock.BUSY_GROUP, group)
        clock.store(base + Clock.BUSY_SINCE, time.monotonic_ns())

    first_group = start.worker * plan.groups_per_worker
    for group in range(first_group, first_group + plan.groups_per_worker):
        begin_step(group)
        if shared.filled.load(group) > shared.returned.load(group):
            # The process before this one may have died between filling a slot and saying so.
            push(FULL, group)
        if worker.begin(group):
            push(READY, group)
    clock.store(base + Clock.STARTED, time.monotonic_ns())
    while True:
        waits_for_slots = worker.waits_for_slots
        clock.store(base + Clock.BUSY_SINCE, 0)
        before = time.monotonic_ns()
        count = inbox.pop_many(words, sources, timeout=1.0)
        waited = time.monotonic_ns() - before
        clock.add(base + (Clock.WAIT_SLOT if waits_for_slots else Clock.WAIT), waited)
        for word, source in zip(words[:count].tolist(), sources[:count].tolist(), strict=True):
            group = word & GROUP_MASK
            if source == RETURNED:
                # A word of the learner only says where to look; the counters decide.
                if worker.resume(group):
                    push(READY, group)
            elif word >> GENERATION_SHIFT == start.generation:
                begin_step(group)
                ready, full = worker.step(group)
                if full:
                    push(FULL, group)
                if ready:
                    push(READY, group)
