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
    separate_critic: bool | None = None
    """Give the value function an encoder of its own. Unset: only for continuous actions with
    vector observations."""

    def __post_init__(self) -> None:
        """Raise ValueError where a layer is empty or the activation is unknown."""
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ValueError(
                f"hidden is {self.hidden}, expected one or more positive widths, such as 64 64"
            )
        if self.activation not in ("tanh", "relu", "elu"):
            raise ValueError(
                f"activation is {self.activation!r}, expected one of 'tanh', 'relu', 'elu'"
            )
