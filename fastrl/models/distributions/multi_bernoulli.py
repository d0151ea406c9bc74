"""Several switches, each on or off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastrl.models.distributions.choice import IMPOSSIBLE

_LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class MultiBernoulli:
    """`size` independent choices between 0 and 1; the parameters are the log-odds of 1.

    Log-odds of -inf or inf are a choice that is always 0 or always 1.
    """

    size: int

    @property
    def num_params(self) -> int:
        """Numbers per row that the policy must produce."""
        return self.size

    @property
    def noise_dims(self) -> int:
        """Uniform numbers per row that `sample` needs."""
        return self.size

    def sample(self, params: Tensor, u: Tensor) -> Tensor:
        """1 where u is below its probability: params [N, size], u f32 [N, size] → i32 [N, size].

        Never a choice whose f32 probability is 0.
        """
        p = torch.sigmoid(params.float().t())
        return (u.float().t() < p).to(torch.int32).t()

    def sample_with_log_prob(self, params: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` and `log_prob` of it: i32 [N, size], f32 [N], the same bits."""
        action = self.sample(params, u)
        return action, self.log_prob(params, action)

    def mode(self, params: Tensor) -> Tensor:
        """What is more probable, element by element (0 of two alike), i32 [N, size]."""
        return (params > 0).to(torch.int32)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Summed over elements: params [N, size], action i32 [N, size] → f32 [N]."""
        logits = params.float().t()
        # Contiguous, so that the order of the sum, hence its last bit, is the same for an action
        # fresh from `sample` and for one from the arena.
        chosen = torch.where(action.t() > 0, logits, -logits).contiguous()
        return F.logsigmoid(chosen).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        """Summed over elements, in nats, f32 [N]; what is certain adds 0, also to the gradient."""
        logits = params.float().t().contiguous()
        # As for one choice among n: 0 · -inf would be NaN, in the value and in the gradient.
        on = torch.sigmoid(logits) * F.logsigmoid(logits).clamp_min(IMPOSSIBLE)
        off = torch.sigmoid(-logits) * F.logsigmoid(-logits).clamp_min(IMPOSSIBLE)
        return -(on + off).sum(0)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both, f32 [N], f32 [N]."""
        return self.log_prob(params, action), self.entropy(params)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """KL(p‖q) in nats, summed over elements: params [N, size] of each → f32 [N], 0 or more.

        0 for equal parameters, inf where q never does what p may. A choice that p never makes adds
        0, also to the gradient.
        """
        p, q = (params.float().t().contiguous() for params in (params_p, params_q))
        terms = _divergence_of_one(p, q) + _divergence_of_one(-p, -q)
        return terms.sum(0).clamp_min(0.0)

    def kl_from_uniform(self, params: Tensor) -> Tensor:
        """KL(u‖p) in nats, summed over elements, f32 [N]: u is 1 as often as 0.

        What is certain adds 0, also to the gradient.
        """
        logits = params.float().t().contiguous()
        certain = logits.isinf()
        logits = logits.masked_fill(certain, 0.0)
        return -(0.5 * (F.logsigmoid(logits) + F.logsigmoid(-logits)) + _LOG_2).sum(0)


def _divergence_of_one(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """p·log(p/q) of the choices with these log-odds, f32 of their shape."""
    p = torch.sigmoid(logits_p)
    log_ratio = F.logsigmoid(logits_p) - F.logsigmoid(logits_q)
    # Filled, since the difference of impossible choices is NaN and 0 · inf as well.
    return p * log_ratio.masked_fill(p == 0, 0.0)
