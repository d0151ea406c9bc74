"""Options of the network. Read by every process, so nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the policy and value network."""

    model: str = "auto"
    """Encoder of each observation leaf: auto (Nature CNN for images, MLP for the rest), or a name
    given to register_model."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for vector and discrete observations."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation after each hidden layer (images always use relu)."""
    normalize_obs: bool | None = None
    """Normalise observations by their running mean and deviation, per pixel or element. Unset: the
    preset's."""
    normalize_returns: bool | None = None
    """Scale returns to mean 0 and deviation 1 for the value function, whose last layer is rescaled
    so that no value changes (PopArt). Unset: the preset's."""
    separate_critic: bool | None = None
    """Give the value function an encoder of its own. Unset: only for continuous actions with
    vector observations."""
