"""Forward and training passes over made-up rows: what the benches time, and what the start of a
run tries in each number format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fastrl.models.acting import chunk_rows
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.policy import ActorCritic

if TYPE_CHECKING:
    from fastrl.config import TrainConfig
    from fastrl.envs.spec import EnvSpec

Work = Callable[[], int]
"""Makes one pass and returns its rows."""


def sample_observations(spec: EnvSpec, rows: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """Random observations in stored form, leaves [rows, *shape]."""
    obs = {}
    for key, leaf in spec.observation.items():
        shape = (rows, *leaf.shape)
        if leaf.kind == "vector":
            array = rng.standard_normal(shape, dtype=np.float32).astype(leaf.dtype)
        else:
            array = rng.integers(leaf.n or 256, size=shape).astype(leaf.dtype)
        obs[key] = torch.from_numpy(array)
    return obs


def forward_work(config: TrainConfig, spec: EnvSpec, rows: int, dtype: str) -> Work:
    """One forward pass over `rows` rows, as `fastrl.models.acting` does it."""
    network = ActorCritic(spec, config.section(ModelConfig)).requires_grad_(False)
    encoder = network.encoder
    if dtype == "bf16":
        encoder = CastCopy(FlatParameters(network), network.encoder, torch.bfloat16).module
    obs = sample_observations(spec, rows, np.random.default_rng(0))
    chunks, masks = _chunks(obs, rows, chunk_rows(spec)), _free(spec, rows)

    @torch.no_grad()
    def work() -> int:
        network.heads(_cat([encoder(chunk) for chunk in chunks]), masks)
        return rows

    return work


def train_work(config: TrainConfig, spec: EnvSpec, rows: int, dtype: str) -> Work:
    """One forward and backward pass over `rows` rows, as `fastrl.workers.update` does it.

    The gradient at the heads is a constant in place of a loss; gradients add up, as nobody looks.
    """
    network = ActorCritic(spec, config.section(ModelConfig))
    FlatParameters(network)  # the gradients are views of one tensor, as the learner's are
    obs = sample_observations(spec, rows, np.random.default_rng(0))
    chunks, masks = _chunks(obs, rows, chunk_rows(spec)), _free(spec, rows)
    autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if dtype == "bf16":
        autocast = torch.autocast("cpu", torch.bfloat16)

    def forward() -> list[Tensor]:
        with autocast:
            features = _cat([network.encode(chunk) for chunk in chunks])
        output = network.heads(features, masks)
        return [*output.params.values(), output.value]

    gradients = [torch.full_like(tensor, 1e-3) for tensor in forward()]

    def work() -> int:
        torch.autograd.backward(forward(), gradients)
        return rows

    return work


def _chunks(obs: dict[str, Tensor], rows: int, size: int) -> list[dict[str, Tensor]]:
    return [{key: leaf[at : at + size] for key, leaf in obs.items()} for at in range(0, rows, size)]


def _cat(chunks: list[Tensor]) -> Tensor:
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def _free(spec: EnvSpec, rows: int) -> dict[str, Tensor]:
    """Masks that allow everything: what they cost is part of the heads."""
    return {key: torch.ones(rows, size, dtype=torch.bool) for key, size in spec.masks.items()}
