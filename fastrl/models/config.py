"""Options of the network. Read by every process, so nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the policy and value network."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for vector and discrete observations."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation after each hidden layer (images always use relu)."""
    normalize_obs: bool | None = None
    """Normalise observations by their running mean and deviation, per pixel or element. Unset: the
    preset's."""
    separate_critic: bool | None = None
    """Give the value function an encoder of its own. Unset: only for continuous actions with
    vector observations."""
