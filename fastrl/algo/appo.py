"""Asynchronous PPO: V-trace targets with the clipped surrogate of PPO.

With ``--targets batch`` the surrogate clips around the policy at the batch's start in place of the
one that collected it, and what lies between the two is an importance weight, truncated as V-trace
truncates it. After Hilton et al. 2022 ("Batch size-invariance for policy optimization",
arXiv:2110.00641), who call the two the proximal and the behavior policy: a clip around a policy
that is a batch old also stops rows that this batch has not moved yet.

After Schulman et al. 2017 ("Proximal Policy Optimization Algorithms", arXiv:1707.06347) and
Espeholt et al. 2018 (IMPALA, arXiv:1802.01561), joined as in Petrenko et al. 2020 (Sample Factory,
arXiv:2006.11751).
"""

from __future__ import annotations

from torch import Tensor

from fastrl.algo.losses import (
    LossRows,
    LossTerms,
    TargetRows,
    clipped_surrogate,
    count_valid,
    diagnostics,
    importance_log_ratio,
    log_barrier,
    mean_over_valid,
    normalise_advantage,
    squared_value_error,
)
from fastrl.algo.vtrace import VTraceReturns, vtrace_appo
from fastrl.config import LearnOptions


def targets(rows: TargetRows, options: LearnOptions) -> VTraceReturns:
    """Targets and advantages by the network that `rows.value` is of, see `vtrace_appo`."""
    return vtrace_appo(
        *rows,
        gamma=options.gamma,
        lambda_=options.gae_lambda,
        rho_bar=options.rho_bar,
        c_bar=options.c_bar,
    )


def loss(rows: LossRows, options: LearnOptions) -> LossTerms:
    """`appo_loss` by the run's options."""
    return appo_loss(
        rows.log_prob,
        rows.entropy,
        rows.value,
        rows.behaviour_log_prob,
        rows.returns,
        rows.weight,
        rows.ignored,
        proximal_log_prob=rows.proximal_log_prob,
        clip=options.clip,
        value_coef=options.value_coef,
        entropy_coef=options.entropy_coef,
        kl_from_uniform=rows.kl_from_uniform,
        barrier_coef=options.barrier_coef,
        rho_bar=options.rho_bar,
        normalise=options.normalize_advantage,
    )


def appo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    behaviour_log_prob: Tensor,
    returns: VTraceReturns,
    weight: Tensor,
    ignored: Tensor,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
    rho_bar: float = 1.0,
    normalise: bool = True,
    proximal_log_prob: Tensor | None = None,
    kl_from_uniform: Tensor | None = None,
    barrier_coef: float = 0.0,
) -> LossTerms:
    """Clipped surrogate, value error, entropy and log barrier of one minibatch.

    Args:
        log_prob: f32 [T, B], log π(a) of the current policy, with gradient.
        entropy: f32 [T, B], with gradient.
        value: f32 [T, B], with gradient, in the units of `returns.vs`.
        behaviour_log_prob: f32 [T, B], log μ(a) as stored.
        returns: from `vtrace_appo` or `gae`.
        weight: f32 [T, B], 1 for a row to train on, 0 for an ignored or masked one.
        ignored: bool [T, B].
        clip: ε of the surrogate.
        value_coef: factor of the value loss.
        entropy_coef: factor of the entropy bonus.
        rho_bar: threshold that `rho_clipped_share` counts against, and of the weight below.
        normalise: whether advantages are normalised over the kept rows.
        proximal_log_prob: f32 [T, B], log π'(a), without gradient, of a policy to clip around in
            place of μ: the surrogate is min(ρ̄, π'/μ)·min(w·A, clip(w)·A) with w = π/π'.
        kl_from_uniform: f32 [T, B], with gradient; None without a barrier.
        barrier_coef: factor of the log barrier.
    """
    num_valid = count_valid(ignored)
    unused = weight == 0
    log_ratio = importance_log_ratio(log_prob, behaviour_log_prob, unused)
    advantage = normalise_advantage(returns.advantage, weight) if normalise else returns.advantage
    ratio = log_ratio.exp()
    if proximal_log_prob is not None:
        ratio = importance_log_ratio(log_prob, proximal_log_prob, unused).exp()
        stale = importance_log_ratio(proximal_log_prob, behaviour_log_prob, unused).exp()
        advantage = stale.clamp(max=rho_bar) * advantage
    policy_loss = clipped_surrogate(ratio, advantage, weight, num_valid, clip)
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
            log_ratio.detach(),
            ratio.detach(),
            value.detach(),
            returns.vs,
            weight,
            clip,
            rho_bar,
        ),
    )
