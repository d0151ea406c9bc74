"""All parameters of a module in one flat tensor.

    flat.data  │ conv1.weight │ conv1.bias │ … │ value_head.bias │   f32 [num_floats]
                     ▲ views                         ▲
                module.conv1.weight            module.value_head.bias

Publishing is then one memcpy, an optimiser step one kernel over one tensor, a gradient norm one
norm, and a reader that copies published weights into `data` has updated its network.
"""

from __future__ import annotations

import copy
import math
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

# Each parameter starts on a cache line; the gaps stay zero, so no norm or optimiser sees them.
_ALIGNMENT = 16

M = TypeVar("M", bound=nn.Module)


class FlatParameters:
    """Owns the flat f32 storage of a module's parameters and gradients.

    Parameters and their `.grad` are views of it: nobody may replace them afterwards (`module.to`,
    `zero_grad(set_to_none=True)`); `load_state_dict` copies in place and is fine.

    Attributes:
        module: the module whose parameters are views.
        data: f32 [num_floats], the parameters, in the order of `module.parameters()`.
        grad: f32 [num_floats], where backward passes accumulate.
        parameter: `data` as the one parameter that an optimiser takes; its `.grad` is `grad`.
        num_floats: length of the flat tensors, alignment gaps included. It depends on the module's
            structure alone, so that equal modules in different processes agree on it.
    """

    def __init__(self, module: nn.Module) -> None:
        """Move the parameters of `module` into flat storage on their device.

        Raises:
            ValueError: where a parameter is not f32, or they are on several devices.
        """
        parameters = dict(module.named_parameters())
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                raise ValueError(f"parameter {name} is {parameter.dtype}, expected torch.float32")
        devices = {parameter.device for parameter in parameters.values()}
        if len(devices) != 1:
            raise ValueError(f"parameters are on {sorted(map(str, devices))}, expected one device")
        self.module = module
        self.offsets: dict[str, int] = {}
        self.num_floats = 0
        for name, parameter in parameters.items():
            self.offsets[name] = self.num_floats
            self.num_floats += math.ceil(parameter.numel() / _ALIGNMENT) * _ALIGNMENT
        device = devices.pop()
        self.data = torch.zeros(self.num_floats, device=device)
        self.grad = torch.zeros(self.num_floats, device=device)
        for name, parameter in parameters.items():
            offset = self.offsets[name]
            stored = flat_view(self.data, offset, parameter.shape)
            stored.copy_(parameter.data)
            parameter.data = stored
            parameter.grad = flat_view(self.grad, offset, parameter.shape)
        self.parameter = nn.Parameter(self.data)
        self.parameter.grad = self.grad

    def zero_grad(self) -> None:
        """Set all gradients to zero; they stay views of `grad`."""
        self.grad.zero_()


def flat_view(flat: Tensor, offset: int, shape: torch.Size) -> Tensor:
    """The parameter of `shape` that starts at `offset` of the flat tensor.

    Convolution weights too are stored contiguously: channels-last ones were not measurably faster
    even for channels-last images.
    """
    return flat[offset : offset + shape.numel()].view(shape)


class CastCopy(Generic[M]):
    """A copy of one submodule in another dtype, fed from the flat f32 parameters.

    Parts with a true attribute `always_f32` are not copied: the copy shares them.

    Attributes:
        module: the copy; its own parameters are views of one flat tensor and take no gradient.
    """

    def __init__(self, flat: FlatParameters, submodule: M, dtype: torch.dtype) -> None:
        """Copy `submodule`, which is part of `flat.module`, and fill it.

        Raises:
            ValueError: where `submodule` is not a part of `flat.module`.
        """
        prefix = next((n for n, m in flat.module.named_modules() if m is submodule), None)
        if prefix is None:
            raise ValueError("the submodule to copy is not part of the flattened module")
        shared = {id(m): m for m in submodule.modules() if getattr(m, "always_f32", False)}
        kept = {id(parameter) for m in shared.values() for parameter in m.parameters()}
        self.module: M = copy.deepcopy(submodule, {**shared}).requires_grad_(False)
        cast = {n: p for n, p in self.module.named_parameters() if id(p) not in kept}
        offsets = {name: flat.offsets[_join(prefix, name)] for name in cast}
        start = min(offsets.values())
        end = max(offsets[name] + parameter.numel() for name, parameter in cast.items())
        # A module's parameters are neighbours in the order of registration: one slice holds them.
        self._source = flat.data[start:end]
        self._target = torch.empty(end - start, dtype=dtype, device=flat.data.device)
        for name, parameter in cast.items():
            parameter.data = flat_view(self._target, offsets[name] - start, parameter.shape)
            parameter.grad = None
        self.refresh()

    def refresh(self) -> None:
        """Take over the current f32 parameters: one pass, in place, nothing allocated."""
        self._target.copy_(self._source)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
