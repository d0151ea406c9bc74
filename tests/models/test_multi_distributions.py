"""Several choices at once, against the sum over everything that can be chosen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from fastrl.models.distributions import Categorical, MultiBernoulli, MultiCategorical
from fastrl.models.noise import uniform

INF = math.inf


def noise(n, dims=1, seed=0):
    return torch.from_numpy(uniform(seed, np.arange(n), np.zeros(n, np.int64), 0, dims))


def outcomes(d):
    """Every action there is, i32 [A, k]."""
    nvec = d.nvec if isinstance(d, MultiCategorical) else (2,) * d.size
    return torch.tensor(list(itertools.product(*map(range, nvec))), dtype=torch.int32)


def probabilities(d, params):
    """Of every outcome, for one row of parameters: float64 [A], products of the components'."""
    params = params.double()
    if isinstance(d, MultiBernoulli):
        tables = [torch.stack((1 - p, p)) for p in torch.sigmoid(params)]
    else:
        tables = [logits.softmax(0) for logits in params.split(d.nvec)]
    return torch.tensor(
        [
            math.prod(table[choice].item() for table, choice in zip(tables, outcome, strict=True))
            for outcome in outcomes(d).tolist()
        ],
        dtype=torch.float64,
    )


SMALL = pytest.mark.parametrize(
    "d",
    [
        MultiCategorical((3, 3)),
        MultiCategorical((2, 5, 3)),
        MultiCategorical((1, 9, 2, 1)),
        MultiBernoulli(1),
        MultiBernoulli(4),
    ],
    ids=repr,
)


@SMALL
def test_probabilities_entropy_and_kl_by_enumeration(d):
    torch.manual_seed(0)
    p, q = torch.randn(2, d.num_params) * 1.5
    actions = outcomes(d)
    expected, other = probabilities(d, p), probabilities(d, q)
    found = d.log_prob(p.expand(len(actions), -1), actions).double()
    assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(found, expected.log(), atol=1e-5, rtol=1e-5)
    entropy = -(expected * expected.log()).sum().item()
    assert d.entropy(p[None]).item() == pytest.approx(entropy, abs=1e-5)
    kl = (expected * (expected / other).log()).sum().item()
    assert d.kl(p[None], q[None]).item() == pytest.approx(kl, abs=1e-5)


@SMALL
def test_sampling_frequencies_equal_probabilities(d):
    torch.manual_seed(1)
    n = 200_000
    params = torch.randn(d.num_params)
    action = d.sample(params.expand(n, -1), noise(n, d.noise_dims, seed=3))
    nvec = d.nvec if isinstance(d, MultiCategorical) else (2,) * d.size
    place = torch.tensor([math.prod(nvec[i + 1 :]) for i in range(len(nvec))])
    counts = torch.bincount((action * place).sum(1), minlength=math.prod(nvec))
    expected = probabilities(d, params)
    deviation = (expected * (1 - expected) / n).sqrt()
    assert ((counts / n - expected).abs() <= 4.5 * deviation + 1e-6).all()


@pytest.mark.parametrize("nvec", [(4, 4), (3, 2, 5), (2, 70, 1, 17, 2, 6), (5,) * 100])
def test_components_are_categoricals_side_by_side(nvec):
    torch.manual_seed(2)
    d = MultiCategorical(nvec)
    params = torch.randn(100, d.num_params) * 2
    u = noise(100, d.noise_dims)
    singles = [Categorical(n) for n in nvec]
    parts = params.split(nvec, 1)
    expected = [
        s.sample(p, u[:, i, None]) for i, (s, p) in enumerate(zip(singles, parts, strict=True))
    ]
    action = d.sample(params, u)
    assert torch.equal(action, torch.stack(expected, 1))
    modes = [s.mode(p) for s, p in zip(singles, parts, strict=True)]
    assert torch.equal(d.mode(params), torch.stack(modes, 1))
    log_prob = sum(
        s.log_prob(p, action[:, i]) for i, (s, p) in enumerate(zip(singles, parts, strict=True))
    )
    torch.testing.assert_close(d.log_prob(params, action), log_prob, atol=1e-5, rtol=1e-5)


IMPOSSIBLE = pytest.mark.parametrize(
    "d, row",
    [
        (MultiCategorical((2, 3)), [0.0, -INF, -INF, 0.3, 0.1]),
        (MultiCategorical((2, 2)), [-INF, 1.0, 0.0, -200.0]),
        (MultiCategorical((1, 9, 2)), [0.0, -INF, 0, 1, -INF, 2, 0, 0, 0, -INF, -INF, 0.5]),
        (MultiBernoulli(4), [-INF, INF, 0.5, -200.0]),
    ],
)


@IMPOSSIBLE
def test_impossible_choices_are_never_made_and_have_finite_gradients(d, row):
    n = 3000
    ends = torch.tensor([2.0**-24, 0.5, 1 - 2.0**-24])[:, None].expand(3, d.noise_dims)
    u = torch.cat((ends, noise(n, d.noise_dims)))
    params = torch.tensor(row).expand(len(u), -1).clone().requires_grad_()
    _, log_prob = d.sample_with_log_prob(params, u)
    assert log_prob.isfinite().all()
    entropy = d.entropy(params)
    assert entropy.isfinite().all()
    kl = d.kl(params, params.detach() * 1.0)
    assert torch.equal(kl, torch.zeros_like(kl))
    (1e6 * (log_prob + entropy + kl)).sum().backward()
    assert params.grad.isfinite().all()
    never = d.log_prob(params, d.mode(params))
    assert never.isfinite().all()


def test_log_prob_of_what_cannot_be_is_minus_infinity():
    two = MultiCategorical((2, 2))
    params = torch.tensor([[0.0, -INF, 0.0, 0.0]])
    assert two.log_prob(params, torch.tensor([[1, 0]], dtype=torch.int32)).item() == -INF
    on = torch.tensor([[-INF, 2.0]])
    assert MultiBernoulli(2).log_prob(on, torch.tensor([[1, 1]], dtype=torch.int32)).item() == -INF


@pytest.mark.parametrize("d", [MultiCategorical((2, 2)), MultiBernoulli(2)], ids=repr)
def test_kl_is_infinite_where_the_other_never_does_it(d):
    p = torch.zeros(1, d.num_params)
    q = p.clone()
    q[0, 0] = -INF
    assert d.kl(p, q).item() == INF
    assert d.kl(q, p).item() == pytest.approx(math.log(2), abs=1e-6)
    grad = q.clone().requires_grad_()
    d.kl(grad, p).sum().backward()
    assert grad.grad.isfinite().all() and grad.grad[0, 0] == 0


def test_certain_switches_add_nothing():
    params = torch.tensor([[INF, -INF, 300.0, -300.0]], requires_grad=True)
    d = MultiBernoulli(4)
    entropy = d.entropy(params)
    assert entropy.item() == 0
    entropy.sum().backward()
    assert torch.equal(params.grad, torch.zeros(1, 4))
    u = torch.cat((torch.full((1, 4), 2.0**-24), torch.full((1, 4), 1 - 2.0**-24)))
    assert d.sample(params.expand(2, 4), u).tolist() == [[1, 0, 1, 0]] * 2


def test_switches_that_are_nearly_certain_keep_their_bits():
    """log(1 - p) of p = 1 - 1e-9 would be lost, were p rounded first."""
    params = torch.tensor([[20.0, -20.0, 60.0, -60.0]])
    likely = torch.tensor([[1, 0, 1, 0]], dtype=torch.int32)
    for action in (likely, 1 - likely):
        found = MultiBernoulli(4).log_prob(params, action).double()
        expected = torch.nn.functional.logsigmoid(params.double() * (2 * action - 1)).sum(1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("nvec", [(3, 3), (2, 3, 9), (1, 4)])
def test_masks_of_components(nvec):
    torch.manual_seed(3)
    d = MultiCategorical(nvec)
    params = torch.randn(40, d.num_params).t().contiguous().t()
    allowed = torch.rand(40, d.num_params) < 0.5
    masked = d.mask(params, allowed)
    assert masked.t().is_contiguous()
    parts = zip(params.split(nvec, 1), allowed.split(nvec, 1), masked.split(nvec, 1), strict=True)
    for logits, mask, found in parts:
        free = mask | ~mask.any(1, keepdim=True)
        assert torch.equal(found, logits.masked_fill(~free, -INF))
