"""Optimisers of one flat tensor, which skip a step where the device says so.

torch's own classes import its compiler at their first use: 1.2 s of a core and 70 MB at every
start, for one tensor with one group of options. Adam here is torch's own fused kernel, called as
`torch.optim.Adam(fused=True)` calls it.

Nothing here reads a number back from the device.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Optimizer:
    """Owns what it remembers of the gradients of one parameter, which stays its caller's."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """Of the tensors that it remembers, which a checkpoint holds."""

    def __init__(self, parameter: Tensor) -> None:
        """Begin without memory; `parameter` f32 [n] is changed in place by `step`."""
        self._parameter = parameter

    def step(self, gradient: Tensor, learning_rate: Tensor, skip: Tensor) -> None:
        """Make one step; where `skip`, change nothing, whatever the gradient holds.

        Args:
            gradient: f32 [n].
            learning_rate: f32 [].
            skip: bool [], on the parameter's device.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: ``kind`` and the tensors, not copied."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in self.names}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` gave, in place; ValueError where it is another optimiser's or size's,
        KeyError where it lacks a tensor."""
        if state["kind"] != self.kind:
            raise ValueError(f"the checkpoint's optimizer is {state['kind']}, not {self.kind}")
        loaded = {name: state[name] for name in self.names}
        for name, tensor in loaded.items():
            if tensor.shape != getattr(self, name).shape:
                raise ValueError(f"{name} of the optimizer has shape {tuple(tensor.shape)}")
        for name, tensor in loaded.items():
            getattr(self, name).copy_(tensor)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) as `torch.optim.Adam` has it."""

    kind = "adam"
    names = ("exp_avg", "exp_avg_sq", "steps")

    def __init__(
        self, parameter: Tensor, eps: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        """`eps` is added to the root of the second moment."""
        super().__init__(parameter)
        self._eps, self._betas = eps, betas
        self.exp_avg = torch.zeros_like(parameter)
        self.exp_avg_sq = torch.zeros_like(parameter)
        self.steps = torch.zeros((), device=parameter.device)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: Tensor, skip: Tensor) -> None:
        """See `Optimizer.step`."""
        found_inf = skip.float()
        self.steps += 1
        torch._fused_adam_(
            [self._parameter],
            [gradient],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.steps],
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )
        self.steps -= found_inf


class RMSProp(Optimizer):
    """RMSProp as TensorFlow has it, which IMPALA and A3C were tuned with.

    The epsilon lies inside the root, and the mean of squares begins at 1: with the epsilon of 0.1
    that IMPALA was published with, another algorithm than `torch.optim.RMSprop`, whose epsilon lies
    outside and whose mean begins at 0.
    """

    kind = "rmsprop"
    names = ("square_avg", "momentum_buffer")

    def __init__(
        self, parameter: Tensor, eps: float, decay: float = 0.99, momentum: float = 0.0
    ) -> None:
        """`eps` is added to the mean of squares, under the root."""
        super().__init__(parameter)
        self._eps, self._decay, self._momentum = eps, decay, momentum
        self.square_avg = torch.ones_like(parameter)
        self.momentum_buffer = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: Tensor, skip: Tensor) -> None:
        """See `Optimizer.step`."""
        gradient = gradient.masked_fill(skip, 0.0)
        moved = self.square_avg.lerp(gradient.square(), 1.0 - self._decay)
        self.square_avg.copy_(torch.where(skip, self.square_avg, moved))
        change = gradient * (self.square_avg + self._eps).rsqrt() * learning_rate
        change += self._momentum * self.momentum_buffer
        self.momentum_buffer.copy_(torch.where(skip, self.momentum_buffer, change))
        self._parameter.sub_(change.masked_fill(skip, 0.0))
