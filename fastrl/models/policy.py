"""The actor-critic network: encoders, heads and the distributions they feed.

    obs ──▶ encoder (f32 or bf16) ──▶ features ──▶ heads (always f32) ──▶ params, value
                                                     ▲                       │
                                       action masks ─┘  noise u ──▶ sample ──▶ action, log_prob

`encode` and `heads` are separate, so that a learner can run the expensive half in chunks and in
bf16 and the cheap half once, in f32, over the whole minibatch. A recurrent core's place is between
the two: it needs rows in their order, which neither of them does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fastrl.models.config import check_cnn
from fastrl.models.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    distribution_for,
)
from fastrl.models.encoders import LeafEncoder, encoders_for, orthogonal
from fastrl.models.leaves import LeafModules
from fastrl.models.normalizer import ObservationNormalizer, has_normalizer, normalizer_for
from fastrl.models.pixels import PickedImages
from fastrl.models.return_normalizer import ReturnNormalizer

if TYPE_CHECKING:
    from fastrl.envs.spec import EnvSpec
    from fastrl.models.config import ModelConfig


class PolicyOutput(NamedTuple):
    """What the heads say about N rows."""

    params: dict[str, Tensor]
    """Per action leaf the distribution's parameters, f32 [N, num_params]; -inf for a choice
    that the leaf's mask forbids."""
    value: Tensor
    """f32 [N], V in units of reward: what is stored, and what V-trace takes."""
    normalized_value: Tensor
    """f32 [N], the value head's own output v̂, which the loss compares with
    `ActorCritic.normalize_returns` of the targets; `value` itself where returns are not normalised.
    """


class Tower(nn.Module):
    """One encoder per observation leaf; their features side by side."""

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        """Build for the observation leaves of `spec`; raises ValueError as `encoders_for`."""
        super().__init__()
        self.leaves: LeafModules[LeafEncoder] = LeafModules(encoders_for(spec.observation, config))
        self.size_out = sum(encoder.size_out for encoder in self.leaves.values())

    def forward(
        self,
        obs: Mapping[str, Tensor | PickedImages],
        normalizers: LeafModules[ObservationNormalizer],
    ) -> Tensor:
        """Leaves [N, *shape] → features [N, size_out]; `normalizers` by leaf, where it has one."""
        features: list[Tensor] = [
            leaf(obs[key], normalizers.get(key)) for key, leaf in self.leaves.items()
        ]
        return features[0] if len(features) == 1 else torch.cat(features, 1)


class Encoder(nn.Module):
    """The observation normalisers, the actor's tower and, where it is separate, the critic's.

    Attributes:
        normalizers: by leaf, of those that have one.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig, separate_critic: bool) -> None:
        """Build one or two towers; raises ValueError as `encoders_for`."""
        super().__init__()
        self.normalizers = LeafModules(
            {
                key: normalizer_for(leaf)
                for key, leaf in spec.observation.items()
                if config.normalize_obs and has_normalizer(leaf)
            }
        )
        self.actor = Tower(spec, config)
        self.critic = Tower(spec, config) if separate_critic else None

    def forward(self, obs: Mapping[str, Tensor | PickedImages]) -> Tensor:
        """Features [N, F], or [N, 2F] with the critic's in the second half."""
        features: Tensor = self.actor(obs, self.normalizers)
        if self.critic is None:
            return features
        return torch.cat((features, self.critic(obs, self.normalizers)), 1)


class PolicyHead(nn.Linear):
    """From features to the parameters of one action leaf's distribution.

    Attributes:
        log_std: f32 [size] of a Gaussian, the same for all rows; else None.
    """

    def __init__(self, size_in: int, distribution: Distribution, initial_std: float = 1.0) -> None:
        """Begin with nearly equal choices, or means near 0 and the deviation `initial_std`."""
        log_std = None
        width = distribution.num_params
        if isinstance(distribution, DiagonalGaussian):
            width = distribution.size
            log_std = nn.Parameter(torch.full((width,), math.log(initial_std)))
        super().__init__(size_in, width)
        orthogonal(self, 0.01)
        self.log_std: nn.Parameter | None
        self.register_parameter("log_std", log_std)

    def forward(self, features: Tensor) -> Tensor:
        """Features f32 [N, size_in] → f32 [N, num_params]."""
        # weight @ features.T, so that N is contiguous: see `distributions`.
        output = torch.addmm(self.bias[:, None], self.weight, features.t())
        if self.log_std is not None:
            output = torch.cat((output, self.log_std[:, None].expand_as(output)))
        return output.t()


def uses_separate_critic(spec: EnvSpec, config: ModelConfig) -> bool:
    """`config.separate_critic`, or its default for this environment."""
    if config.separate_critic is not None:
        return config.separate_critic
    continuous = any(leaf.kind == "continuous" for leaf in spec.action.values())
    return continuous and all(leaf.kind == "vector" for leaf in spec.observation.values())


class ActorCritic(nn.Module):
    """A stochastic policy and a value function for one environment's spaces.

    Weights are orthogonal: gain √2 in the encoder, 0.01 in the policy's heads, 1 in the value's
    (Andrychowicz et al. 2021, "What matters in on-policy reinforcement learning"). A continuous
    leaf has one `log_std` per element, which does not depend on the observation and starts at the
    logarithm of `config.initial_std`.

    Attributes:
        return_normalizer: statistics of the returns, with `config.normalize_returns`; else None.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        """Build for `spec`; raises ValueError for spaces that no encoder or distribution fits."""
        super().__init__()
        check_cnn(config)
        self.distributions: dict[str, Distribution] = {
            key: distribution_for(leaf) for key, leaf in spec.action.items()
        }
        self._masked = tuple(spec.masks)
        separate = uses_separate_critic(spec, config)
        self.encoder = Encoder(spec, config, separate)
        size = self.encoder.actor.size_out
        self._actor_size = size
        self._separate = separate
        std = 1.0 if config.initial_std is None else config.initial_std
        self.policy_head = LeafModules(
            {key: PolicyHead(size, dist, std) for key, dist in self.distributions.items()}
        )
        self.value_head = nn.Linear(size, 1)
        orthogonal(self.value_head, 1.0)
        self.return_normalizer = ReturnNormalizer() if config.normalize_returns else None

    def encode(self, obs: Mapping[str, Tensor | PickedImages]) -> Tensor:
        """Leaves [N, *shape] → features [N, F] in the encoder's dtype, autocast's or f32."""
        features: Tensor = self.encoder(obs)
        return features

    def heads(self, features: Tensor, action_mask: dict[str, Tensor] | None = None) -> PolicyOutput:
        """Features of any dtype → f32 parameters and value, under autocast as well.

        Args:
            features: [N, F].
            action_mask: per leaf that has masks bool [N, mask_size], True for what is allowed; a
                component of which nothing is allowed is taken to be free.

        Raises:
            ValueError: the mask of a leaf is missing.
        """
        if torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                return self.heads(features, action_mask)
        features = features.float()
        actor = features[:, : self._actor_size] if self._separate else features
        critic = features[:, self._actor_size :] if self._separate else features
        params: dict[str, Tensor] = {key: head(actor) for key, head in self.policy_head.items()}
        for key in self._masked:
            if action_mask is None or key not in action_mask:
                raise ValueError(
                    f"the mask of action leaf {key!r} is missing, expected it with every row's "
                    "features"
                )
            distribution = self.distributions[key]
            assert isinstance(distribution, Categorical | MultiCategorical)
            params[key] = distribution.mask(params[key], action_mask[key])
        normalized = torch.addmv(self.value_head.bias, critic, self.value_head.weight[0])
        value = normalized if self.return_normalizer is None else self.return_normalizer(normalized)
        return PolicyOutput(params, value, normalized)

    def forward(
        self,
        obs: Mapping[str, Tensor | PickedImages],
        action_mask: dict[str, Tensor] | None = None,
    ) -> PolicyOutput:
        """`heads(encode(obs), action_mask)`."""
        return self.heads(self.encode(obs), action_mask)

    @torch.no_grad()
    def act(
        self,
        obs: dict[str, Tensor],
        u: dict[str, Tensor],
        action_mask: dict[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Choose an action for each row, without gradient.

        Args:
            obs: leaves [N, *shape].
            u: per action leaf, f32 [N, noise_dims of its distribution] in (0, 1).
            action_mask: as `heads` takes it.

        Returns:
            action: per leaf i32 or f32 [N, *shape].
            log_prob: f32 [N], summed over leaves.
            value: f32 [N].
        """
        output = self(obs, action_mask)
        action = {}
        log_probs = []
        for key, distribution in self.distributions.items():
            params = output.params[key]
            action[key], log_prob = distribution.sample_with_log_prob(params, u[key])
            log_probs.append(log_prob)
        return action, _total(log_probs), output.value

    @torch.no_grad()
    def mode(
        self, obs: dict[str, Tensor], action_mask: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The most probable action of each leaf, i32 or f32 [N, *shape]; masks as for `heads`."""
        output = self(obs, action_mask)
        return {key: dist.mode(output.params[key]) for key, dist in self.distributions.items()}

    def evaluate(self, output: PolicyOutput, action: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, both f32 [N] and summed over leaves, of stored actions.

        Args:
            output: what `forward` or `heads` gave for these rows, with the masks they had.
            action: per leaf i32 or f32 [N, *shape], as `act` returned it.
        """
        terms = [
            distribution.log_prob_and_entropy(output.params[key], action[key])
            for key, distribution in self.distributions.items()
        ]
        return _total([log_prob for log_prob, _ in terms]), _total([ent for _, ent in terms])

    def kl(self, old_params: dict[str, Tensor], new_params: dict[str, Tensor]) -> Tensor:
        """KL(old‖new) of the policies of N rows in nats, f32 [N], summed over leaves.

        Args:
            old_params: `PolicyOutput.params` of the policy before, per leaf f32 [N, num_params].
            new_params: of the policy after, for the same rows.
        """
        return _total(
            [dist.kl(old_params[key], new_params[key]) for key, dist in self.distributions.items()]
        )

    def kl_from_uniform(self, output: PolicyOutput) -> Tensor:
        """KL(u‖π) in nats, f32 [N], summed over leaves.

        u chooses equally among what is allowed; a continuous leaf adds 0.

        Args:
            output: what `forward` or `heads` gave for these rows, with the masks they had.
        """
        return _total(
            [dist.kl_from_uniform(output.params[key]) for key, dist in self.distributions.items()]
        )

    def normalize_returns(self, returns: Tensor) -> Tensor:
        """What `normalized_value` is to be, for targets f32 of any shape in units of reward.

        The targets themselves where returns are not normalised.
        """
        if self.return_normalizer is None:
            return returns
        return self.return_normalizer.normalize(returns)

    def rescale_returns(self, mean: Tensor, std: Tensor) -> None:
        """Take over statistics of returns, in place; no `value` changes, all `normalized_value` do.

        For a network with a `return_normalizer`, outside of a pass that is yet to go backward.

        Args:
            mean: [] of any float dtype, in units of reward.
            std: [] likewise; `return_normalizer.MIN_STD` where it is less.
        """
        assert self.return_normalizer is not None
        self.return_normalizer.rescale(mean, std, self.value_head)


def _total(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)
