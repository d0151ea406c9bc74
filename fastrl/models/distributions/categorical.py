"""One choice among n."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastrl.kernels import MOST_CHOICES, choose
from fastrl.models.distributions.choice import (
    divergence,
    entropy,
    invert,
    kl_from_uniform,
    pick,
    without,
)


@dataclass(frozen=True)
class Categorical:
    """One of `num_actions` actions; the parameters are unnormalised log-probabilities.

    A logit of -inf is an action that is never chosen.
    """

    num_actions: int

    @property
    def num_params(self) -> int:
        """Numbers per row that the policy must produce."""
        return self.num_actions

    @property
    def noise_dims(self) -> int:
        """Uniform numbers per row that `sample` needs."""
        return 1

    def mask(self, params: Tensor, allowed: Tensor) -> Tensor:
        """Parameters of the distribution over the allowed choices alone.

        Args:
            params: [N, num_actions].
            allowed: bool [N, num_actions]; a row that allows nothing is taken to allow all.

        Returns:
            f32 [N, num_actions], -inf where a choice is not allowed.
        """
        allowed = allowed.t()
        return without(params.t(), ~allowed & allowed.any(0)).t()

    def sample(self, params: Tensor, u: Tensor) -> Tensor:
        """Inverse of the cumulative distribution: params [N, num_actions], u f32 [N, 1] → i32 [N].

        Always in range, and never an action whose f32 probability is 0.
        """
        return invert(_log_softmax(params).exp(), u.squeeze(-1))

    def sample_with_log_prob(self, params: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` and `log_prob` of it from one softmax: i32 [N], f32 [N] without gradient.

        On the CPU in one native pass; its sums may differ in the last bits from those of `sample`.
        """
        log_p = _log_softmax(params)
        if params.device.type == "cpu" and self.num_actions <= MOST_CHOICES:
            action = torch.empty(len(u), dtype=torch.int32, device="cpu")
            log_prob = torch.empty(len(u), dtype=torch.float32, device="cpu")
            choose(log_p.detach(), u.reshape(-1), action, log_prob)
            return action, log_prob
        action = invert(log_p.exp(), u.squeeze(-1))
        return action, pick(log_p, action).detach()

    def mode(self, params: Tensor) -> Tensor:
        """The most probable action, i32 [N]."""
        return params.argmax(-1).to(torch.int32)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """params [N, num_actions], action i32 [N] → f32 [N]."""
        return pick(_log_softmax(params), action)

    def entropy(self, params: Tensor) -> Tensor:
        """-Σ p log p in nats, f32 [N]; an impossible action adds 0, also to the gradient."""
        return entropy(_log_softmax(params))

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one softmax: f32 [N], f32 [N]."""
        log_p = _log_softmax(params)
        return pick(log_p, action), entropy(log_p)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """KL(p‖q) = Σ p·log(p/q) in nats: params [N, num_actions] of each → f32 [N], 0 or more.

        0 for equal parameters, inf where q never does what p may. An action that p never chooses
        adds 0, also to the gradient.
        """
        # Of nearly equal distributions rounding would make it negative now and then.
        return divergence(_log_softmax(params_p), _log_softmax(params_q)).clamp_min(0.0)

    def kl_from_uniform(self, params: Tensor) -> Tensor:
        """KL(u‖p) in nats, f32 [N], u being equal over the actions that are not impossible."""
        return kl_from_uniform(_log_softmax(params))


def _log_softmax(params: Tensor) -> Tensor:
    """[N, n] any dtype → log-probabilities f32 [n, N]."""
    return torch.log_softmax(params.float().t(), dim=0)
