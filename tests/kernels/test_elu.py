"""ELU of bf16 numbers in one native pass, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastrl.kernels import elu_bf16
from fastrl.models.encoders.layers import elu


def test_every_number_there_is_has_the_bits_of_torch():
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    found = bits.clone()
    elu_bf16(found)
    expected = F.elu(bits.view(torch.bfloat16))
    nan = expected.isnan()
    assert torch.equal(found.view(torch.bfloat16)[~nan], expected[~nan])
    assert found.view(torch.bfloat16)[nan].isnan().all()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_any_number_of_them(count):
    x = torch.randn(count + 2, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = x.clone()
    expected[1:-1] = F.elu(expected[1:-1])
    elu_bf16(x[1:-1].view(torch.uint16))
    assert torch.equal(x, expected), "and nothing beside them"


@pytest.mark.parametrize("shape", [(3, 5), (2, 6, 4, 3)], ids=str)
def test_gradients_are_those_of_torch(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    gradients = []
    for function in (elu, F.elu_):
        leaf = x.clone().requires_grad_()
        function(leaf * 1.0).float().square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_what_does_not_lie_in_one_piece_is_left_to_torch():
    image = torch.randn(2, 3, 4, 5).bfloat16()
    assert torch.equal(elu(image.clone()), F.elu(image))
    rows = torch.randn(8, 4).bfloat16()
    expected = F.elu(rows[:, 1])
    assert torch.equal(elu(rows[:, 1]), expected)
