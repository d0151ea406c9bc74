"""One choice among n in one native pass, against torch and against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrl.kernels import MOST_CHOICES, choose
from fastrl.models.distributions.choice import invert


def chosen(log_p: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    action, log_prob = torch.full((len(u),), -1, dtype=torch.int32), torch.zeros(len(u))
    choose(log_p, u, action, log_prob)
    return action, log_prob


def random_log_p(n: int, count: int, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.log_softmax(torch.randn(n, count, generator=generator) * spread, 0)


def uniform(count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(0)).clamp(1e-6, 1 - 1e-6)


@pytest.mark.parametrize("n", [1, 2, 6, 18, MOST_CHOICES])
@pytest.mark.parametrize("count", [1, 7, 256, 1000])
def test_the_choice_is_torchs_but_at_the_border_of_two(n, count):
    log_p, u = random_log_p(n, count), uniform(count)
    action, log_prob = chosen(log_p, u)
    assert torch.equal(log_prob, log_p.gather(0, action.long()[None])[0]), "bit by bit"
    other = action != invert(log_p.exp(), u)
    upper = log_p.double().exp().cumsum(0)
    distance = (upper - u.double()).abs().min(0).values
    assert (distance[other] < 1e-6).all() and other.float().mean() < 0.01


def test_frequencies_are_the_probabilities():
    count = 200_000
    log_p = torch.tensor([0.5, 0.2, 0.0, 0.3]).log()[:, None].expand(4, count).contiguous()
    u = torch.from_numpy((np.arange(count, dtype=np.float32) + 0.5) / count)
    action, _ = chosen(log_p, u)
    share = torch.bincount(action, minlength=4) / count
    torch.testing.assert_close(share, torch.tensor([0.5, 0.2, 0.0, 0.3]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("only", [0, 3, 5])
def test_what_has_no_probability_is_never_chosen(only):
    log_p = torch.full((6, 300), -torch.inf)
    log_p[only] = 0.0
    u = torch.linspace(2**-24, 1 - 2**-24, 300)
    action, log_prob = chosen(log_p, u)
    assert (action == only).all() and (log_prob == 0).all()


def test_rows_of_a_larger_array_are_read_where_they_lie():
    wide = random_log_p(5, 40)
    action, log_prob = chosen(wide[:, 8:24], uniform(16))
    again, log_prob_again = chosen(wide[:, 8:24].contiguous(), uniform(16))
    assert torch.equal(action, again) and torch.equal(log_prob, log_prob_again)


def test_wrong_shapes_are_refused():
    log_p = random_log_p(3, 10)
    with pytest.raises(ValueError, match="The number of random numbers is 9, expected 10"):
        chosen(log_p, uniform(9))
    with pytest.raises(ValueError, match=f"There are {MOST_CHOICES + 1} choices"):
        chosen(random_log_p(MOST_CHOICES + 1, 4), uniform(4))
    with pytest.raises(ValueError, match="The stride of rows is 3, expected 1"):
        chosen(log_p.t().contiguous().t(), uniform(10))
