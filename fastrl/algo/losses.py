"""What the losses of all algorithms are made of; see `appo`, `impala` and `ppo`.

Every mean is the same mean: a sum over the kept rows, divided by the number of rows that are not
ignored. `weight` says which rows are kept: f32 of any shape, 1 for a row to train on, 0 for an
ignored row and for one masked for its age. A masked row so makes the step smaller instead of
making the others count more. An ignored row's action had no effect, so its log-probability may be
anything, infinite included: it is replaced before it is used, not multiplied by 0. Entropies and
values are finite everywhere.

Nothing here reads a number back from the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastrl.algo.vtrace import VTraceReturns


class TargetRows(NamedTuple):
    """What targets are computed from; of T steps of B columns, `value` with row T as well."""

    ratio: Tensor
    """f32 [T, B], π/μ of the action taken, 1 in an ignored row."""
    reward: Tensor
    """f32 [T, B]."""
    value: Tensor
    """f32 [T + 1, B], in units of reward."""
    terminated: Tensor
    """bool [T, B]."""
    truncated: Tensor
    """bool [T, B]."""
    ignored: Tensor
    """bool [T, B]."""


class LossRows(NamedTuple):
    """What the loss of a minibatch is computed from, [T, B] each."""

    log_prob: Tensor
    """f32, log π(a) of the current policy, with gradient."""
    entropy: Tensor
    """f32, with gradient."""
    value: Tensor
    """f32, with gradient, in the units of `returns.vs`."""
    behaviour_log_prob: Tensor
    """f32, log μ(a) as stored."""
    returns: VTraceReturns
    """What the algorithm's `targets` gave."""
    weight: Tensor
    """f32, 1 for a row to train on, 0 for an ignored or masked one."""
    ignored: Tensor
    """bool."""
    proximal_log_prob: Tensor | None = None
    """f32, log π(a) of the policy around which the surrogate clips; None: of the behaviour."""
    kl_from_uniform: Tensor | None = None
    """f32, KL(uniform‖π), with gradient; None where the barrier has no weight."""


class LossTerms(NamedTuple):
    """The loss to minimise and what is worth plotting about it; all 0-dimensional f32."""

    loss: Tensor
    """policy_loss + value_coef·value_loss - entropy_coef·entropy + barrier_coef·barrier; the only
    one with a gradient."""
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    barrier: Tensor
    """Mean of KL(uniform‖π); NaN where it has no weight: not to be plotted."""
    approx_kl: Tensor
    """KL(μ‖π) by the k3 estimator (w - 1) - log w (Schulman 2020), 0 or more."""
    clipfrac: Tensor
    """Share of kept rows whose ratio lies outside the surrogate's clip range; 0 for IMPALA."""
    rho_clipped_share: Tensor
    """Share of kept rows whose ratio to the behaviour exceeds ρ̄."""
    explained_variance: Tensor
    """1 - Var(v - V)/Var(v) over kept rows; NaN where v does not vary: not to be plotted."""


def importance_log_ratio(log_prob: Tensor, behaviour_log_prob: Tensor, unused: Tensor) -> Tensor:
    """log w = log π - log μ, f32 of the arguments' shape; 0, without gradient, where `unused`.

    Bounded by ±20, far outside every clip range, so that w is finite: the gradient of a clipped
    infinity is 0·∞, and one such row would make every parameter NaN.
    """
    return (log_prob - behaviour_log_prob).masked_fill(unused, 0.0).clamp(-20.0, 20.0)


def mean_over_valid(x: Tensor, weight: Tensor, num_valid: Tensor) -> Tensor:
    """Σ weight·x / num_valid, the mean of this module: f32 [] from f32 tensors of one shape.

    A dot product: one kernel forward, one backward. What x holds at weight 0 must be finite.
    """
    return torch.dot(weight.flatten(), x.flatten()) / num_valid


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, weight: Tensor, num_valid: Tensor, clip: float
) -> Tensor:
    """-min(w·A, clip(w, 1-ε, 1+ε)·A) (Schulman et al. 2017, equation 7)."""
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    return -mean_over_valid(surrogate, weight, num_valid)


def impala_policy_gradient(
    log_prob: Tensor, advantage: Tensor, weight: Tensor, num_valid: Tensor
) -> Tensor:
    """-A·log π, A with its own min(ρ̄_pg, w) (Espeholt et al. 2018, section 4.2)."""
    return -mean_over_valid(advantage * log_prob, weight, num_valid)


def squared_value_error(value: Tensor, target: Tensor, weight: Tensor, num_valid: Tensor) -> Tensor:
    """½·(v - target)²."""
    return 0.5 * mean_over_valid((value - target).square(), weight, num_valid)


def log_barrier(
    kl_from_uniform: Tensor | None, weight: Tensor, num_valid: Tensor, coef: float
) -> tuple[Tensor, Tensor]:
    """coef·KL(uniform‖π), and the mean of KL(uniform‖π) itself without gradient; 0 and NaN for
    None. After Agarwal et al. 2021 ("On the theory of policy gradient methods", arXiv:1908.00261,
    section 5.2).

    The bonus on entropy is not enough to bring an action back: its gradient by a logit vanishes
    with the action's probability p, as the surrogate's does. This one's is p - 1/n.
    """
    if kl_from_uniform is None:
        return num_valid.new_zeros(()), num_valid.new_full((), torch.nan)
    barrier = mean_over_valid(kl_from_uniform, weight, num_valid)
    return coef * barrier, barrier.detach()


def normalise_advantage(advantage: Tensor, weight: Tensor, eps: float = 1e-8) -> Tensor:
    """(A - mean)/(std + eps) over the kept rows, 0 elsewhere; all 0 where fewer than two are kept.

    The standard deviation is that of a sample (n - 1), as in `torch.std`.
    """
    kept = weight.sum()
    centred = (advantage - mean_over_valid(advantage, weight, kept.clamp_min(1.0))) * weight
    std: Tensor = torch.linalg.vector_norm(centred) / (kept - 1.0).clamp_min(1.0).sqrt()
    return centred / (std + eps)


def count_valid(ignored: Tensor) -> Tensor:
    """Rows that are not ignored, what every mean is divided by: f32 []; 1 where there are none."""
    return (~ignored).sum().clamp_min(1).float()


def diagnostics(
    log_ratio: Tensor,
    clipped: Tensor,
    value: Tensor,
    target: Tensor,
    weight: Tensor,
    clip: float,
    rho_bar: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The last four fields of `LossTerms`, over kept rows alone; `clipped` is the ratio that the
    surrogate clips, `log_ratio` that to the behaviour."""
    kept = weight.sum().clamp_min(1.0)
    ratio = log_ratio.exp()

    def mean(x: Tensor) -> Tensor:
        return mean_over_valid(x, weight, kept)

    def variance(x: Tensor) -> Tensor:
        return mean((x - mean(x)).square())

    total = variance(target)
    return (
        mean(ratio - 1.0 - log_ratio).clamp_min(0.0),  # of rounding alone it may be less
        mean(((clipped - 1.0).abs() > clip).float()),
        mean((ratio > rho_bar).float()),
        torch.where(total > 0, 1.0 - variance(target - value) / total, torch.nan),
    )
