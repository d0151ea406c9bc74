"""What the encoders have in common: initial weights, compute formats, pixels, one-hot rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fastrl.kernels import elu_bf16
from fastrl.models.pixels import PickedImages, in_squares, lies_in_memory, to_channels_last

if TYPE_CHECKING:
    from fastrl.envs.spec import ObservationSpec
    from fastrl.models.normalizer import ObservationNormalizer


class _LowElu(torch.autograd.Function):
    """ELU of bf16 numbers on a CPU, over its argument, with the bits of torch's and faster."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # In the order in which it lies: a view, or else this raises.
        words = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
        elu_bf16(words.view(torch.uint16).view(-1))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        back: Tensor = torch.ops.aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y)
        return back


def elu(x: Tensor) -> Tensor:
    """ELU (Clevert et al. 2016) of a tensor, over it."""
    whole = x.is_contiguous(
        memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format
    )
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and whole:
        y: Tensor = _LowElu.apply(x)
        return y
    return F.elu_(x)


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "elu": elu}
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
    side = _square(conv, dtype, images)
    # Cast first, then scale: a bf16 copy of the weights and autocast then give the same bits.
    weight = conv.weight.to(dtype)
    if normalizer is None:
        x = to_channels_last(images, dtype, side=side)
        weight = weight * scale
    else:
        x = normalizer(images, dtype, side)
    if side > 1:
        return F.conv2d(x, in_squares(weight, side), conv.bias)
    return F.conv2d(x, weight, conv.bias, conv.stride, conv.padding)


def _square(conv: nn.Conv2d, dtype: torch.dtype, images: Tensor | PickedImages) -> int:
    """Side of the squares of pixels that `conv` had better see as channels; 1: none.

    Matrix instructions for bf16 want more channels than the 4 of an image: on a processor that has
    them (AMX) it then trains faster (docs/performance.md).
    """
    side = int(conv.stride[0])
    fits = conv.stride == (side, side) and all(size % side == 0 for size in conv.kernel_size)
    plain = conv.padding == (0, 0) and conv.dilation == (1, 1) and conv.groups == 1
    return side if fits and plain and dtype == torch.bfloat16 and lies_in_memory(images) else 1


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
