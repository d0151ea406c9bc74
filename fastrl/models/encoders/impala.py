"""The residual network of Espeholt et al. 2018 ("IMPALA: Scalable distributed deep-RL with
importance weighted actor-learner architectures", figure 3, right), without its recurrent core.

    pixels ─▶ 3 × [conv 3×3 ─▶ max-pool 3×3 / 2 ─▶ 2 × (x + conv(relu(conv(relu(x)))))]
           ─▶ relu ─▶ linear ─▶ relu
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch.nn.functional as F
from torch import Tensor, nn

from fastrl.models.encoders.layers import first_convolution, flat_pixels, orthogonal

if TYPE_CHECKING:
    from fastrl.models.normalizer import ObservationNormalizer
    from fastrl.models.pixels import PickedImages

CHANNELS = (16, 32, 32)
FEATURES = 256


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), convolutions 3×3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → the same shape."""
        y: Tensor = self.conv2(F.relu_(self.conv1(F.relu(x))))
        return y.add_(x)


class _Section(nn.Module):
    """A convolution, a pooling that halves the image, and two residual blocks."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.residual1 = _Residual(channels)
        self.residual2 = _Residual(channels)

    def after_convolution(self, x: Tensor) -> Tensor:
        """What `conv` gave, [N, C, H, W] → [N, C, ⌈H/2⌉, ⌈W/2⌉]."""
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.residual1(x)
        x = self.residual2(x)
        return x


class ImpalaEncoder(nn.Module):
    """One section per entry of `channels`, then a linear layer, for images from 1×1 up.

    Gains of the initial weights: √2 after a ReLU, 1 where there is none before, and √2 by the root
    of the number of blocks at the end of each, whose sums would otherwise grow from block to block.
    With √2 throughout features were 20 times as large as those of Nature's network; so they are
    alike.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        scale: float = 1.0 / 255.0,
        channels: tuple[int, ...] = CHANNELS,
        features: int = FEATURES,
    ) -> None:
        """Build for images of `shape` (C, H, W), whose values `scale` brings to about [0, 1]."""
        super().__init__()
        self.scale = scale
        self.size_out = features
        self.sections = nn.ModuleList()
        channels_in, (height, width) = shape[0], shape[1:]
        for count in channels:
            self.sections.append(_Section(channels_in, count))
            channels_in, height, width = count, math.ceil(height / 2), math.ceil(width / 2)
        self.fc = nn.Linear(channels_in * height * width, features)
        gain = math.sqrt(2.0)
        for module in self.modules():
            if isinstance(module, _Section):
                orthogonal(module.conv, 1.0)
            elif isinstance(module, _Residual):
                orthogonal(module.conv1, gain)
                orthogonal(module.conv2, gain / math.sqrt(2 * len(channels)))
        orthogonal(self.fc, gain)

    def forward(
        self, obs: Tensor | PickedImages, normalizer: ObservationNormalizer | None = None
    ) -> Tensor:
        """Images [N, C, H, W], any dtype → features [N, size_out] in the compute dtype.

        A normaliser takes the place of the constant scale.
        """
        first, *others = cast("list[_Section]", list(self.sections))
        x = first.after_convolution(first_convolution(first.conv, obs, self.scale, normalizer))
        for section in others:
            x = section.after_convolution(section.conv(x))
        return F.relu_(self.fc(flat_pixels(F.relu_(x))))
