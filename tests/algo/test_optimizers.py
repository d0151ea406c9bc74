"""Each optimiser against the one it is named after, and what a skipped step leaves alone."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from fastrl.algo.optimizers import Adam, Optimizer, RMSProp

RATE = torch.tensor(3e-3)
GO, SKIP = torch.tensor(False), torch.tensor(True)


def gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(1000, generator=generator) * 10.0**-i for i in range(count)]


def make(kind: type[Optimizer], parameter: torch.Tensor) -> Optimizer:
    return kind(parameter, 1e-3)  # type: ignore[arg-type]


def test_adam_has_the_bits_of_torchs():
    start = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    parameter, ours = torch.nn.Parameter(start.clone()), start.clone()
    torchs = torch.optim.Adam([parameter], lr=RATE.clone(), eps=1e-5, fused=True)
    adam = Adam(ours, 1e-5)
    for number, gradient in enumerate(gradients(6)):
        skip = number == 3
        parameter.grad = gradient.clone()
        torchs.found_inf = torch.tensor(float(skip))
        torchs.step()
        adam.step(gradient, RATE, SKIP if skip else GO)
        assert torch.equal(parameter.detach(), ours)
    (state,) = torchs.state.values()
    for name, its in (("exp_avg", adam.exp_avg), ("exp_avg_sq", adam.exp_avg_sq)):
        assert torch.equal(state[name], its)
    assert float(adam.steps) == float(state["step"]) == 5


def test_rmsprop_is_tensorflows():
    """By hand: ms = 0.9·1 + 0.1·g², step = 0.5·g/√(ms + 0.1), then with momentum."""
    parameter = torch.tensor([1.0, 1.0])
    rmsprop = RMSProp(parameter, 0.1, decay=0.9, momentum=0.5)
    half = torch.tensor(0.5)
    rmsprop.step(torch.tensor([2.0, 0.0]), half, GO)
    first = 0.5 * 2.0 / math.sqrt(0.9 + 0.4 + 0.1)
    assert parameter.tolist() == pytest.approx([1.0 - first, 1.0])
    rmsprop.step(torch.tensor([1.0, 0.0]), half, GO)
    second = 0.5 * first + 0.5 * 1.0 / math.sqrt(0.9 * 1.3 + 0.1 + 0.1)
    assert parameter.tolist() == pytest.approx([1.0 - first - second, 1.0])


@pytest.mark.parametrize("kind", [Adam, RMSProp])
def test_a_skipped_step_changes_no_bit(kind):
    parameter = torch.ones(1000)
    optimizer = make(kind, parameter)
    for gradient in gradients(2):
        optimizer.step(gradient, RATE, GO)
    before = [parameter.clone(), *(getattr(optimizer, name).clone() for name in optimizer.names)]
    for bad in (math.nan, math.inf, 1.0):
        optimizer.step(torch.full((1000,), bad), RATE, SKIP)
    after = [parameter, *(getattr(optimizer, name) for name in optimizer.names)]
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [Adam, RMSProp])
def test_one_goes_on_from_its_state(kind):
    whole, first, second = (torch.ones(1000) for _ in range(3))
    uninterrupted, early = make(kind, whole), make(kind, first)
    for gradient in gradients(4):
        uninterrupted.step(gradient, RATE, GO)
    for gradient in gradients(4)[:2]:
        early.step(gradient, RATE, GO)
    late = make(kind, second)
    late.load_state(early.state())
    second.copy_(first)
    for gradient in gradients(4)[2:]:
        late.step(gradient, RATE, GO)
    assert torch.equal(whole, second)


def test_a_state_of_another_is_refused_and_changes_nothing():
    adam = Adam(torch.ones(3), 1e-5)
    adam.step(torch.ones(3), RATE, GO)
    with pytest.raises(ValueError, match="optimizer is rmsprop, not adam"):
        adam.load_state(RMSProp(torch.ones(3), 0.1).state())
    other = Adam(torch.ones(3), 1e-5).state()
    with pytest.raises(ValueError, match="shape"):
        adam.load_state({**other, "exp_avg_sq": torch.zeros(4)})
    with pytest.raises(KeyError):
        adam.load_state({"kind": "adam"})
    assert float(adam.steps) == 1 and adam.exp_avg.any()


def test_neither_imports_torchs_compiler():
    """A second of a core and 70 MB at each start."""
    script = """
import sys, torch
from fastrl.algo.optimizers import Adam, RMSProp
for optimizer in (Adam(torch.ones(3), 1e-5), RMSProp(torch.ones(3), 0.1)):
    optimizer.step(torch.ones(3), torch.tensor(0.1), torch.tensor(False))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
