"""Values in units of the returns' deviation, by statistics that are part of the published weights.

The value head gives v̂ and V = mean + std·v̂, so that the value loss is of the same size whatever
rewards an environment has. When the statistics change, the head's weights are changed with them,
so that no V does: PopArt, van Hasselt et al. 2016, "Learning values across many orders of
magnitude" (arXiv:1602.07714).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIN_STD = 1e-4
"""The least deviation, as in the paper: of returns that do not vary nothing is divided by 0."""


class ReturnNormalizer(nn.Module):
    """V = mean + std·v̂ and back.

    The statistics are parameters without gradient: so they lie in the flat buffer, and acting and
    training use the very numbers of one version. The learner changes them between batches.

    Attributes:
        mean: f32 [], in units of reward.
        std: f32 [], in units of reward, at least `MIN_STD`.
    """

    def __init__(self) -> None:
        """Begin with mean 0 and deviation 1, with which V is v̂."""
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.std = nn.Parameter(torch.ones(()), requires_grad=False)

    def normalize(self, returns: Tensor) -> Tensor:
        """(returns - mean)/std: f32 of any shape, in units of reward → what v̂ is to be."""
        return (returns - self.mean) / self.std

    def forward(self, normalized_value: Tensor) -> Tensor:
        """V = mean + std·v̂ in units of reward: f32 of any shape, with v̂'s gradient."""
        return torch.addcmul(self.mean, self.std, normalized_value)

    @torch.no_grad()
    def rescale(self, mean: Tensor, std: Tensor, head: nn.Linear) -> None:
        """Take over statistics and change `head`, which gives v̂, so that V stays; all in place.

        Args:
            mean: [] of any float dtype and device, in units of reward.
            std: [] likewise; raised to `MIN_STD` where it is less.
            head: its weight and bias, f32, are on the device of the statistics.
        """
        # Rounded first: the head must fit the numbers that are published.
        mean, std = mean.to(self.mean), std.to(self.std).clamp_min(MIN_STD)
        weight, bias = rescaled(head.weight, head.bias, self.mean, self.std, mean, std)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        self.mean.copy_(mean)
        self.std.copy_(std)


def rescaled(
    weight: Tensor, bias: Tensor, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor
) -> tuple[Tensor, Tensor]:
    """w·σ/σ' and (σ·b + (μ - μ'))/σ', with which σ'·(w'·x + b') + μ' is σ·(w·x + b) + μ for all x.

    Proposition 1 of van Hasselt et al. 2016, in float64: where returns are large and vary little,
    μ - μ' would otherwise lose the bits that matter.

    Args:
        weight: of any shape and float dtype.
        bias: of any shape and float dtype.
        mean: μ [], of any float dtype.
        std: σ [], likewise, more than 0.
        new_mean: μ' [], likewise.
        new_std: σ' [], likewise, more than 0.

    Returns:
        weight and bias, float64 of the arguments' shapes.
    """
    mean, std, new_mean, new_std = (x.double() for x in (mean, std, new_mean, new_std))
    # In this order statistics that stay change no bit: σ·b is exact in float64.
    return weight.double() * (std / new_std), (std * bias.double() + (mean - new_mean)) / new_std
