"""The policy that needs no network: what is left of inference is what the engine adds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fastrl.envs.spec import EnvSpec, sample_actions
from fastrl.models.pixels import PickedImages


class RandomPolicy:
    """Uniform random actions, with the interface of `fastrl.models.acting.ActingPolicy`.

    Attributes:
        flat: float32 numpy [1]: weights without a meaning.
        noise_dims: none; it draws numbers of its own.
    """

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        """Choose for environments of `spec`."""
        self._action = spec.action
        self._rng = np.random.default_rng(seed)
        self.flat = np.zeros(1, np.float32)
        self.noise_dims: dict[str, int] = {}

    def refresh(self) -> None:
        """Take over nothing."""

    def act(
        self,
        obs: Mapping[str, Tensor | PickedImages],
        noise: dict[str, Tensor] | None,
        action_mask: dict[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Draw an action per row, in stored form.

        Args:
            obs: leaves [N, *shape]; only counted.
            noise: not looked at.
            action_mask: per masked leaf bool [N, mask_size].

        Returns:
            action: per leaf i32 or f32 [N, *shape].
            log_prob: f32 [N], 0.
            value: f32 [N], 0.
        """
        leaf = next(iter(obs.values()))
        count = len(leaf.rows if isinstance(leaf, PickedImages) else leaf)
        masks = action_mask or {}
        actions = {
            key: torch.from_numpy(
                sample_actions(leaf, count, self._rng, masks[key].numpy() if leaf.masked else None)
            )
            for key, leaf in self._action.items()
        }
        return actions, torch.zeros(count), torch.zeros(count)
