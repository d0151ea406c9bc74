"""What changes while a run goes on: a learning rate that follows how far the policy moves, how far
that is to be, and the weights of the entropy bonus and of the log barrier.

The first is the rule of Schulman et al. 2017 ("Proximal Policy Optimization Algorithms",
arXiv:1707.06347, section 4) for the coefficient of a KL penalty, which doubles where the divergence
is well over its target and halves where it is well under it, turned on the learning rate and by
smaller steps, as is usual in robot learning (rl_games, rsl_rl).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastrl.config import DEFAULT_ANNEAL_STEPS, LearnOptions

FACTOR = 1.5
"""The rate is multiplied or divided by this."""

TOLERANCE = 2.0
"""A divergence within this factor of the target, either way, leaves the rate as it is."""

MIN_RATE, MAX_RATE = 1e-6, 1e-2
"""The rate is kept within these: it stays able to recover, and Adam stable."""


def adapt_learning_rate(learning_rate: Tensor, kl: Tensor, target: float) -> Tensor:
    """The next learning rate: nothing is read back from the device.

    A `kl` of NaN leaves the rate as it was, since it says nothing: a batch without a kept row has
    no divergence, and the next batch shall not pay for it. (Of weights that are NaN the learner
    finds out by itself.)

    Args:
        learning_rate: [] of any float dtype.
        kl: [], mean divergence of the policy after an update from the one before, in nats.
        target: what `kl` is to be about, more than 0.

    Returns:
        [] of the dtype of `learning_rate`, within `MIN_RATE` and `MAX_RATE` unless `kl` is NaN.
    """
    slower = torch.where(kl > target * TOLERANCE, learning_rate / FACTOR, learning_rate)
    adapted = torch.where(kl < target / TOLERANCE, learning_rate * FACTOR, slower)
    return torch.where(kl.isnan(), learning_rate, adapted.clamp(MIN_RATE, MAX_RATE))


def entropy_coef(options: LearnOptions, steps: float) -> float:
    """Weight of the entropy bonus after so many steps."""
    return _fallen(options.entropy_coef, options.entropy_final, options, steps)


def barrier_coef(options: LearnOptions, steps: float) -> float:
    """Weight of the log barrier after so many steps."""
    return _fallen(options.barrier_coef, options.barrier_final, options, steps)


def target_kl(options: LearnOptions, steps: float) -> float:
    """Divergence that a batch is to come to after so many steps, in nats."""
    return _fallen(options.target_kl, options.target_kl_final, options, steps)


def _fallen(start: float, final: float | None, options: LearnOptions, steps: float) -> float:
    """Linearly from `start` to `final` over `anneal_steps`, and stays; where there is no `final`
    it stays at `start`."""
    if final is None:
        return start
    share = min(1.0, steps / (options.anneal_steps or DEFAULT_ANNEAL_STEPS))
    return start + share * (final - start)
