"""Normalising observations by statistics that are part of the published weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fastrl.models.pixels import CLIP, PickedImages, PixelStatistics, to_channels_last

if TYPE_CHECKING:
    from fastrl.envs.spec import ObservationSpec


class ObservationNormalizer(nn.Module):
    """(x - mean) * scale, per element, clamped.

    The statistics are parameters without gradient: so they lie in the flat buffer, and acting and
    training use the very numbers of one version. The learner changes them between batches.

    Attributes:
        mean: f32, of an image [C, H, W], else flat.
        scale: f32 of the same shape, 1 / standard deviation.
    """

    always_f32 = True  # a copy of the encoder in bf16 shares it: see CastCopy

    def __init__(self, shape: tuple[int, ...], scale: float, image: bool) -> None:
        """Begin with mean 0 and `scale` for observations of `shape` (of an image C, H, W)."""
        super().__init__()
        self._image = image
        stored = shape if image else (math.prod(shape),)
        self.mean = nn.Parameter(torch.zeros(stored), requires_grad=False)
        self.scale = nn.Parameter(torch.full(stored, scale), requires_grad=False)

    @torch.no_grad()
    def set(self, mean: Tensor, variance: Tensor) -> None:
        """Take over statistics of `shape`, any float dtype, in place."""
        # One grey level: pixels that never change would otherwise turn rounding into noise.
        floor = 1.0 if self._image else 1e-6
        scale = (variance + floor).rsqrt()
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.scale.copy_(scale.reshape(self.scale.shape))

    def forward(self, obs: Tensor | PickedImages, dtype: torch.dtype, side: int = 1) -> Tensor:
        """Observations [N, *shape] of any dtype → the same, normalised, in `dtype`.

        The arithmetic is f32 and rounded once, whatever `dtype` is: acting and training see the
        same bits, and a large mean costs no digits. An image comes out channels-last, its squares
        of `side` pixels as channels (`in_squares`).
        """
        if self._image:
            return to_channels_last(obs, dtype, PixelStatistics(self.mean, self.scale), side)
        assert not isinstance(obs, PickedImages)
        rows = obs.float().reshape(len(obs), -1)
        rows = rows.sub(self.mean).mul_(self.scale).clamp_(-CLIP, CLIP)
        return rows.view(obs.shape).to(dtype)


def has_normalizer(spec: ObservationSpec) -> bool:
    """Whether a leaf can be normalised: numbers can, names of categories cannot."""
    return spec.kind in ("image", "vector")


def normalizer_for(spec: ObservationSpec) -> ObservationNormalizer:
    """The normaliser of an image or vector leaf, which begins as its constant scale would."""
    image = spec.kind == "image"
    scale = 1.0 / 255.0 if spec.dtype == "uint8" else 1.0
    return ObservationNormalizer(tuple(spec.shape), scale, image)
