"""V-trace targets and advantages over rollouts with NEXT_STEP resets.

After Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures" (arXiv:1802.01561), equation 1 and remark 2, with a λ as in Munos et
al. 2016 (Retrace) and with two kinds of end:

    δ_t = min(ρ̄, w_t)·(r_t + d_t·V_{t+1} - V_t),        d_t = γ·(1 - terminated_t)
    v_t = V_t + δ_t + [not cut at t]·d_t·λ·min(c̄, w_t)·(v_{t+1} - V_{t+1}),        v_T = V_T

cut_t is terminated_t or truncated_t. The row after a cut is a reset row: it shows the final
observation of the ended episode, so its value is what a truncated row bootstraps from; its own
action had no effect, it is `ignored`: v_t = V_t there, and nothing passes through it. The same
holds at both borders. Where row T-1 is cut, row T is the reset row, and V_T = V(final) is what row
T-1 needs; v_T = V_T whether or not row T is ignored. Where row 0 is a reset row, its episode lies
in the previous rollout and nothing here looks back at it.

Rows that are too old to train on are no matter of this file: they keep their place in the trace and
lose only their weight in the loss.

All arguments are f32 or bool on one device, time-major [T, B]; results carry no gradient. The loop
over T is plain: 2 kernels of B elements a step; a parallel scan does log2(T) times the work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """Targets and advantages, without gradient."""

    vs: Tensor
    """f32 [T, B], the target v_t of the value function; V_t at ignored rows."""
    advantage: Tensor
    """f32 [T, B], what the policy's loss takes; 0 at ignored rows."""


class _Trace(NamedTuple):
    td: Tensor  # [T, B] r_t + d_t·V_{t+1} - V_t
    discount: Tensor  # [T, B] d_t, 0 where cut
    corrections: Tensor  # [T + 1, B] v_t - V_t


@torch.no_grad()
def vtrace_appo(
    ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    *,
    gamma: float,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTraceReturns:
    """V-trace targets with the advantage for a clipped surrogate.

    A_t = r_t + d_t·(V_{t+1} + [not cut]·λ·(v_{t+1} - V_{t+1})) - V_t, without w_t: the surrogate
    brings that in. With w = 1 it equals v_t - V_t, which is GAE(λ) (Schulman et al. 2016).

    Args:
        ratio: f32 [T, B], w_t = π(a_t)/μ(a_t); anything, infinity included, at ignored rows.
        reward: f32 [T, B].
        value: f32 [T+1, B], the current network's, row T the bootstrap.
        terminated: bool [T, B].
        truncated: bool [T, B].
        ignored: bool [T, B], without the arena's row T.
        gamma: discount.
        lambda_: decay of the trace.
        rho_bar: threshold ρ̄ of the temporal difference.
        c_bar: threshold c̄ of the trace, at most `rho_bar`.

    Raises:
        ValueError: where `c_bar` exceeds `rho_bar` or a shape does not fit.
    """
    trace = _trace(
        ratio, reward, value, terminated, truncated, ignored, gamma, lambda_, rho_bar, c_bar
    )
    advantage = torch.addcmul(
        trace.td, trace.discount, trace.corrections[1:], value=lambda_
    ).masked_fill_(ignored, 0.0)
    return VTraceReturns(value[:-1] + trace.corrections[:-1], advantage)


@torch.no_grad()
def vtrace_impala(
    ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    *,
    gamma: float,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    rho_bar_pg: float = 1.0,
) -> VTraceReturns:
    """V-trace targets with the advantage of IMPALA's policy gradient, its ρ included.

    A_t = min(ρ̄_pg, w_t)·(r_t + d_t·(v_{t+1}, or V_{t+1} at a cut) - V_t), for -A_t·log π(a_t).

    Args:
        ratio: f32 [T, B], w_t = π(a_t)/μ(a_t); anything, infinity included, at ignored rows.
        reward: f32 [T, B].
        value: f32 [T+1, B], the current network's, row T the bootstrap.
        terminated: bool [T, B].
        truncated: bool [T, B].
        ignored: bool [T, B], without the arena's row T.
        gamma: discount.
        lambda_: decay of the trace.
        rho_bar: threshold ρ̄ of the temporal difference.
        c_bar: threshold c̄ of the trace, at most `rho_bar`.
        rho_bar_pg: threshold of w_t in the advantage.

    Raises:
        ValueError: where `c_bar` exceeds `rho_bar` or a shape does not fit.
    """
    trace = _trace(
        ratio, reward, value, terminated, truncated, ignored, gamma, lambda_, rho_bar, c_bar
    )
    advantage = torch.addcmul(trace.td, trace.discount, trace.corrections[1:])
    advantage.mul_(ratio.clamp(max=rho_bar_pg)).masked_fill_(ignored, 0.0)
    return VTraceReturns(value[:-1] + trace.corrections[:-1], advantage)


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> VTraceReturns:
    """Generalised advantage estimation (Schulman et al. 2016): V-trace with w = 1.

    Arguments, results and errors as in `vtrace_appo`.
    """
    return vtrace_appo(
        torch.ones_like(reward),
        reward,
        value,
        terminated,
        truncated,
        ignored,
        gamma=gamma,
        lambda_=lambda_,
    )


def _trace(
    ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    gamma: float,
    lambda_: float,
    rho_bar: float,
    c_bar: float,
) -> _Trace:
    if c_bar > rho_bar:
        raise ValueError(f"c_bar is {c_bar}, expected at most rho_bar, which is {rho_bar}")
    rows, columns = reward.shape
    _expect(value, "value", (rows + 1, columns))
    for name, tensor in (
        ("ratio", ratio),
        ("terminated", terminated),
        ("truncated", truncated),
        ("ignored", ignored),
    ):
        _expect(tensor, name, (rows, columns))

    discount = torch.full_like(reward, gamma).masked_fill_(terminated, 0.0)
    td = torch.addcmul(reward, discount, value[1:]).sub_(value[:-1])
    discount.masked_fill_(truncated, 0.0)
    # masked_fill, not a product with 0: what an ignored row holds may be infinite.
    corrections = torch.empty_like(value)
    torch.mul(td, ratio.clamp(max=rho_bar), out=corrections[:-1])
    corrections[:-1].masked_fill_(ignored, 0.0)
    corrections[-1].zero_()
    carry = ratio.clamp(max=c_bar).mul_(discount).mul_(lambda_).masked_fill_(ignored, 0.0)
    row = corrections.unbind(0)
    for t, keep in reversed(list(enumerate(carry.unbind(0)))):
        row[t].addcmul_(keep, row[t + 1])
    return _Trace(td, discount, corrections)


def _expect(tensor: Tensor, name: str, shape: tuple[int, int]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected {shape} to fit the rewards"
        )
