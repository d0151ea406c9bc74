"""What the encoders have in common: initial weights, compute formats, pixels, one-hot rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrl.models.pixels import PickedImages, to_channels_last

if TYPE_CHECKING:
    from fastrl.envs.spec import ObservationSpec
    from fastrl.models.normalizer import ObservationNormalizer


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "elu": F.elu_}
"""Activations of CNNs by name, over their own argument."""


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights (Saxe et al. 2014) times `gain`, zero bias, in place."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """What a layer with this weight computes in: autocast's dtype where it is on, else its own."""
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype


def pixel_scale(spec: ObservationSpec) -> float:
    """What brings the values of an image leaf to about [0, 1]."""
    return 1.0 / 255.0 if spec.dtype == "uint8" else 1.0


def first_convolution(
    conv: nn.Conv2d,
    images: Tensor | PickedImages,
    scale: float,
    normalizer: ObservationNormalizer | None,
) -> Tensor:
    """`conv` of scaled or normalised images [N, C, H, W], any dtype → channels-last [N, F, H', W'].

    Pixels go up as they are: 0 … 255 are exact in bf16, and the scale is folded into the few
    weights of the convolution instead of being applied to all pixels of every row. A normaliser
    takes the place of the scale.
    """
    dtype = compute_dtype(conv.weight)
    # Cast first, then scale: a bf16 copy of the weights and autocast then give the same bits.
    weight = conv.weight.to(dtype)
    if normalizer is None:
        x = to_channels_last(images, dtype)
        weight = weight * scale
    else:
        x = normalizer(images, dtype)
    return F.conv2d(x, weight, conv.bias, conv.stride, conv.padding)


def flat_pixels(x: Tensor) -> Tensor:
    """[N, C, H, W] → [N, H·W·C], of a channels-last image a view."""
    return x.permute(0, 2, 3, 1).flatten(1)


class OneHot(nn.Module):
    """Integers below their own bounds as rows of zeros and ones, joined.

    Not `F.one_hot`: it checks the range, which reads the device back.

    Attributes:
        size: width of a row, Σ nvec.
    """

    def __init__(self, nvec: tuple[int, ...]) -> None:
        """Build for rows of len(nvec) integers, each below its entry of `nvec`."""
        super().__init__()
        self.size = sum(nvec)
        self.element: Tensor | None
        self.value: Tensor
        element = torch.tensor([i for i, n in enumerate(nvec) for _ in range(n)])
        value = torch.tensor([value for n in nvec for value in range(n)])
        self.register_buffer("element", element if len(nvec) > 1 else None, persistent=False)
        self.register_buffer("value", value, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Integers [N, ...] of any dtype → bool [N, size]."""
        obs = obs.reshape(len(obs), -1)
        if self.element is not None:
            obs = obs.index_select(1, self.element)
        return obs == self.value


def one_hot_of(spec: ObservationSpec) -> OneHot | None:
    """The one-hot rows of a discrete or multi_discrete leaf; None for the other kinds."""
    if spec.kind == "discrete":
        assert spec.n is not None
        return OneHot((spec.n,))
    if spec.kind == "multi_discrete":
        assert spec.nvec is not None
        return OneHot(tuple(spec.nvec))
    return None
