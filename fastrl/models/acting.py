"""The copy of the policy that acts: fed from published weights, in the dtype that is cheapest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.pixels import PickedImages
from fastrl.models.policy import ActorCritic

if TYPE_CHECKING:
    from fastrl.config import TrainConfig
    from fastrl.envs.spec import EnvSpec, ObservationSpec

IMAGE_CHUNK_ROWS = 256
VECTOR_CHUNK_ROWS = 4096


def picks_images(leaf: ObservationSpec, device: torch.device) -> bool:
    """Whether networks on this device read the images of a leaf where they lie."""
    return leaf.kind == "image" and leaf.dtype == "uint8" and device.type == "cpu"


def chunk_rows(spec: EnvSpec) -> int:
    """Rows that one pass of the encoder takes: as many as the cache likes."""
    image = any(leaf.is_large_image for leaf in spec.observation.values())
    return IMAGE_CHUNK_ROWS if image else VECTOR_CHUNK_ROWS


class ActingPolicy:
    """A policy without gradients, whose f32 parameters are one flat array that a reader may
    overwrite.

    Attributes:
        flat: float32 numpy [num_floats] on the CPU; after writing it, call `refresh`.
        noise_dims: uniform numbers per row and action leaf that `act` takes.
    """

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        """Build the network of a run; its parameters are whatever is written to `flat`."""
        self._device = torch.device(config.device)
        network = ActorCritic(spec, config.section(ModelConfig)).requires_grad_(False)
        self._network = network.to(self._device)
        self._parameters = FlatParameters(self._network)
        on_cpu = self._device.type == "cpu"
        self._staging = (
            self._parameters.data if on_cpu else torch.zeros(self._parameters.num_floats)
        )
        self.flat: np.ndarray = self._staging.numpy()
        self._encoder = self._network.encoder
        self._cast: CastCopy | None = None
        if config.dtype == "bf16":
            self._cast = CastCopy(self._parameters, self._network.encoder, torch.bfloat16)
            self._encoder = self._cast.module
        self._chunk_rows = chunk_rows(spec)
        self.noise_dims = {
            key: distribution.noise_dims
            for key, distribution in self._network.distributions.items()
        }

    def refresh(self) -> None:
        """Take over what was written to `flat`."""
        if self._staging is not self._parameters.data:
            self._parameters.data.copy_(self._staging)
        if self._cast is not None:
            self._cast.refresh()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the parameters of a checkpoint; raises RuntimeError where names or shapes differ."""
        self._network.load_state_dict(state)
        if self._cast is not None:
            self._cast.refresh()

    @torch.no_grad()
    def act(
        self,
        obs: Mapping[str, Tensor | PickedImages],
        noise: dict[str, Tensor] | None,
        action_mask: dict[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Choose an action for each row, on the CPU whatever the device.

        Args:
            obs: leaves [N, *shape] on the CPU; images may be picked ones where the device is the
                CPU.
            noise: per action leaf f32 [N, noise_dims] in (0, 1); None for the likeliest action.
            action_mask: per leaf that has masks bool [N, mask_size], True for what is allowed.

        Returns:
            action: per leaf i32 or f32 [N, *shape].
            log_prob: f32 [N], summed over leaves.
            value: f32 [N].

        Raises:
            ValueError: the mask of a leaf is missing.
        """
        if action_mask is not None:
            action_mask = {key: mask.to(self._device) for key, mask in action_mask.items()}
        output = self._network.heads(self._features(obs), action_mask)
        actions, log_prob = {}, torch.zeros_like(output.value)
        for key, distribution in self._network.distributions.items():
            params = output.params[key]
            if noise is None:
                actions[key] = distribution.mode(params)
                log_prob = log_prob + distribution.log_prob(params, actions[key])
            else:
                u = noise[key].to(self._device)
                actions[key], leaf = distribution.sample_with_log_prob(params, u)
                log_prob = log_prob + leaf
        return {k: a.cpu() for k, a in actions.items()}, log_prob.cpu(), output.value.cpu()

    def _features(self, obs: Mapping[str, Tensor | PickedImages]) -> Tensor:
        some = next(iter(obs.values()))
        count = len(some.rows if isinstance(some, PickedImages) else some)
        chunks = [
            self._encoder({key: self._part(leaf, at) for key, leaf in obs.items()})
            for at in range(0, count, self._chunk_rows)
        ]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def _part(self, leaf: Tensor | PickedImages, at: int) -> Tensor | PickedImages:
        stop = at + self._chunk_rows
        if isinstance(leaf, PickedImages):
            return leaf.part(at, stop)
        return leaf[at:stop].to(self._device)
