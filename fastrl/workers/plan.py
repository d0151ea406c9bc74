"""The plan of a run: how many of what, and where each array lies in the arena.

Everything that the processes must agree on is computed once, by main, from the resolved
configuration and the environment's spaces, and travels to them as one picklable :class:`Plan`::

    W workers x G groups = N groups of E environments;  group g has slots g*K .. g*K + K-1
    slot s, row t, environment e  ─▶  obs row (s*(T+1) + t)*E + e,  other rows (s*T + t)*E + e
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fastrl.config import TrainConfig, is_sync
from fastrl.envs.spec import EnvSpec
from fastrl.errors import ConfigError
from fastrl.monitor.accounts import CLOCK_SIZE, Control, episode_dtype
from fastrl.preset import load_preset
from fastrl.resolve import versions_per_batch
from fastrl.shm import DOORBELL_BYTES, Layout, Segment, byte_ring_bytes, ring_bytes, weights_bytes
from fastrl.workers.machine import available_memory

EPISODE_RING_BYTES = 1 << 18
"""At least: room for 16,000 finished episodes of one worker between two looks of main."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: all zeros, or what the checkpoint says that it resumes."""

    steps: int = 0
    updates: int = 0
    rows: int = 0
    """Rows that each environment had played, at least: what is drawn at random for a row is keyed
    by its number, so a resumed run draws anew."""
    seconds: float = 0.0
    """Of training before."""
    episodes: int = 0
    """Finished before."""
    best_score: float | None = None
    """The highest mean return at a checkpoint before, which the next best one has to beat."""


@dataclass(frozen=True)
class Plan:
    """Sizes and layout of one run (see the module's docstring for the letters)."""

    config: TrainConfig
    spec: EnvSpec
    num_params: int
    cores: int
    start: Start = Start()
    began: float = field(default_factory=time.monotonic)
    """time.monotonic() at which the run's clock began, in main; the same clock in every process."""
    segment: Segment = field(default_factory=lambda: Segment(0, 0))

    @property
    def num_workers(self) -> int:
        """W, the number of rollout workers; one where everything is in one process."""
        return max(1, int(self.config.workers))

    @property
    def sync(self) -> bool:
        """Whether all groups fill one slot each, then wait until it has been trained on."""
        return is_sync(self.config)

    @property
    def groups_per_worker(self) -> int:
        """G, the groups that one worker alternates between."""
        return self.config.groups_per_worker

    @property
    def num_groups(self) -> int:
        """N = W x G."""
        return self.num_workers * self.groups_per_worker

    @property
    def envs_per_group(self) -> int:
        """E, the environments stepped together."""
        return self.config.envs_per_worker // self.groups_per_worker

    @property
    def num_envs(self) -> int:
        """All environments of the run."""
        return self.num_groups * self.envs_per_group

    @property
    def rollout_length(self) -> int:
        """T, the rows of a slot (and one bootstrap row)."""
        return self.config.rollout_length

    @property
    def batch_slots(self) -> int:
        """Slots in one batch of the learner."""
        return self.config.batch_size // (self.rollout_length * self.envs_per_group)

    @property
    def slots_per_group(self) -> int:
        """K: one batch ahead fills while one trains; of two, one is full as well, so that neither
        side waits for the other. Where a batch takes several slots of a group, all of a batch ahead
        must be there, or the group would stand still until the learner is done. In sync a single
        one, so that nobody acts while weights change."""
        of_batch = -(-self.batch_slots // self.num_groups)
        ahead = self.config.batches_ahead * of_batch
        return 1 if self.sync else max(2 * of_batch, ahead + 1)

    @property
    def num_slots(self) -> int:
        """All slots of the arena."""
        return self.num_groups * self.slots_per_group

    @property
    def largest_lag(self) -> int:
        """Policy lag in versions, at the pop of a batch, for groups of equal speed and a slow
        learner.

        All K slots of a group are then full: the oldest row was chosen when the slot's turn came,
        and the other K - 1 slots of every group are trained on before it.
        """
        batches = -(-(self.slots_per_group - 1) * self.num_groups // self.batch_slots)
        return batches * versions_per_batch(self.config)

    @property
    def crowded(self) -> bool:
        """Whether processes outnumber cores, so that a process awake is one that keeps another
        waiting."""
        return self.config.workers != 0 and self.num_workers + 2 > self.cores

    def niceness(self, role: Literal["rollout", "inference", "learner"]) -> int:
        """Nice level of a process where processes outnumber cores, else 0.

        The scheduler shares cores by process: next to 64 workers at its own level the learner would
        get a few per cent of one, and between its turns find the caches full of their work. At
        level 19 all of them together weigh less than the learner, at 10 inference stays ahead.
        """
        if not self.crowded:
            return 0
        return {"rollout": 19, "inference": 10, "learner": 0}[role]

    @property
    def learner_threads(self) -> int:
        """Threads of the learner's kernels: the cores that rollout and inference leave over. In
        sync one, since sums depend on how they are cut."""
        return 1 if self.sync else max(1, min(16, self.cores - self.num_workers - 1))

    def with_segment(self, segment: Segment) -> Plan:
        """Return the plan with the place of its arrays in the arena."""
        return replace(self, segment=segment)

    def layout(self) -> Layout:
        """Lay out every shared array of the run; all-zero memory is its valid first state."""
        workers, groups, slots = self.num_workers, self.num_groups, self.num_slots
        T, E = self.rollout_length, self.envs_per_group
        # A ring never fills: per group at most one word waits in ready and acted and K in full and
        # returned, beside those of dead generations.
        words = 1 << max(6, (4 * self.groups_per_worker * (self.slots_per_group + 1)).bit_length())
        layout = Layout()
        for name in ("ready", "acted", "full", "returned"):
            layout.add(f"ring/{name}", (workers, ring_bytes(words)), np.uint8)
        layout.add("doorbell/rollout", (workers, DOORBELL_BYTES), np.uint8)
        layout.add("doorbell/inference", (DOORBELL_BYTES,), np.uint8)
        layout.add("doorbell/learner", (DOORBELL_BYTES,), np.uint8)
        # All environments of a worker may end together, and soon again.
        itemsize = episode_dtype(len(self.config.log_info)).itemsize
        together = 4 * itemsize * E * self.groups_per_worker
        episode_bytes = max(EPISODE_RING_BYTES, 1 << together.bit_length())
        layout.add("episodes", (workers, byte_ring_bytes(episode_bytes)), np.uint8)
        layout.add("weights", (weights_bytes(self.num_params),), np.uint8)
        for name, length in (
            ("filled", groups),
            ("returned", groups),
            ("progress", groups),
            ("taken_through", groups),
            ("generation", workers),
            ("control", len(Control)),
            ("clock/rollout", workers * CLOCK_SIZE),
            ("clock/inference", CLOCK_SIZE),
            ("clock/learner", CLOCK_SIZE),
        ):
            layout.add(f"counter/{name}", (length,), np.int64)
        for key, leaf in self.spec.observation.items():
            layout.add(f"obs/{key}", (slots, T + 1, E, *leaf.shape), leaf.dtype)
        for key, action in self.spec.action.items():
            layout.add(f"action/{key}", (slots, T, E, *action.shape), action.dtype)
        for key, size in self.spec.masks.items():
            layout.add(f"action_mask/{key}", (slots, T + 1, E, size), np.bool_)
        for name, dtype in (
            ("log_prob", np.float32),
            ("value", np.float32),
            ("version", np.int64),
            ("reward", np.float32),
            ("terminated", np.bool_),
            ("truncated", np.bool_),
        ):
            layout.add(name, (slots, T, E), dtype)
        layout.add("ignored", (slots, T + 1, E), np.bool_)
        layout.add("sampled_through", (slots,), np.int64)
        return layout

    def check_memory(self) -> None:
        """Refuse an arena that does not fit into what the machine or the cgroup still allows."""
        needed, available = self.layout().nbytes, available_memory()
        if needed > 0.9 * available:
            # A batch of more slots than groups takes more slots of each group.
            smaller = ", a smaller --batch-size" if self.batch_slots > self.num_groups else ""
            if self.config.batches_ahead > 1:
                smaller += ", --batches-ahead 1"
            raise ConfigError(
                f"The plan needs {needed / 2**30:.1f} GiB of shared memory for "
                f"{self.num_slots} slots, and {available / 2**30:.1f} GiB are available; use fewer "
                f"environments (--workers, --envs-per-worker){smaller} or a shorter "
                "--rollout-length."
            )

    def describe(self) -> list[tuple[str, str]]:
        """Say what will run, as (name, text) rows for the console and the log."""
        config, nbytes = self.config, self.layout().nbytes
        steps = config.batch_size
        groups = f"{self.groups_per_worker} groups of {self.envs_per_group}"
        if self.groups_per_worker == 1:
            groups = f"1 group of {self.envs_per_group}"
        return [
            (
                "env",
                f"{self.spec.env_id}: {self.num_envs} environments, "
                f"frame skip {self.spec.frame_skip}, seed {config.seed}",
            ),
            (
                "processes",
                f"main, {self.num_workers} rollout ({groups}), 1 inference, 1 learner; "
                f"{self.cores} cores; {config.mode}"
                if config.workers
                else f"main alone ({groups}); sync",
            ),
            (
                "threads",
                f"1 per rollout group, 1 inference, {self.learner_threads} learner; "
                f"encoder in {config.dtype} on {config.device}",
            ),
            (
                "slots",
                f"{self.num_slots} x {nbytes / self.num_slots / 2**20:.2f} MiB = "
                f"{nbytes / 2**20:,.0f} MiB of shared memory",
            ),
            (
                "batch",
                f"{steps:,} steps = {self.batch_slots} slots of T={self.rollout_length}; "
                f"{config.minibatches} minibatches, {config.epochs} "
                f"epoch{'s' if config.epochs > 1 else ''}",
            ),
            ("policy lag", self._describe_lag()),
            ("preset", f"{config.preset}: {load_preset(config.preset).about}"),
            ("run", str(config.run_dir)),
        ]

    def _describe_lag(self) -> str:
        if self.sync:
            return "0: everyone waits while the learner trains" + (
                "; each group has one generator, so equal seeds give equal bits for equal groups "
                "alone"
                if self.spec.one_generator
                else ""
            )
        versions = versions_per_batch(self.config)
        few = "0 to 1 version" if versions == 1 else f"0 to {versions} versions"
        return (
            f"{few} where sampling is the slower side, about {self.largest_lag} where learning is; "
            f"trained up to {self.config.max_policy_lag}{self._masked()}"
        )

    def _masked(self) -> str:
        """Say what to change where rows would be sampled only to be masked for their age."""
        largest, trained = self.largest_lag, self.config.max_policy_lag
        if largest <= trained:
            return ""
        steps = self.num_envs * self.rollout_length
        least = self.config.batches_ahead * versions_per_batch(self.config)
        other = f", or take --batch-size {steps} for a lag of {least}" if trained >= least else ""
        return f". Older rows will be masked: raise --max-policy-lag to {largest}{other}"
