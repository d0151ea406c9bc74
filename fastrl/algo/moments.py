"""Running mean and variance of observations, merged batch by batch.

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
