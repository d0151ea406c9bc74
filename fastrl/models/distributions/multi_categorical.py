"""Several choices at once, each among its own number of possibilities.

The components' parameters lie one after the other, and are computed as blocks of components of
about the same size:

    logits [Σ nvec, N] ─▶ blocks [k, n, N], padded with -inf ─▶ one softmax per block

Where all components have one size the only block is a view. Otherwise each block holds components
whose sizes are within a factor of four, so that a hundred components need a few kernels, and one
large component does not pad all others to its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fastrl.models.distributions.choice import (
    divergence,
    entropy,
    invert,
    kl_from_uniform,
    pick,
    without,
)


class _Block(NamedTuple):
    """Components of about the same size."""

    num_components: int
    """k."""
    size: int
    """n, choices of the largest."""
    components: Tensor | None
    """i64 [k], which they are; None where the block is all of them."""
    rows: Tensor | None
    """i64 [k·n], where their parameters lie; None where the block is a view."""
    padding: Tensor | None
    """bool [k, n, 1], what is no choice of a component; None where all have n."""


class _Layout(NamedTuple):
    blocks: list[_Block]
    order: Tensor | None
    """i64 [k], where each component is among those of all blocks; None for one block."""
    component: Tensor
    """i64 [Σ nvec], the component of each choice."""


@lru_cache(maxsize=64)
def _layout(nvec: tuple[int, ...], device: torch.device) -> _Layout:
    """Kept, since making it copies to the device, which a captured graph cannot."""

    def tensor(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=device)

    first = [sum(nvec[:i]) for i in range(len(nvec))]
    by_size: dict[int, list[int]] = {}
    for i, n in enumerate(nvec):
        by_size.setdefault((n - 1).bit_length() // 2, []).append(i)
    blocks = []
    for members in by_size.values():
        size = max(nvec[i] for i in members)
        alike = all(nvec[i] == size for i in members)
        whole = len(by_size) == 1
        places = [first[i] + min(j, nvec[i] - 1) for i in members for j in range(size)]
        padded = [[j >= nvec[i] for j in range(size)] for i in members]
        blocks.append(
            _Block(
                len(members),
                size,
                None if whole else tensor(members),
                None if whole and alike else tensor(places),
                None if alike else torch.tensor(padded, device=device)[:, :, None],
            )
        )
    joined = [i for members in by_size.values() for i in members]
    return _Layout(
        blocks,
        None if len(blocks) == 1 else tensor([joined.index(i) for i in range(len(nvec))]),
        tensor([i for i, n in enumerate(nvec) for _ in range(n)]),
    )


@dataclass(frozen=True)
class MultiCategorical:
    """k independent choices, of which component i has `nvec[i]`.

    Parameters are the components' unnormalised log-probabilities, one component after the other. A
    logit of -inf is a choice that is never made.
    """

    nvec: tuple[int, ...]

    @property
    def num_params(self) -> int:
        """Numbers per row that the policy must produce: Σ nvec."""
        return sum(self.nvec)

    @property
    def noise_dims(self) -> int:
        """Uniform numbers per row that `sample` needs: k."""
        return len(self.nvec)

    def mask(self, params: Tensor, allowed: Tensor) -> Tensor:
        """Parameters of the distribution over the allowed choices alone.

        Args:
            params: [N, Σ nvec].
            allowed: bool [N, Σ nvec]; a component of which nothing is allowed is taken to be free.

        Returns:
            f32 [N, Σ nvec], -inf where a choice is not allowed.
        """
        layout = _layout(self.nvec, params.device)
        allowed = allowed.t()
        some = _in_order([block.any(1) for block in _blocks(allowed, layout, False)], layout)
        return without(params.t(), ~allowed & some.index_select(0, layout.component)).t()

    def sample(self, params: Tensor, u: Tensor) -> Tensor:
        """params [N, Σ nvec], u f32 [N, k] → i32 [N, k]; of each as `Categorical.sample`."""
        return self._sample(self._log_softmax(params), u)

    def sample_with_log_prob(self, params: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` and `log_prob` of it from one softmax: i32 [N, k], f32 [N], the same bits."""
        log_p = self._log_softmax(params)
        action = self._sample(log_p, u)
        return action, self._pick(log_p, action)

    def mode(self, params: Tensor) -> Tensor:
        """The most probable choice of each component, i32 [N, k]."""
        layout = _layout(self.nvec, params.device)
        chosen = [block.argmax(1) for block in _blocks(params.t(), layout, -torch.inf)]
        return _in_order(chosen, layout).t().to(torch.int32)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Summed over components: params [N, Σ nvec], action i32 [N, k] → f32 [N]."""
        return self._pick(self._log_softmax(params), action)

    def entropy(self, params: Tensor) -> Tensor:
        """Summed over components, in nats, f32 [N]; of each as `Categorical.entropy`."""
        return _total([entropy(block) for block in self._log_softmax(params)])

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one softmax: f32 [N], f32 [N]."""
        log_p = self._log_softmax(params)
        return self._pick(log_p, action), _total([entropy(block) for block in log_p])

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """KL(p‖q) in nats, summed over components: [N, Σ nvec] of each → f32 [N], 0 or more.

        Of each component as `Categorical.kl`.
        """
        pairs = zip(self._log_softmax(params_p), self._log_softmax(params_q), strict=True)
        return _total([divergence(log_p, log_q) for log_p, log_q in pairs]).clamp_min(0.0)

    def kl_from_uniform(self, params: Tensor) -> Tensor:
        """Summed over components, in nats, f32 [N]; of each as `Categorical.kl_from_uniform`."""
        return _total([kl_from_uniform(block) for block in self._log_softmax(params)])

    def _log_softmax(self, params: Tensor) -> list[Tensor]:
        """Log-probabilities f32 [k, n, N] of each block."""
        layout = _layout(self.nvec, params.device)
        blocks = _blocks(params.float().t(), layout, -torch.inf)
        return [torch.log_softmax(block, dim=1) for block in blocks]

    def _sample(self, log_p: list[Tensor], u: Tensor) -> Tensor:
        layout = _layout(self.nvec, u.device)
        parts = _per_block(u.t(), layout)
        chosen = [invert(block.exp(), part) for block, part in zip(log_p, parts, strict=True)]
        return _in_order(chosen, layout).t()

    def _pick(self, log_p: list[Tensor], action: Tensor) -> Tensor:
        parts = _per_block(action.t(), _layout(self.nvec, action.device))
        return _total([pick(block, part) for block, part in zip(log_p, parts, strict=True)])


def _blocks(rows: Tensor, layout: _Layout, fill: float) -> list[Tensor]:
    """[Σ nvec, N] → [k, n, N] of each block, `fill` where there is no choice."""
    blocks = []
    for block in layout.blocks:
        x = rows if block.rows is None else rows.index_select(0, block.rows)
        x = x.reshape(block.num_components, block.size, -1)
        blocks.append(x if block.padding is None else x.masked_fill(block.padding, fill))
    return blocks


def _per_block(rows: Tensor, layout: _Layout) -> list[Tensor]:
    """One row per component [K, N] → [k, N] of each block."""
    return [
        rows if block.components is None else rows.index_select(0, block.components)
        for block in layout.blocks
    ]


def _in_order(parts: list[Tensor], layout: _Layout) -> Tensor:
    """[k, N] of each block → one row per component [K, N]."""
    if layout.order is None:
        return parts[0]
    return torch.cat(parts).index_select(0, layout.order)


def _total(parts: list[Tensor]) -> Tensor:
    """[k, N] of each block → their sum over all components, [N]."""
    sums = [part.sum(0) for part in parts]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
