"""Normalising observations by statistics that are part of the published weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fastrl.envs.spec import ObservationSpec

CLIP = 5.0
"""Normalised observations are clamped to plus and minus this."""


class ObservationNormalizer(nn.Module):
    """(x - mean) * scale, per element, clamped.

    The statistics are parameters without gradient: so they lie in the flat buffer, and acting and
    training use the very numbers of one version. The learner changes them between batches.

    Attributes:
        mean: f32, of an image [H, W, C], as channels-last convolutions read it, else flat.
        scale: f32 of the same shape, 1 / standard deviation.
    """

    def __init__(self, shape: tuple[int, ...], scale: float, image: bool) -> None:
        """Begin with mean 0 and `scale` for observations of `shape` (of an image C, H, W)."""
        super().__init__()
        self._image = image
        stored = (*shape[1:], shape[0]) if image else (math.prod(shape),)
        self.mean = nn.Parameter(torch.zeros(stored), requires_grad=False)
        self.scale = nn.Parameter(torch.full(stored, scale), requires_grad=False)

    @torch.no_grad()
    def set(self, mean: Tensor, variance: Tensor) -> None:
        """Take over statistics of `shape`, any float dtype, in place."""
        # One grey level: pixels that never change would otherwise turn rounding into noise.
        floor = 1.0 if self._image else 1e-6
        scale = (variance + floor).rsqrt()
        if self._image:
            mean, scale = mean.permute(1, 2, 0), scale.permute(1, 2, 0)
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.scale.copy_(scale.reshape(self.scale.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [N, *shape] in its own dtype; x itself is overwritten.

        In bf16 the statistics are rounded to bf16 first, here as in a bf16 copy of the weights, so
        acting and training see the same bits.
        """
        mean, scale = self.mean.to(x.dtype), self.scale.to(x.dtype)
        if self._image:
            mean, scale = mean.permute(2, 0, 1), scale.permute(2, 0, 1)
            return x.sub_(mean).mul_(scale).clamp_(-CLIP, CLIP)
        rows = x if x.ndim == 2 else x.reshape(len(x), -1)
        rows.sub_(mean).mul_(scale).clamp_(-CLIP, CLIP)
        return rows if x.ndim == 2 else rows.view(x.shape)


def has_normalizer(spec: ObservationSpec) -> bool:
    """Whether a leaf can be normalised: numbers can, names of categories cannot."""
    return spec.kind in ("image", "vector")


def normalizer_for(spec: ObservationSpec) -> ObservationNormalizer:
    """The normaliser of an image or vector leaf, which begins as its constant scale would."""
    image = spec.kind == "image"
    scale = 1.0 / 255.0 if spec.dtype == "uint8" else 1.0
    return ObservationNormalizer(tuple(spec.shape), scale, image)
