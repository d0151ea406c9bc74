"""Modules of the user's own as encoders."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fastrl.models.encoders.layers import (
    compute_dtype,
    one_hot_of,
    pixel_scale,
)
from fastrl.models.pixels import PickedImages, to_channels_last

if TYPE_CHECKING:
    from fastrl.envs.spec import ObservationSpec
    from fastrl.models.normalizer import ObservationNormalizer
    from fastrl.models.registry import BuildModel


class UserEncoder(nn.Module):
    """A module of the user's own, and what prepares observations for it.

    Attributes:
        net: the module, a copy of what the builder returned.
        size_out: width F of its features.
    """

    def __init__(self, name: str, build: BuildModel, spec: ObservationSpec) -> None:
        """Build the encoder of a leaf `spec` and try it on two rows of zeros.

        Raises:
            ValueError: where what `build` returned cannot be used; says what `name` has to change.
        """
        super().__init__()
        self._image = spec.kind == "image"
        self._scale = pixel_scale(spec)
        self.one_hot = one_hot_of(spec)
        self._shape = tuple(spec.shape) if self.one_hot is None else (self.one_hot.size,)
        try:
            net = build(spec)
        except Exception as error:
            raise ValueError(
                f"model {name!r} could not be built: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(net, nn.Module):
            raise ValueError(
                f"the function of model {name!r} returns {_described(net)}, "
                "expected a torch.nn.Module"
            )
        _refuse_unlike_training(name, net)
        # A copy: a builder may return one module at each call, but towers share no weights, nor do
        # a learner and a policy in one process.
        self.net = copy.deepcopy(net)
        if next(self.net.parameters(), None) is None:
            raise ValueError(f"model {name!r} has no parameters, expected some to train")
        for key, parameter in self.net.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"parameter {key} of model {name!r} is {parameter.dtype}, "
                    "expected torch.float32"
                )
        self.size_out = self._measure(name, spec)

    @torch.no_grad()
    def _measure(self, name: str, spec: ObservationSpec) -> int:
        """Width of the features of two rows of zeros."""
        obs = torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype))
        shape = (2, *self._shape)
        buffers = {key: buffer.clone() for key, buffer in self.net.named_buffers()}
        try:
            features = self(obs)
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(
                f"model {name!r} fails on observations of shape {shape}: {reason}"
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[0] != 2:
            raise ValueError(
                f"model {name!r} maps observations of shape {shape} to {_described(features)}, "
                "expected features of shape (2, F)"
            )
        for key, buffer in self.net.named_buffers():
            if key in buffers and not torch.equal(buffer, buffers[key]):
                raise ValueError(
                    f"buffer {key} of model {name!r} changes with the observations, but only "
                    "parameters are published to the policy that acts, expected it to be constant"
                )
        return features.shape[1]

    def forward(
        self, obs: Tensor | PickedImages, normalizer: ObservationNormalizer | None = None
    ) -> Tensor:
        """Observations of the leaf's own form [N, ...] → the module's features [N, size_out]."""
        dtype = compute_dtype(next(self.net.parameters()))
        if self.one_hot is not None:
            assert not isinstance(obs, PickedImages)
            x = self.one_hot(obs).to(dtype)
        elif self._image:
            if normalizer is None:
                x = to_channels_last(obs, dtype).mul_(self._scale)
            else:
                x = normalizer(obs, dtype)
        elif normalizer is None:
            assert not isinstance(obs, PickedImages)
            # Copied even where nothing changes: the module may work in place.
            x = obs.to(dtype, copy=True)
        else:
            x = normalizer(obs, dtype)
        # A copy in bf16 too runs under autocast: so what works in training works in acting, where
        # a part of the module computes in f32.
        with _autocast(x.device.type, dtype):
            features: Tensor = self.net(x)
        return features


def _autocast(device_type: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype)


def _refuse_unlike_training(name: str, net: nn.Module) -> None:
    """Refuse layers whose output for a row is not a function of the row and the parameters."""
    for key, layer in net.named_modules():
        running = isinstance(layer, _NormBase) and layer.track_running_stats
        if running or isinstance(layer, _BatchNorm | _DropoutNd):
            raise ValueError(
                f"model {name!r} has a {type(layer).__name__}{f' at {key}' if key else ''}, with "
                "which acting and training would differ, expected none (LayerNorm and GroupNorm "
                "do no harm)"
            )


def _described(value: object) -> str:
    """What a user's function returned, short enough for a sentence."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
