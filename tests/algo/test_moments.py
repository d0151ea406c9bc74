"""Merged moments are those of all rows at once."""

from __future__ import annotations

import pytest
import torch

from fastrl.algo.moments import merge_moments, no_moments


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [5, 1, 100, 7]])
def test_moments_of_batches_are_those_of_all_rows(sizes):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(n, 3, 2, generator=generator) * 10 + 1000 for n in sizes]
    moments = no_moments((3, 2))
    for batch in batches:
        moments = merge_moments(moments, batch)
    rows = torch.cat(batches).double()
    assert moments.num_rows == len(rows)
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-6, atol=0)
    expected = rows.var(0, correction=0)
    torch.testing.assert_close(moments.variance, expected, rtol=1e-4, atol=1e-6)


def test_pixels_are_taken_as_they_are():
    rows = torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8)
    moments = merge_moments(no_moments((2,)), rows)
    assert moments.mean.tolist() == [127.5, 255.0]
    assert moments.variance.tolist() == [127.5**2, 0.0]
