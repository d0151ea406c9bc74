"""What `fastrl-bench chaos` does to one run: drawn from one number, so that it can be done again.

::

    seed ─▶ flags of fastrl-train │ faults, in the order of their moments │ resumed afterwards?

Faults that end a run (of the learner, inference, the forkserver or main) come last, since none
could follow; where `--max-restarts` allows, they may come earlier.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from fastrl.bench.family import FORKSERVER
from fastrl.bench.processes import MAIN

Role = str
"""rollout, inference, learner, main or forkserver."""
Signal = Literal["SIGKILL", "SIGSEGV", "SIGSTOP"]
Moment = Literal["start", "training", "save", "end"]

TARGETS: tuple[Role, ...] = ("rollout", "learner", "inference", MAIN, FORKSERVER)
ENGINE_ENDS = ("learner", "inference", FORKSERVER)
"""Roles whose death ends an engine, or has it started again."""
SIGNALS: tuple[Signal, ...] = ("SIGKILL", "SIGSEGV", "SIGSTOP")
MOMENTS: tuple[Moment, ...] = ("start", "training", "save", "end")

START_SECONDS = (0.1, 5.0)
"""Moments after the command's start; more of the early ones are drawn."""
TRAINING_SECONDS, END_SECONDS = 1.2, 0.6
SAVE_SECONDS = 0.03
"""A checkpoint of so small a network is written in a few milliseconds."""
PAUSE_SECONDS = (0.2, 3.0)
FEW_RESTARTS = 1
"""`--max-worker-restarts` of the runs that are meant to exceed it."""
ENGINE_RESTARTS = 2
"""`--max-restarts` of the runs that have some."""
STEPS = (16_000, 32_000)


@dataclass(frozen=True)
class Fault:
    """One signal."""

    role: Role
    signal: Signal
    moment: Moment
    """What it waits for: the command's start, the first steps of all workers, the next time that a
    checkpoint is written, or the last sixth of the steps."""
    delay: float
    """Seconds after that moment."""
    pause: float = 0.0
    """Seconds until SIGCONT, of a SIGSTOP."""
    pick: float = 0.0
    """Which of several processes of the role: a share of their number."""

    def __str__(self) -> str:
        text = f"{self.signal} to {self.role} {self.delay:.3f} s after {self.moment}"
        return text + (f", SIGCONT after {self.pause:.2f} s" if self.pause else "")


@dataclass(frozen=True)
class RunPlan:
    """One run and what is done to it."""

    seed: int
    """What all of it was drawn from; that of the training as well."""
    mode: Literal["async", "sync"]
    workers: int
    envs_per_worker: int
    total_steps: int
    save_every: str
    restarts: int
    """`--max-restarts`."""
    worker_restarts: int | None
    """`--max-worker-restarts` where it is given."""
    faults: tuple[Fault, ...]
    resumes: bool
    """Whether the run, if a fault has ended it, is gone on with."""

    def flags(self) -> list[str]:
        """Flags of fastrl-train, but for the run's folder."""
        flags = [
            *("--env", "envpool:CartPole-v1", "--mode", self.mode, "--seed", str(self.seed)),
            *("--workers", str(self.workers), "--envs-per-worker", str(self.envs_per_worker)),
            *("--rollout-length", "32", "--total-steps", str(self.total_steps)),
            *("--save-every", self.save_every),
            *("--log-every", "2u" if self.mode == "sync" else "0.2"),
        ]
        if self.restarts:
            flags += ["--max-restarts", str(self.restarts)]
        if self.worker_restarts is not None:
            flags += ["--max-worker-restarts", str(self.worker_restarts)]
        return flags


def draw(seed: int, most: int) -> RunPlan:
    """Draw a run with at most `most` faults; equal numbers give equal runs."""
    rng = random.Random(f"chaos {seed}")
    # Everything is drawn for any `most`, so that a run of a long series is the same by itself.
    mode: Literal["async", "sync"] = "sync" if rng.random() < 0.2 else "async"
    restarts = ENGINE_RESTARTS if rng.random() < 0.2 else 0
    few = rng.random() < 0.06
    count = rng.choices((1, 2, 3, 4, 6, 8), (1, 2, 2, 2, 2, 1))[0]
    save_every = "1s" if rng.random() < 0.6 else f"{rng.randint(3, 12)}u"
    workers, envs = rng.choice((3, 4)), rng.choice((4, 8))
    steps = rng.randint(*STEPS)
    resumes = rng.random() < 0.4
    if few:
        # One worker more than may be replaced; restarts of the engine would count anew.
        restarts = 0
        roles: list[Role] = ["rollout"] * (FEW_RESTARTS + 1)
        signals: list[Signal] = [rng.choice(SIGNALS[:2]) for _ in roles]
        moments: list[Moment] = ["training"] * len(roles)
    else:
        roles, signals = _targets(rng, count, restarts)
        moments = sorted((rng.choices(MOMENTS, (3, 4, 2, 2))[0] for _ in roles), key=MOMENTS.index)
    faults = tuple(_fault(rng, *one) for one in zip(roles, signals, moments, strict=True))
    return RunPlan(
        seed=seed,
        mode=mode,
        workers=workers,
        envs_per_worker=envs,
        total_steps=steps,
        save_every=save_every,
        restarts=restarts,
        worker_restarts=FEW_RESTARTS if few else None,
        faults=faults[:most],
        resumes=resumes,
    )


def _targets(rng: random.Random, count: int, restarts: int) -> tuple[list[Role], list[Signal]]:
    """Roles and signals; what ends the run comes last, if at all."""
    roles: list[Role] = []
    signals: list[Signal] = []
    ends = 0
    for place in range(count):
        last = place == count - 1
        role, signal = rng.choice(TARGETS), rng.choices(SIGNALS, (4, 3, 3))[0]
        if signal != "SIGSTOP" and not last and role != "rollout":
            if role in ENGINE_ENDS and ends < restarts:
                ends += 1
            else:
                role, signal = (role, "SIGSTOP") if rng.random() < 0.5 else ("rollout", signal)
        roles.append(role)
        signals.append(signal)
    return roles, signals


def _fault(rng: random.Random, role: Role, signal: Signal, moment: Moment) -> Fault:
    low, high = START_SECONDS
    delay = {
        "start": low + (high - low) * rng.random() ** 2,
        "training": TRAINING_SECONDS * rng.random(),
        "save": SAVE_SECONDS * rng.random(),
        "end": END_SECONDS * rng.random(),
    }[moment]
    pause = rng.uniform(*PAUSE_SECONDS)
    return Fault(role, signal, moment, delay, pause if signal == "SIGSTOP" else 0.0, rng.random())
