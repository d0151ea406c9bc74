"""The learning rate falls where the policy moved too far, and rises where it hardly moved."""

from __future__ import annotations

import math

import pytest
import torch

from fastrl.algo.schedules import (
    MAX_RATE,
    MIN_RATE,
    adapt_learning_rate,
    barrier_coef,
    entropy_coef,
    target_kl,
)
from fastrl.config import LearnOptions

TARGET = 0.01


def adapted(rate, kl, target=TARGET):
    result = adapt_learning_rate(torch.tensor(rate, dtype=torch.float64), torch.tensor(kl), target)
    assert result.shape == () and result.dtype == torch.float64
    return result.item()


@pytest.mark.parametrize("kl", [0.0201, 0.5, 1e30, math.inf])
def test_it_falls_where_the_policy_moved_too_far(kl):
    assert adapted(3e-4, kl) == pytest.approx(2e-4)


@pytest.mark.parametrize("kl", [0.0, 1e-9, 0.0049])
def test_it_rises_where_the_policy_hardly_moved(kl):
    assert adapted(2e-4, kl) == pytest.approx(3e-4)


@pytest.mark.parametrize("kl", [0.0051, 0.01, 0.0199])
def test_it_stays_where_the_policy_moved_about_as_far_as_it_should(kl):
    assert adapted(2e-4, kl) == 2e-4


def test_at_the_very_bounds_it_stays():
    assert adapted(2e-4, 0.5, target=0.25) == adapted(2e-4, 0.125, target=0.25) == 2e-4


def test_it_is_kept_within_its_bounds():
    assert adapted(9e-3, 0.0) == MAX_RATE and adapted(MAX_RATE, 0.0) == MAX_RATE
    assert adapted(1.2e-6, 1.0) == MIN_RATE and adapted(MIN_RATE, 1.0) == MIN_RATE
    assert adapted(0.5, TARGET) == MAX_RATE and adapted(0.0, TARGET) == MIN_RATE
    assert adapted(MAX_RATE, 1.0) == pytest.approx(MAX_RATE / 1.5), "it can come back"
    assert adapted(MIN_RATE, 0.0) == pytest.approx(MIN_RATE * 1.5)


@pytest.mark.parametrize("rate", [0.0, 1e-7, 3e-4, 0.5])
def test_a_divergence_of_nan_leaves_the_rate_as_it_was(rate):
    assert adapted(rate, math.nan) == rate


def test_nothing_is_read_back_and_the_dtype_stays():
    """A tensor on the meta device has no numbers: reading one back would raise."""
    rate = torch.zeros((), device="meta")
    result = adapt_learning_rate(rate, torch.zeros((), device="meta", dtype=torch.float64), 0.1)
    assert result.is_meta and result.dtype == torch.float32


def test_what_falls_reaches_its_end_and_stays():
    entropy = LearnOptions(entropy_coef=0.01, entropy_final=0.002, anneal_steps=1000)
    weights = [entropy_coef(entropy, steps) for steps in (0, 500, 1000, 10**9)]
    assert weights == pytest.approx([0.01, 0.006, 0.002, 0.002])
    assert entropy_coef(LearnOptions(entropy_coef=0.01), 10**9) == 0.01
    barrier = LearnOptions(barrier_coef=0.02, barrier_final=0.002, anneal_steps=1000)
    weights = [barrier_coef(barrier, steps) for steps in (0, 500, 1000, 10**9)]
    assert weights == pytest.approx([0.02, 0.011, 0.002, 0.002])
    divergence = LearnOptions(target_kl=0.02, target_kl_final=0.005)
    targets = [target_kl(divergence, steps) for steps in (0, 500_000, 10**6, 10**9)]
    assert targets == pytest.approx([0.02, 0.0125, 0.005, 0.005])
    assert target_kl(LearnOptions(target_kl=0.02), 10**9) == 0.02
