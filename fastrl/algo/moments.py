"""Running mean and variance of observations and of returns, merged batch by batch.

After Chan, Golub, LeVeque 1979 ("Updating formulae and a pairwise algorithm for computing sample
variances"): the moments of two sets from those of each, without the cancellation of sums of
squares.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Of all rows so far: float64, in the units of the rows."""

    num_rows: float
    mean: Tensor
    """[*shape]."""
    variance: Tensor
    """[*shape], of the population; 0 before the first row."""


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of no rows."""
    return Moments(0.0, torch.zeros(shape, dtype=torch.float64), torch.zeros(shape).double())


def merge_moments(moments: Moments, rows: Tensor) -> Moments:
    """Moments of what `moments` describes and of `rows` ([N, *shape], any dtype, N >= 1)."""
    added = float(len(rows))
    rows = rows.float()
    mean = rows.mean(0)
    variance = (rows - mean).square_().mean(0).double()
    count = moments.num_rows + added
    delta = mean.double() - moments.mean
    within = (moments.variance * moments.num_rows + variance * added) / count
    between = delta.square() * (moments.num_rows * added / count**2)
    return Moments(count, moments.mean + delta * (added / count), within + between)


class ReturnMoments(NamedTuple):
    """Of the returns so far: float64 [], on the device of the returns, in units of reward."""

    num_rows: Tensor
    """Rows that the moments stand for; forgotten ones no longer count."""
    mean: Tensor
    variance: Tensor
    """Of the population; 1 before the first row, so that nothing is scaled by it."""


def no_returns(device: torch.device | str = "cpu") -> ReturnMoments:
    """Moments of no returns: mean 0 and variance 1, as `ReturnNormalizer` begins."""
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return ReturnMoments(zero, zero.clone(), torch.ones_like(zero))


@torch.no_grad()
def merge_returns(
    moments: ReturnMoments, values: Tensor, valid: Tensor, longest: float
) -> ReturnMoments:
    """Moments of what `moments` describes and of the valid rows; nothing is read back.

    All that came before weighs as min(num_rows, longest) rows, so that old returns are forgotten:
    the policy improves, and with it returns move. No valid row, no change.

    Args:
        moments: of earlier returns, on the device of `values`.
        values: [T, B] (or any shape) of any float dtype, in units of reward; anything, NaN
            included, where not valid.
        valid: bool of the same shape.
        longest: bound of the earlier rows' weight, 0 or more; `math.inf` forgets nothing.
    """
    invalid = ~valid
    values = values.double().masked_fill(invalid, 0.0)
    added = valid.sum().double()
    divisor = added.clamp_min(1.0)
    mean = values.sum() / divisor
    variance = (values - mean).masked_fill(invalid, 0.0).square().sum() / divisor
    num_rows = moments.num_rows.clamp(max=longest) + added
    share = added / num_rows.clamp_min(1.0)
    delta = mean - moments.mean
    merged = ReturnMoments(
        num_rows,
        moments.mean + delta * share,
        torch.lerp(moments.variance, variance, share) + delta.square() * (share * (1.0 - share)),
    )
    any_valid = added > 0
    return ReturnMoments(
        *(torch.where(any_valid, new, old) for new, old in zip(merged, moments, strict=True))
    )
