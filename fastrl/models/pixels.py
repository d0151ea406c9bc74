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


def to_channels_last(
    images: Tensor, dtype: torch.dtype, statistics: PixelStatistics | None = None
) -> Tensor:
    """Images [N, C, H, W] of any dtype → the same in `dtype`, stored channels-last.

    With statistics (x - mean)·scale, clamped, computed in f32 and rounded once; else as they are.
    uint8 on the CPU takes one native pass: 4 µs for a (4, 84, 84) row in bf16, where a copy per
    channel and three passes of arithmetic took 21, and `.to(memory_format=...)` alone 35.
    """
    native = images.device.type == "cpu" and images.dtype == torch.uint8
    if native and images.shape[1] <= MOST_CHANNELS and dtype in (torch.bfloat16, torch.float32):
        return _native(images.contiguous(), dtype, statistics)
    if statistics is not None:
        images = images.float().sub(statistics.mean).mul_(statistics.scale).clamp_(-CLIP, CLIP)
    return images.to(dtype, memory_format=torch.channels_last)


def _native(images: Tensor, dtype: torch.dtype, statistics: PixelStatistics | None) -> Tensor:
    count, channels, height, width = images.shape
    out = torch.empty((count, height, width, channels), dtype=dtype)
    mean = scale = None
    if statistics is not None:
        mean, scale = statistics.mean.detach(), statistics.scale.detach()
    every_row = torch.arange(count)
    if dtype == torch.bfloat16:
        words = out.view(torch.uint16)
        images_to_bf16(images, every_row, mean, scale, CLIP, words)
    else:
        images_to_f32(images, every_row, mean, scale, CLIP, out)
    return out.permute(0, 3, 1, 2)
