"""The mathematics of one choice among n, for many choices at once.

`log_p` and `p` are f32 [..., n, N]: N rows, each with one choice for every leading index.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMPOSSIBLE = -200.0
"""f32 probabilities are 0 from a logarithm of -104 down."""


def pick(log_p: Tensor, action: Tensor) -> Tensor:
    """Log-probability of what was chosen: log_p [..., n, N], action i32 [..., N] → f32 [..., N]."""
    return log_p.gather(-2, action.long().unsqueeze(-2)).squeeze(-2)


def entropy(log_p: Tensor) -> Tensor:
    """-Σ p log p in nats, [..., n, N] → f32 [..., N]."""
    # 0 · -inf would be NaN, in the value and in the gradient. Nor may the bound be so low that a
    # gradient from above makes it infinite.
    return -(log_p.exp() * log_p.clamp_min(IMPOSSIBLE)).sum(-2)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) in nats, [..., n, N] of each → f32 [..., N]; rounding may leave it just below 0."""
    p = log_p.exp()
    # Filled, since the difference of impossible actions is NaN and 0 · inf as well.
    log_ratio = (log_p - log_q).masked_fill(p == 0, 0.0)
    return (p * log_ratio).sum(-2)


def kl_from_uniform(log_p: Tensor) -> Tensor:
    """KL(u‖p) in nats, u being equal over what is possible: [..., n, N] → f32 [..., N].

    Its gradient by a logit is p - 1/n, which does not vanish as p does.
    """
    possible = ~log_p.isneginf()
    n = possible.sum(-2).float()
    return -log_p.masked_fill(~possible, 0.0).sum(-2) / n - n.log()


def invert(p: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: p f32 [..., n, N], u f32 [..., N] → i32 [..., N].

    The answer is the last action k of positive probability with p_0 + … + p_{k-1} ≤ u·Σp. Such a k
    always exists, because a sum of exact zeros is 0 in any order of summation; so it needs neither
    a monotone scan (CUDA's is not) nor a clamp to be right.
    """
    n = p.shape[-2]
    if n == 1:
        return torch.zeros(u.shape, dtype=torch.int32, device=p.device)
    cumulative = p.cumsum(-2)
    total = cumulative.narrow(-2, n - 1, 1)
    reached = cumulative.narrow(-2, 0, n - 1) <= u.unsqueeze(-2) * total
    candidates = torch.arange(1, n, dtype=torch.int32, device=p.device)[:, None]
    return ((reached & (p.narrow(-2, 1, n - 1) > 0)) * candidates).amax(-2)


def without(logits: Tensor, forbidden: Tensor) -> Tensor:
    """Logits [n, N] of any dtype, bool [n, N] → the same in f32, -inf where it is True.

    In the storage order of `logits`, whatever that of `forbidden`.
    """
    return logits.float().masked_fill(forbidden, -torch.inf)
