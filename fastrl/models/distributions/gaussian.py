"""Real-valued actions of any shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_2 = math.sqrt(2.0)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal variables, one per element of an action of shape `shape`.

    Parameters are concat(mean, log_std), each of `size` numbers. An action here is the sample
    itself: it is stored unclipped, and what the environment takes is the adapter's affair.
    """

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements of one action."""
        return math.prod(self.shape)

    @property
    def num_params(self) -> int:
        """Numbers per row: a mean and a log standard deviation for each element."""
        return 2 * self.size

    @property
    def noise_dims(self) -> int:
        """Uniform numbers per row that `sample` needs."""
        return self.size

    def sample(self, params: Tensor, u: Tensor) -> Tensor:
        """mean + std·Φ⁻¹(u): params [N, 2·size], u f32 [N, size] in (0, 1) → f32 [N, *shape]."""
        mean, log_std = _split(params)
        z = torch.erfinv(2.0 * u.float().t() - 1.0) * _SQRT_2
        return torch.addcmul(mean, log_std.exp(), z).t().reshape(-1, *self.shape)

    def sample_with_log_prob(self, params: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The sample and its log-density: f32 [N, *shape], f32 [N].

        The density is that of the rounded sample, as `log_prob` will see it again, not of the noise
        it was made from: only so is the ratio of both exactly 1.
        """
        action = self.sample(params, u)
        return action, self.log_prob(params, action)

    def mode(self, params: Tensor) -> Tensor:
        """The mean, f32 [N, *shape]."""
        return _split(params)[0].t().reshape(-1, *self.shape)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-density summed over elements: params [N, 2·size], action [N, *shape] → f32 [N]."""
        mean, log_std = _split(params)
        # Contiguous, so that the order of the sum, hence its last bit, is the same for an action
        # fresh from `sample` and for one from the arena.
        action = action.float().reshape(-1, self.size).t().contiguous()
        z = (action - mean) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std).sum(0) - self.size * _HALF_LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy in nats, f32 [N]."""
        return _split(params)[1].sum(0) + self.size * (_HALF_LOG_2PI + 0.5)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both, f32 [N], f32 [N]."""
        return self.log_prob(params, action), self.entropy(params)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """KL(p‖q) in nats, summed over elements: params [N, 2·size] of each → f32 [N], 0 or more.

        Per element log(σ_q/σ_p) + (σ_p² + (μ_p - μ_q)²)/(2σ_q²) - 1/2; 0 for equal parameters.
        """
        mean_p, log_std_p = _split(params_p)
        mean_q, log_std_q = _split(params_q)
        log_ratio = log_std_p - log_std_q
        distance = (mean_p - mean_q) * torch.exp(-log_std_q)
        # expm1: σ_p²/σ_q² - 1 of nearly equal deviations keeps its bits.
        terms = 0.5 * (torch.expm1(2.0 * log_ratio) + distance.square()) - log_ratio
        return terms.sum(0).clamp_min(0.0)

    def kl_from_uniform(self, params: Tensor) -> Tensor:
        """0, f32 [N]: on a line without ends there is no uniform distribution."""
        return params.new_zeros(len(params), dtype=torch.float32)


def _split(params: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 2·size] any dtype → mean and log_std, each f32 [size, N], contiguous."""
    mean, log_std = params.float().t().contiguous().chunk(2)
    return mean, log_std
