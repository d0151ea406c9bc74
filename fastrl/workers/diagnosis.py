"""Why an optimiser step was skipped: the first tensor of its minibatch that is not finite.

::

    parameters ─▶ observations, rewards ─▶ features ─▶ heads ─▶ log-probabilities, ratios
            ─▶ V-trace ─▶ loss terms ─▶ gradients, from the heads back to the encoder

The pass is made once more, with the weights after the update, and looked at in this order; where
some columns alone are at fault, their environments are. What is stored is finite, rollout processes
see to that, but it may be so large that what is computed from it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastrl.envs.spaces import leaf_text
from fastrl.envs.spec import EnvSpec
from fastrl.workers.batch import Batch, BatchReader
from fastrl.workers.steps import Pass

LARGE = 1e15
"""A stored number beyond it is suspected: the squares of such numbers, summed, come near the end of
float32."""

MOST_NAMED = 3
"""Environments in a sentence."""


class Finding(NamedTuple):
    """The first tensor that is not finite, and whose it is."""

    tensor: str
    """Its name; "" where everything is finite by now."""
    envs: list[int]
    """Run-wide indices of the environments at fault, ascending; empty where it is not theirs."""
    source: str = ""
    """What these environments gave that stands out, "reward" or an observation; "" if nothing
    does."""
    magnitude: float = 0.0
    """The largest of its numbers' absolute values."""
    of_rows: bool = False
    """Whether the tensor itself has rows of these environments; else their rows went into it."""

    def describe(self, symptom: str) -> str:
        """Say in a clause what is not finite (`symptom`, as "policy loss") and why."""
        if not self.tensor:
            return f"the {symptom} is not finite, but it is with the weights after the update"
        said = f"the {symptom} is not finite; the first bad tensor is the {self.tensor}"
        if self.tensor == symptom:
            said = f"the {symptom} is the first tensor that is not finite"
        if not self.envs:
            return said
        who, reach = _named(self.envs), f"reaches {self.magnitude:.3g}"
        if not self.of_rows:
            return f"{said}; the {self.source} of {who} {reach}"
        return f"{said} of {who}" + (f", whose {self.source} {reach}" if self.source else "")


@torch.no_grad()
def diagnose(
    spec: EnvSpec,
    network: nn.Module,
    batch: Batch,
    reader: BatchReader,
    columns: np.ndarray,
    found: Pass,
) -> Finding:
    """Look for the first tensor that is not finite.

    Args:
        spec: of the environments.
        network: with the gradients of the minibatch.
        batch: of the update.
        reader: reads its observations.
        columns: int64 [B], those of the minibatch.
        found: the minibatch's pass.
    """
    parameters = dict(network.named_parameters())
    for name, parameter in parameters.items():
        if not bool(parameter.isfinite().all()):
            return Finding(f"parameter {name}", [])
    first_row, at = batch.first_row[columns], torch.from_numpy(columns)
    env_index = reader.env_index(first_row)
    ignored = batch.ignored[:, at]
    obs = {
        leaf_text("observation", spec.observation[key].path): largest
        for key, largest in reader.magnitudes(first_row, len(ignored)).items()
    }
    stored = _Stored(batch.reward[:, at].masked_fill(ignored, 0.0).abs(), obs)
    gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}

    def envs(chosen: Tensor) -> list[int]:
        return [int(index) for index in np.unique(env_index[chosen.numpy()])]

    for name, bad, of_observation in _of_rows(stored, found, ignored, batch.log_prob[:, at]):
        if not bool(bad.any()):
            continue
        everywhere = bool(bad.all())
        source, magnitude, large = stored.suspect(bad, of_observation)
        if everywhere and not bool(large.any()):
            return Finding(name, [])
        # Of what is bad everywhere only what stands out can be the cause.
        chosen = large if everywhere else bad.any(0)
        return Finding(name, envs(chosen), source, magnitude, of_rows=True)
    whole = next(_of_whole(found, gradients), "")
    source, magnitude, large = stored.suspect(torch.ones_like(ignored), False)
    if not whole or not bool(large.any()):
        return Finding(whole, [])
    return Finding(whole, envs(large), source, magnitude)


class _Stored(NamedTuple):
    """Absolute values of what environments gave, on the CPU."""

    reward: Tensor
    """f32 [T, B], 0 at ignored rows."""
    obs: dict[str, Tensor]
    """By name in sentences f32 [T+1, B], the largest element of each."""

    def suspect(self, rows: Tensor, of_observation: bool) -> tuple[str, float, Tensor]:
        """What stands out in the columns of `rows` (bool [T, B] or [T+1, B]).

        Returns its name, its largest value there, and the columns (bool [B]) where it is suspected.
        Of an observation (`of_observation`) the largest leaf at these rows counts, however small.
        """
        columns = rows.any(0)
        if not of_observation and bool((large := columns & (self.reward > LARGE).any(0)).any()):
            return "reward", float(self.reward[:, large].max()), large
        where = torch.zeros_like(next(iter(self.obs.values())), dtype=torch.bool)
        if of_observation:
            where[: len(rows)] = rows
        else:
            where |= columns
        reach = {name: obs.masked_fill(~where, 0.0) for name, obs in self.obs.items()}
        name = max(reach, key=lambda name: float(reach[name].max()))
        magnitude, large = float(reach[name].max()), (reach[name] > LARGE).any(0)
        return (name if of_observation or bool(large.any()) else ""), magnitude, large


def _of_rows(
    stored: _Stored, found: Pass, ignored: Tensor, log_prob: Tensor
) -> Iterator[tuple[str, Tensor, bool]]:
    """Names of tensors that have rows, where these are not finite (bool [T or T+1, B] on the CPU),
    and whether observations alone go into them; in the order of the pass."""
    T, B = ignored.shape
    for name, obs in stored.obs.items():
        yield name, ~obs.isfinite(), True
    yield "reward", ~stored.reward.isfinite(), False
    features = torch.cat((found.features, found.last_features))
    yield "features", ~features.isfinite().all(1).cpu().view(T + 1, B), True
    for key, params in found.params.items():
        # Minus infinity is a choice that the mask forbids.
        bad_rows = (params.isnan() | params.isposinf()).any(1)
        yield f"policy parameters of {key}", bad_rows.cpu().view(T, B), True
    yield "value", ~found.value.isfinite().cpu(), True
    # An ignored row's action had no effect, so its log-probability may be anything.
    yield "stored log-probability", ~(log_prob.isfinite() | ignored), True
    for name, tensor in (
        ("log-probability", found.log_prob),
        ("entropy of the policy", found.entropy),
        ("importance ratio", found.ratio),
    ):
        yield name, ~(tensor.isfinite().cpu() | ignored), True
    yield "V-trace target", ~(found.returns.vs.isfinite().cpu() | ignored), False
    yield "advantage", ~(found.returns.advantage.isfinite().cpu() | ignored), False


def _of_whole(found: Pass, gradients: Mapping[str, Tensor]) -> Iterator[str]:
    """Names of tensors that have no rows and are not finite, in the order of the pass."""
    for name in ("policy_loss", "value_loss", "entropy", "loss"):
        if not bool(getattr(found.terms, name).isfinite()):
            yield name.replace("_", " ")
    # From the loss backwards: what is bad spoils what the backward pass comes to later.
    for name, gradient in reversed(list(gradients.items())):
        if not bool(gradient.isfinite().all()):
            yield f"gradient of {name}"
    squares = {
        name: float(gradient.double().square().sum()) for name, gradient in gradients.items()
    }
    if sum(squares.values()) ** 0.5 > torch.finfo(torch.float32).max ** 0.5:
        yield f"norm of the gradient, most of it of {max(squares, key=lambda n: squares[n])}"


def _named(envs: list[int]) -> str:
    if len(envs) == 1:
        return f"environment {envs[0]}"
    if len(envs) <= MOST_NAMED:
        return f"environments {', '.join(map(str, envs[:-1]))} and {envs[-1]}"
    named = ", ".join(map(str, envs[:MOST_NAMED]))
    others = len(envs) - MOST_NAMED
    return f"environments {named} and {others} other{'s' if others > 1 else ''}"
