"""PPO: generalised advantages, computed once per batch, with the clipped surrogate.

After Schulman et al. 2017 ("Proximal Policy Optimization Algorithms", arXiv:1707.06347). The values
are those that the collecting policy gave, so nothing corrects for lag: in ``sync`` there is none.
"""

from __future__ import annotations

from torch import Tensor

from fastrl.algo.appo import loss as loss  # the same surrogate, value error and entropy
from fastrl.algo.vtrace import VTraceReturns, gae
from fastrl.config import LearnOptions


def targets(
    ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    options: LearnOptions,
) -> VTraceReturns:
    """Targets and advantages of a whole batch; arguments as `gae`. `ratio` is 1 everywhere."""
    return gae(
        reward,
        value,
        terminated,
        truncated,
        ignored,
        gamma=options.gamma,
        lambda_=options.gae_lambda,
    )
