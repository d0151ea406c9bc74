"""Options of the network. Read by every process, so nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastrl.errors import ConfigError
from fastrl.option_types import shown

AUTO = "auto"
CNNS = ("nature", "impala")
MAX_WIDTH = 2**16
"""Of one layer; a number above it is a slip of the pen, and would be found by running out of
memory."""
BUILT_IN = (AUTO, "mlp", *CNNS)
"""Names of the encoders that come with the engine."""


DEFAULT_HIDDEN, DEFAULT_ACTIVATION = (64, 64), "tanh"
"""Of a network that is built without a preset."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the policy and value network."""

    model: str = "auto"
    """Encoder of each observation leaf. auto: a CNN for images (Nature's, or a smaller one below
    36x36) and an MLP for the rest. nature, impala: that CNN for images, an MLP for the rest. mlp:
    an MLP for all. Your own: a name given to register_model, or py:module:Class."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers of MLPs. Unset: the preset's (64 64 for most)."""
    activation: Literal["tanh", "relu", "elu"] | None = None
    """Activation after each hidden layer of MLPs. Unset: the preset's."""
    cnn_activation: Literal["relu", "elu"] | None = None
    """Activation of the CNNs of auto and nature (impala always has relu). Unset: the preset's, else
    relu."""
    channels: tuple[int, ...] | None = None
    """Channels of the CNN: three numbers for auto and nature (default 32 64 64), one per section
    for impala (16 32 32)."""
    image_features: int | None = None
    """Width of the linear layer after the CNN; default 512 for nature, 256 for impala and small
    images."""
    normalize_obs: bool | None = None
    """Normalise observations by their running mean and deviation, per pixel or element. Unset: the
    preset's."""
    normalize_returns: bool | None = None
    """Scale returns to mean 0 and deviation 1 for the value function, whose last layer is rescaled
    so that no value changes (PopArt). Unset: the preset's."""
    initial_std: float | None = None
    """Deviation of continuous actions at the start, where -1 to 1 is an action's range. Unset: the
    preset's, else 1."""
    separate_critic: bool | None = None
    """Give the value function an encoder of its own. Unset: only for continuous actions with
    vector observations."""


def check_cnn(config: ModelConfig) -> None:
    """Refuse sizes of the CNN that `config.model` cannot have.

    Raises:
        ConfigError: naming the option and its value.
    """
    for flag, value in (
        ("--channels", config.channels),
        ("--image-features", config.image_features),
    ):
        if value is None:
            continue
        sizes = (value,) if isinstance(value, int) else value
        given = " ".join(map(shown, sizes)) or "empty"
        if config.model not in (AUTO, *CNNS):
            raise ConfigError(
                f"{flag} is {given}, but --model {config.model} has no such layers; leave it out."
            )
        if not sizes or min(sizes) < 1 or max(sizes) > MAX_WIDTH:
            raise ConfigError(
                f"{flag} is {given}; sizes of layers must be 1 or more, and at most {MAX_WIDTH:,}."
            )
    if config.channels is not None and config.model != "impala" and len(config.channels) != 3:
        raise ConfigError(
            f"--channels is {' '.join(map(str, config.channels))}; the CNN of --model "
            f"{config.model} has three convolutions, so give three numbers, such as 32 64 64."
        )
