"""Images as environments give them to what convolutions read: normalised, channels-last."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastrl.kernels import MOST_CHANNELS, images_to_bf16, images_to_f32

CLIP = 5.0
"""Normalised observations are clamped to plus and minus this."""


class PixelStatistics(NamedTuple):
    """What is subtracted from a pixel and what the rest is multiplied with, f32 [C, H, W]."""

    mean: Tensor
    scale: Tensor


class PickedImages(NamedTuple):
    """Images that lie in a larger array, to be read where they are: no copy is made of them."""

    images: Tensor
    """uint8 [R, C, H, W] on the CPU."""
    rows: Tensor
    """int64 [N]: which of them, in which order."""

    def part(self, start: int, stop: int) -> PickedImages:
        """The picked ones from `start` up to `stop`."""
        return PickedImages(self.images, self.rows[start:stop])

    def copied(self) -> Tensor:
        """uint8 [N, C, H, W]: the picked ones in an array of their own."""
        return self.images[self.rows]


def to_channels_last(
    images: Tensor | PickedImages, dtype: torch.dtype, statistics: PixelStatistics | None = None
) -> Tensor:
    """Images [N, C, H, W] of any dtype → the same in `dtype`, stored channels-last.

    With statistics (x - mean)·scale, clamped, computed in f32 and rounded once; else as they are.
    uint8 on the CPU takes one native pass, picking included: 4 µs for a (4, 84, 84) row in bf16,
    where a copy per channel and three passes of arithmetic took 21.
    """
    if not isinstance(images, PickedImages):
        native = images.device.type == "cpu" and images.dtype == torch.uint8
        if native:
            images = PickedImages(images.contiguous(), torch.arange(len(images), device="cpu"))
    if isinstance(images, PickedImages):
        channels = images.images.shape[1]
        if channels <= MOST_CHANNELS and dtype in (torch.bfloat16, torch.float32):
            return _native(images, dtype, statistics)
        images = images.copied()
    if statistics is not None:
        images = images.float().sub(statistics.mean).mul_(statistics.scale).clamp_(-CLIP, CLIP)
    return images.to(dtype, memory_format=torch.channels_last)


def _native(picked: PickedImages, dtype: torch.dtype, statistics: PixelStatistics | None) -> Tensor:
    images, rows = picked
    shape = (len(rows), *images.shape[2:], images.shape[1])
    out = torch.empty(shape, dtype=dtype, device="cpu")
    mean = scale = None
    if statistics is not None:
        mean, scale = statistics.mean.detach(), statistics.scale.detach()
    if dtype == torch.bfloat16:
        images_to_bf16(images, rows, mean, scale, CLIP, out.view(torch.uint16))
    else:
        images_to_f32(images, rows, mean, scale, CLIP, out)
    return out.permute(0, 3, 1, 2)
