"""What main and the learner tell each other before training; main has no use for torch, so it is
apart from the learner's body."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastrl.config import TrainConfig
from fastrl.envs.spec import EnvSpec
from fastrl.workers.plan import Start
from fastrl.workers.run_folder import Origin


@dataclass(frozen=True)
class LearnerStart:
    """What the learner is told once the configuration is resolved."""

    config: TrainConfig
    spec: EnvSpec
    run_dir: Path
    origin: Origin | None
    models: bytes
    """Models registered in main, by cloudpickle."""


@dataclass(frozen=True)
class Built:
    """What main is told once the network is built and, where there is an origin, restored."""

    config: TrainConfig
    """Without an option that was left open: see `formats.choose_dtype`."""
    num_params: int
    start: Start
    warnings: list[str]
    """About checkpoints that could not be used."""
