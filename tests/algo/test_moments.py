"""Merged moments are those of all rows at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fastrl.algo.moments import merge_moments, merge_returns, no_moments, no_returns


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


# ------------------------------------------------------------------------------------- returns


def batches_of_returns(count=6, seed=0, offset=1e4):
    rng = np.random.default_rng(seed)
    for i in range(count):
        shape = (int(rng.integers(1, 9)), int(rng.integers(1, 7)))
        values = (offset + rng.normal(scale=30 + i, size=shape)).astype(np.float32)
        yield values, rng.random(shape) < 0.7


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_with_all_memory_the_moments_of_returns_are_those_of_all_valid_rows(offset):
    moments = no_returns()
    rows = np.empty(0)
    for values, valid in batches_of_returns(offset=offset):
        moments = merge_returns(
            moments, torch.from_numpy(values), torch.from_numpy(valid), math.inf
        )
        rows = np.concatenate((rows, values[valid].astype(np.float64)))
        if len(rows):
            assert moments.num_rows.item() == len(rows)
            assert moments.mean.item() == pytest.approx(rows.mean(), rel=1e-12, abs=1e-9)
            assert moments.variance.item() == pytest.approx(rows.var(), rel=1e-9)
    assert all(x.dtype == torch.float64 and x.shape == () for x in moments)


@pytest.mark.parametrize("longest", [0.0, 1.0, 7.5, 100.0])
def test_earlier_returns_weigh_at_most_as_many_rows_as_the_memory_is_long(longest):
    """Against weighted sums over all rows: a batch takes the past's weight down to `longest`."""
    moments = no_returns()
    rows, weights = np.empty(0), np.empty(0)
    for values, valid in batches_of_returns(12, seed=1, offset=50.0):
        moments = merge_returns(moments, torch.from_numpy(values), torch.from_numpy(valid), longest)
        new = values[valid].astype(np.float64)
        if not len(new):
            continue
        if weights.sum() > longest:
            weights *= longest / weights.sum()
        rows = np.concatenate((rows, new))
        weights = np.concatenate((weights, np.ones(len(new))))
        mean = np.average(rows, weights=weights)
        assert moments.num_rows.item() == pytest.approx(weights.sum())
        assert moments.mean.item() == pytest.approx(mean, rel=1e-9)
        variance = np.average((rows - mean) ** 2, weights=weights)
        assert moments.variance.item() == pytest.approx(variance, rel=1e-9)


@pytest.mark.parametrize("longest", [3.0, math.inf])
def test_a_batch_without_a_valid_row_changes_no_bit(longest):
    none = torch.zeros(4, 3, dtype=torch.bool)
    junk = torch.full((4, 3), math.nan)
    moments = no_returns()
    for _ in range(2):
        after = merge_returns(moments, junk, none, longest)
        assert all(torch.equal(a, b) for a, b in zip(after, moments, strict=True))
        moments = merge_returns(moments, torch.randn(4, 3) + 5, ~none, math.inf)


def test_before_the_first_row_nothing_is_scaled():
    assert [x.item() for x in no_returns()] == [0.0, 0.0, 1.0]


def test_one_row_has_no_variance():
    one = torch.tensor([[3.5]])
    moments = merge_returns(no_returns(), one, torch.ones(1, 1, dtype=torch.bool), math.inf)
    assert [x.item() for x in moments] == [1.0, 3.5, 0.0]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e38])
def test_what_an_invalid_row_holds_changes_no_bit(junk):
    g = torch.Generator().manual_seed(0)
    values, valid = torch.randn(5, 4, generator=g), torch.rand(5, 4, generator=g) < 0.6
    start = merge_returns(no_returns(), values + 1, torch.ones_like(valid), math.inf)
    clean = merge_returns(start, values.masked_fill(~valid, 0.0), valid, 9.0)
    changed = values.masked_fill(~valid, junk)
    after = merge_returns(start, changed, valid, 9.0)
    assert all(torch.equal(a, b) for a, b in zip(after, clean, strict=True))


def test_arguments_are_not_changed_and_nothing_carries_a_gradient():
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    before = values.detach().clone()
    start = no_returns()
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    moments = merge_returns(start, values, valid, 10.0)
    assert torch.equal(values.detach(), before) and start.num_rows == 0
    assert not any(x.requires_grad for x in moments)


def test_nothing_is_read_back():
    """A tensor on the meta device has no numbers: reading one back would raise."""
    values = torch.zeros(3, 2, device="meta")
    moments = merge_returns(no_returns("meta"), values, values > 0, 10.0)
    assert all(x.is_meta and x.shape == () for x in moments)
