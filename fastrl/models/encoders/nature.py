"""The convolutional network of Mnih et al. 2015 ("Human-level control through deep reinforcement
learning", Nature 518), initialised orthogonally as in OpenAI's PPO, and a smaller one for images
that are too small for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fastrl.models.encoders.layers import IN_PLACE, first_convolution, flat_pixels, orthogonal

if TYPE_CHECKING:
    from fastrl.models.normalizer import ObservationNormalizer
    from fastrl.models.pixels import PickedImages

CHANNELS = (32, 64, 64)
FEATURES = 512
SMALL_FEATURES = 256
MIN_SIZE = 36
"""Of smaller images the three convolutions leave nothing."""


class _ThreeConvolutions(nn.Module):
    """Three convolutions and a linear layer, each with an activation (ReLU in the paper)."""

    def __init__(
        self,
        conv1: nn.Conv2d,
        conv2: nn.Conv2d,
        conv3: nn.Conv2d,
        pixels: int,
        features: int,
        scale: float,
        activation: str,
    ) -> None:
        """Join the layers; `pixels` is H·W of what the last convolution gives."""
        super().__init__()
        self.activation = activation
        self.scale = scale
        self.size_out = features
        self.conv1, self.conv2, self.conv3 = conv1, conv2, conv3
        self.fc = nn.Linear(conv3.out_channels * pixels, features)
        for layer in (self.conv1, self.conv2, self.conv3, self.fc):
            orthogonal(layer, math.sqrt(2.0))

    def forward(
        self, obs: Tensor | PickedImages, normalizer: ObservationNormalizer | None = None
    ) -> Tensor:
        """Images [N, C, H, W], any dtype → features [N, size_out] in the compute dtype.

        A normaliser takes the place of the constant scale.
        """
        act = IN_PLACE[self.activation]
        x = act(first_convolution(self.conv1, obs, self.scale, normalizer))
        x = act(self.conv2(x))
        x = act(self.conv3(x))
        return act(self.fc(flat_pixels(x)))


class NatureEncoder(_ThreeConvolutions):
    """Convolutions 32×8×8/4, 64×4×4/2, 64×3×3/1, then a linear layer of 512."""

    def __init__(
        self,
        shape: tuple[int, ...],
        scale: float = 1.0 / 255.0,
        channels: tuple[int, ...] = CHANNELS,
        features: int = FEATURES,
        activation: str = "relu",
    ) -> None:
        """Build for images of `shape` (C, H, W), whose values `scale` brings to about [0, 1].

        Raises:
            ValueError: where the shape is not (C, H, W) with H and W of at least 36.
        """
        if len(shape) != 3 or min(shape[1:]) < MIN_SIZE:
            raise ValueError(
                f"an image observation has shape {tuple(shape)}, "
                f"expected (channels, height, width) with height and width of at least {MIN_SIZE} "
                "for the model nature (auto and impala take smaller ones)"
            )
        first, second, third = channels
        height, width = (((size - 8) // 4 + 1 - 4) // 2 - 1 for size in shape[1:])
        super().__init__(
            nn.Conv2d(shape[0], first, 8, stride=4),
            nn.Conv2d(first, second, 4, stride=2),
            nn.Conv2d(second, third, 3),
            height * width,
            features,
            scale,
            activation,
        )


class SmallImageEncoder(_ThreeConvolutions):
    """Padded 3×3 convolutions of strides 1, 2 and 2, then a linear layer of 256.

    For images from 1×1 up. The first stride is 1, since in a grid of symbols each cell counts; the
    others bring 35×35 to 9×9, so that the linear layer stays small.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        scale: float = 1.0 / 255.0,
        channels: tuple[int, ...] = CHANNELS,
        features: int = SMALL_FEATURES,
        activation: str = "relu",
    ) -> None:
        """Build for images of `shape` (C, H, W), whose values `scale` brings to about [0, 1]."""
        first, second, third = channels
        height, width = (math.ceil(size / 4) for size in shape[1:])
        super().__init__(
            nn.Conv2d(shape[0], first, 3, padding=1),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.Conv2d(second, third, 3, stride=2, padding=1),
            height * width,
            features,
            scale,
            activation,
        )
