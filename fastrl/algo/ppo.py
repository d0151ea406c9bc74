"""PPO: generalised advantages, computed once per batch, with the clipped surrogate.

After Schulman et al. 2017 ("Proximal Policy Optimization Algorithms", arXiv:1707.06347). The values
are those that the collecting policy gave, so nothing corrects for lag: in ``sync`` there is none.
"""

from __future__ import annotations

from fastrl.algo.appo import loss as loss  # the same surrogate, value error and entropy
from fastrl.algo.losses import TargetRows
from fastrl.algo.vtrace import VTraceReturns, gae
from fastrl.config import LearnOptions


def targets(rows: TargetRows, options: LearnOptions) -> VTraceReturns:
    """Targets and advantages of a whole batch, see `gae`; the ratios play no part."""
    _, *others = rows
    return gae(*others, gamma=options.gamma, lambda_=options.gae_lambda)
