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


def lies_in_memory(images: Tensor | PickedImages) -> bool:
    """Whether the native pass takes these: uint8 on the CPU with not too many channels."""
    if isinstance(images, PickedImages):
        return images.images.shape[1] <= MOST_CHANNELS
    at_hand = images.device.type == "cpu" and images.dtype == torch.uint8
    return at_hand and images.shape[1] <= MOST_CHANNELS


def in_squares(x: Tensor, side: int) -> Tensor:
    """[N, C, H, W] → [N, side·side·C, H/side, W/side]: the pixels of a square become channels.

    What is left over at the lower and right edges is left out. A convolution whose stride is `side`
    is one of stride 1 over that, with its weights in squares as well: the same products, in longer
    runs (see Shi et al. 2016, arXiv:1609.07009, section 3).
    """
    N, C, H, W = x.shape
    h, w = H // side, W // side
    x = x[:, :, : h * side, : w * side].reshape(N, C, h, side, w, side)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(N, side * side * C, h, w)


def to_channels_last(
    images: Tensor | PickedImages,
    dtype: torch.dtype,
    statistics: PixelStatistics | None = None,
    side: int = 1,
) -> Tensor:
    """Images [N, C, H, W] of any dtype → the same in `dtype`, stored channels-last.

    With a `side` of more than 1 their squares are pixels: [N, side·side·C, H/side, W/side], see
    `in_squares`. With statistics (x - mean)·scale, clamped, computed in f32 and rounded once; else
    as they are. uint8 on the CPU takes one native pass, picking included: 4 µs for a row of
    (4, 84, 84) in bf16, where a copy per channel and three passes of arithmetic took 21.
    """
    if not isinstance(images, PickedImages):
        native = images.device.type == "cpu" and images.dtype == torch.uint8
        if native:
            images = PickedImages(images.contiguous(), torch.arange(len(images), device="cpu"))
    if isinstance(images, PickedImages):
        if lies_in_memory(images) and dtype in (torch.bfloat16, torch.float32):
            return _native(images, dtype, statistics, side)
        images = images.copied()
    if statistics is not None:
        images = images.float().sub(statistics.mean).mul_(statistics.scale).clamp_(-CLIP, CLIP)
    images = images.to(dtype)
    if side > 1:
        images = in_squares(images, side)
    return images.contiguous(memory_format=torch.channels_last)


def _native(
    picked: PickedImages, dtype: torch.dtype, statistics: PixelStatistics | None, side: int
) -> Tensor:
    images, rows = picked
    channels, height, width = images.shape[1:]
    shape = (len(rows), height // side, width // side, side * side * channels)
    out = torch.empty(shape, dtype=dtype, device="cpu")
    mean = scale = None
    if statistics is not None:
        mean, scale = statistics.mean.detach(), statistics.scale.detach()
    if dtype == torch.bfloat16:
        images_to_bf16(images, rows, mean, scale, CLIP, out.view(torch.uint16), side)
    else:
        images_to_f32(images, rows, mean, scale, CLIP, out, side)
    return out.permute(0, 3, 1, 2)
