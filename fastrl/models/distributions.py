"""Action distributions as pure functions of their parameters.

A distribution object holds only sizes; parameters are a tensor that the policy's heads produce,
noise comes from `fastrl.models.noise`, so `sample(params, u)` is the same pure function in every
mode and on every device. Everything is computed in f32, whatever dtype comes in.

Inside, tensors are [size, N]: with N contiguous, a softmax over 2 to 18 actions uses whole vector
registers (3 to 7 times the speed of [N, size] on CPU). The policy's heads already produce
parameters in that storage order, seen as [N, size]; any other order is only slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fastrl.envs.spec import ActionSpec

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_2 = math.sqrt(2.0)
_LOWEST = torch.finfo(torch.float32).min


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

    def sample(self, params: Tensor, u: Tensor) -> Tensor:
        """Inverse of the cumulative distribution: params [N, num_actions], u f32 [N, 1] → i32 [N].

        Always in range, and never an action whose f32 probability is 0.
        """
        return _invert(_log_softmax(params).exp(), u)

    def sample_with_log_prob(self, params: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` and `log_prob` of it from one softmax: i32 [N], f32 [N], the same bits."""
        log_p = _log_softmax(params)
        action = _invert(log_p.exp(), u)
        return action, _pick(log_p, action)

    def mode(self, params: Tensor) -> Tensor:
        """The most probable action, i32 [N]."""
        return params.argmax(-1).to(torch.int32)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """params [N, num_actions], action i32 [N] → f32 [N]."""
        return _pick(_log_softmax(params), action)

    def entropy(self, params: Tensor) -> Tensor:
        """-Σ p log p in nats, f32 [N]; an impossible action adds 0, also to the gradient."""
        return _entropy(_log_softmax(params))

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one softmax: f32 [N], f32 [N]."""
        log_p = _log_softmax(params)
        return _pick(log_p, action), _entropy(log_p)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """KL(p‖q) = Σ p·log(p/q) in nats: params [N, num_actions] of each → f32 [N], 0 or more.

        0 for equal parameters, inf where q never does what p may. An action that p never chooses
        adds 0, also to the gradient.
        """
        log_p, log_q = _log_softmax(params_p), _log_softmax(params_q)
        p = log_p.exp()
        # Filled, since the difference of impossible actions is NaN and 0 · inf as well.
        log_ratio = (log_p - log_q).masked_fill(p == 0, 0.0)
        # Of nearly equal distributions rounding would make it negative now and then.
        return (p * log_ratio).sum(0).clamp_min(0.0)


def _log_softmax(params: Tensor) -> Tensor:
    """[N, n] any dtype → log-probabilities f32 [n, N]."""
    return torch.log_softmax(params.float().t(), dim=0)


def _pick(log_p: Tensor, action: Tensor) -> Tensor:
    return log_p.gather(0, action.long()[None]).squeeze(0)


def _entropy(log_p: Tensor) -> Tensor:
    # 0 · -inf would be NaN, in the value and in the gradient; 0 · lowest is 0 in both.
    return -(log_p.exp() * log_p.clamp_min(_LOWEST)).sum(0)


def _invert(p: Tensor, u: Tensor) -> Tensor:
    """p f32 [n, N], u [N, 1] → i32 [N].

    The answer is the last action k of positive probability with p_0 + … + p_{k-1} ≤ u·Σp. Such a k
    always exists, because a sum of exact zeros is 0 in any order of summation; so it needs neither
    a monotone scan (CUDA's is not) nor a clamp to be right.
    """
    if p.shape[0] == 1:
        return torch.zeros(p.shape[1], dtype=torch.int32, device=p.device)
    cumulative = p.cumsum(0)
    reached = cumulative[:-1] <= u.squeeze(-1) * cumulative[-1]
    candidates = torch.arange(1, p.shape[0], dtype=torch.int32, device=p.device)[:, None]
    return ((reached & (p[1:] > 0)) * candidates).amax(0)


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


def _split(params: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 2·size] any dtype → mean and log_std, each f32 [size, N], contiguous."""
    mean, log_std = params.float().t().contiguous().chunk(2)
    return mean, log_std


Distribution = Categorical | DiagonalGaussian


def distribution_for(spec: ActionSpec) -> Distribution:
    """The distribution of one leaf of the action space.

    Raises:
        ValueError: for a kind of action other than "discrete" and "continuous".
    """
    if spec.kind == "discrete":
        assert spec.n is not None
        return Categorical(spec.n)
    if spec.kind == "continuous":
        return DiagonalGaussian(spec.shape)
    raise ValueError(f"action kind is {spec.kind!r}, expected 'discrete' or 'continuous'")
