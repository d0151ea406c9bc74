"""IMPALA: V-trace targets with V-trace's own policy gradient.

After Espeholt et al. 2018 ("IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", arXiv:1802.01561), section 4.2. It was published with TensorFlow's
RMSProp (``--optimizer rmsprop``, decay 0.99, epsilon 0.1), one pass over each batch and λ = 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastrl.algo.losses import (
    LossRows,
    LossTerms,
    TargetRows,
    count_valid,
    diagnostics,
    impala_policy_gradient,
    importance_log_ratio,
    log_barrier,
    mean_over_valid,
    squared_value_error,
)
from fastrl.algo.vtrace import VTraceReturns, vtrace_impala
from fastrl.config import LearnOptions


def targets(rows: TargetRows, options: LearnOptions) -> VTraceReturns:
    """Targets and advantages of a minibatch by the current network, see `vtrace_impala`."""
    return vtrace_impala(
        *rows,
        gamma=options.gamma,
        lambda_=options.gae_lambda,
        rho_bar=options.rho_bar,
        c_bar=options.c_bar,
    )


def loss(rows: LossRows, options: LearnOptions) -> LossTerms:
    """`impala_loss` by the run's options."""
    return impala_loss(
        rows.log_prob,
        rows.entropy,
        rows.value,
        rows.behaviour_log_prob,
        rows.returns,
        rows.weight,
        rows.ignored,
        value_coef=options.value_coef,
        entropy_coef=options.entropy_coef,
        kl_from_uniform=rows.kl_from_uniform,
        barrier_coef=options.barrier_coef,
        rho_bar=options.rho_bar,
    )


def impala_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    behaviour_log_prob: Tensor,
    returns: VTraceReturns,
    weight: Tensor,
    ignored: Tensor,
    *,
    value_coef: float,
    entropy_coef: float,
    rho_bar: float = 1.0,
    kl_from_uniform: Tensor | None = None,
    barrier_coef: float = 0.0,
) -> LossTerms:
    """IMPALA's policy gradient, value error, entropy and log barrier of one minibatch.

    Arguments as in `appo_loss`, with `returns` from `vtrace_impala`. Advantages are not normalised.
    """
    num_valid = count_valid(ignored)
    unused = weight == 0
    log_ratio = importance_log_ratio(log_prob.detach(), behaviour_log_prob, unused)
    log_prob = log_prob.masked_fill(unused, 0.0)
    policy_loss = impala_policy_gradient(log_prob, returns.advantage, weight, num_valid)
    value_loss = squared_value_error(value, returns.vs, weight, num_valid)
    entropy = mean_over_valid(entropy, weight, num_valid)
    penalty, barrier = log_barrier(kl_from_uniform, weight, num_valid, barrier_coef)
    return LossTerms(
        policy_loss + value_coef * value_loss - entropy_coef * entropy + penalty,
        policy_loss.detach(),
        value_loss.detach(),
        entropy.detach(),
        barrier,
        *diagnostics(
            log_ratio,
            torch.ones_like(log_ratio),
            value.detach(),
            returns.vs,
            weight,
            math.inf,
            rho_bar,
        ),
    )
