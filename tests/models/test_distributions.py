import math

import numpy as np
import pytest
import torch

from fastrl.envs.spec import ActionSpec
from fastrl.models.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiBernoulli,
    MultiCategorical,
    distribution_for,
)
from fastrl.models.noise import uniform


def noise(n, dims=1, seed=0):
    return torch.from_numpy(uniform(seed, np.arange(n), np.zeros(n, np.int64), 0, dims))


EXTREMES = torch.tensor([[2.0**-24], [0.5 - 2.0**-24], [0.5 + 2.0**-24], [1 - 2.0**-24]])


def in_heads_layout(params):
    """The same numbers, stored as the policy's heads store them."""
    return params.t().contiguous().t()


@pytest.mark.parametrize("n", [1, 2, 3, 6, 18])
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_categorical_against_float64(n, scale):
    torch.manual_seed(n)
    params = torch.randn(200, n) * scale
    action = torch.randint(0, n, (200,), dtype=torch.int32)
    reference = torch.distributions.Categorical(logits=params.double())
    d = Categorical(n)
    for p in (params, in_heads_layout(params)):
        log_prob, entropy = d.log_prob_and_entropy(p, action)
        torch.testing.assert_close(log_prob.double(), reference.log_prob(action), atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy.double(), reference.entropy(), atol=1e-5, rtol=0)
        assert torch.equal(d.log_prob(p, action), log_prob)
        assert torch.equal(d.entropy(p), entropy)
        assert torch.equal(d.mode(p).long(), params.argmax(-1))
    assert log_prob.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("n", [2, 3, 18])
def test_categorical_sample_is_the_inverse_of_the_cumulative_distribution(n):
    torch.manual_seed(n)
    params = torch.randn(5000, n) * 2
    u = noise(5000)
    cumulative = params.double().softmax(-1).cumsum(-1)
    expected = (cumulative <= u.double()).sum(-1).clamp(max=n - 1)
    near = (cumulative - u.double()).abs().amin(-1) < 1e-6  # where f32 may decide either way
    action = Categorical(n).sample(params, u)
    assert action.dtype == torch.int32 and action.shape == (5000,)
    assert near.sum() < 10
    assert torch.equal(action[~near].long(), expected[~near])


def test_categorical_frequencies_equal_probabilities():
    params = torch.tensor([0.1, -1.0, 2.0, 0.5])
    n = 200_000
    action = Categorical(4).sample(params.expand(n, 4), noise(n, seed=8))
    frequency = torch.bincount(action, minlength=4) / n
    assert (frequency - params.softmax(0)).abs().max() < 4 * math.sqrt(0.25 / n)


def test_impossible_actions_are_never_chosen_and_the_rest_always_in_range():
    inf = math.inf
    patterns = torch.tensor(
        [
            [0.0, -inf, -inf, -inf],
            [-inf, 0.0, -inf, -inf],
            [-inf, -inf, -inf, 0.0],
            [-inf, 0.3, -inf, 0.1],
            [0.2, -inf, 0.1, -inf],
            [-200.0, 0.0, -200.0, 0.0],  # underflows to a probability of exactly 0
            [-1e30, -1e30, 1e30, -1e30],
        ]
    )
    u = torch.cat((EXTREMES, noise(2000)))
    for logits in patterns:
        params = logits.expand(len(u), 4)
        action, log_prob = Categorical(4).sample_with_log_prob(params, u)
        assert action.min() >= 0 and action.max() < 4
        assert (logits.softmax(0)[action.long()] > 0).all()
        assert log_prob.isfinite().all()


def test_rounding_never_leaves_the_range_for_many_equal_actions():
    for n in (3, 7, 18, 1000):
        params = torch.randn(4, n) * 0.1
        action = Categorical(n).sample(params, EXTREMES)
        assert action.min() >= 0 and action.max() < n
        assert action[0] == 0 and action[-1] == n - 1


def test_entropy_with_impossible_actions_has_value_and_gradient():
    params = torch.tensor([[0.0, 1.0, -math.inf], [0.0, 0.0, -math.inf]], requires_grad=True)
    entropy = Categorical(3).entropy(params)
    assert entropy[1].item() == pytest.approx(math.log(2), abs=1e-6)
    (1e6 * entropy).sum().backward()
    assert params.grad.isfinite().all() and (params.grad[:, 2] == 0).all()


def test_masks_keep_the_storage_order_of_the_heads_and_free_rows_that_allow_nothing():
    params = in_heads_layout(torch.randn(6, 3).bfloat16())
    allowed = torch.tensor(
        [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.bool
    )
    masked = Categorical(3).mask(params, allowed)
    assert masked.dtype == torch.float32 and masked.t().is_contiguous()
    expected = params.float().masked_fill(~allowed, -math.inf)
    expected[4] = params[4].float()
    assert torch.equal(masked, expected)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2, 3)])
def test_gaussian_against_float64(shape):
    torch.manual_seed(1)
    d = DiagonalGaussian(shape)
    assert d.num_params == 2 * d.size
    params = torch.cat((torch.randn(300, d.size) * 3, torch.randn(300, d.size)), 1)
    mean, std = params[:, : d.size].double(), params[:, d.size :].double().exp()
    action = (mean + std * torch.randn(300, d.size)).float().reshape(300, *shape)
    reference = torch.distributions.Normal(mean, std)
    log_prob, entropy = d.log_prob_and_entropy(in_heads_layout(params), action)
    expected = reference.log_prob(action.reshape(300, -1).double()).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(entropy.double(), reference.entropy().sum(-1), atol=1e-5, rtol=1e-6)
    u = noise(300, d.size)
    sample = d.sample(params, u)
    assert sample.shape == (300, *shape) and sample.dtype == torch.float32
    torch.testing.assert_close(
        sample.reshape(300, -1).double(), reference.icdf(u.double()), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(d.mode(params).reshape(300, -1), params[:, : d.size])


def test_gaussian_density_integrates_to_one_and_its_log_to_the_entropy():
    d = DiagonalGaussian((1,))
    for mean, log_std in ((0.0, 0.0), (1.5, -1.0), (-3.0, 1.2), (0.7, -5.0)):
        std = math.exp(log_std)
        x = torch.linspace(mean - 8 * std, mean + 8 * std, 20_001)
        params = torch.tensor([[mean, log_std]]).expand(len(x), 2)
        log_p = d.log_prob(params, x[:, None]).double()
        total = torch.trapezoid(log_p.exp(), x.double())
        entropy = torch.trapezoid(-log_p.exp() * log_p, x.double())
        assert total.item() == pytest.approx(1.0, abs=1e-5)
        assert entropy.item() == pytest.approx(d.entropy(params)[0].item(), abs=1e-5)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (2.5, -3.0), (-40.0, 1.0), (0.1, 2.0)])
def test_gaussian_density_is_right_to_1e_5_within_four_deviations(mean, log_std):
    """Of the f32 action that is stored, which may lie between the points of the grid."""
    d = DiagonalGaussian((1,))
    std = math.exp(log_std)
    x = torch.linspace(mean - 4 * std, mean + 4 * std, 10_001)
    params = torch.tensor([[mean, log_std]]).expand(len(x), 2)
    mu, log_sigma = (params[0, i].double() for i in range(2))
    z = (x.double() - mu) / log_sigma.exp()
    expected = -0.5 * z.square() - log_sigma - 0.5 * math.log(2 * math.pi)
    found = d.log_prob(params, x[:, None]).double()
    assert ((found - expected).expm1().abs() <= 1e-5).all(), "the density itself"
    # The logarithm is 0 somewhere, and there no number of bits gives a relative error.
    error = (found - expected).abs()
    assert (error <= 1e-5 * expected.abs().clamp_min(0.1)).all()


def test_gaussian_samples_are_finite_at_the_ends_and_normal_in_between():
    d = DiagonalGaussian((1,))
    ends = d.sample(torch.zeros(4, 2), EXTREMES)
    assert ends.isfinite().all()
    assert ends[0] == -ends[-1] and 5.2 < ends[-1] < 5.5
    z = d.sample(torch.zeros(200_000, 2), noise(200_000)).double()
    assert abs(z.mean()) < 4 / math.sqrt(2e5)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / 2e5)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / 2e5)


# ------------------------------------------------------------------- what holds for all of them

EVERY = pytest.mark.parametrize(
    "d",
    [
        Categorical(1),
        Categorical(2),
        Categorical(18),
        DiagonalGaussian(()),
        DiagonalGaussian((1,)),
        DiagonalGaussian((2, 3)),
        MultiCategorical((4, 4, 4)),
        MultiCategorical((1,)),
        MultiCategorical((3, 2, 5)),
        MultiCategorical((2, 70, 1, 17, 2, 6)),
        MultiCategorical((3, 7) * 40),
        MultiBernoulli(1),
        MultiBernoulli(9),
        MultiBernoulli(80),
    ],
    ids=repr,
)


def reference_parts(d, params):
    """The same distribution as a list of torch's own, in float64, and the slice of the action that
    each one is of."""
    params = params.double()
    if isinstance(d, DiagonalGaussian):
        normal = torch.distributions.Normal(params[:, : d.size], params[:, d.size :].exp())
        return [(torch.distributions.Independent(normal, 1), slice(None))]
    if isinstance(d, MultiBernoulli):
        bernoulli = torch.distributions.Bernoulli(logits=params)
        return [(torch.distributions.Independent(bernoulli, 1), slice(None))]
    nvec = d.nvec if isinstance(d, MultiCategorical) else (d.num_actions,)
    return [
        (torch.distributions.Categorical(logits=logits), i)
        for i, logits in enumerate(params.split(nvec, 1))
    ]


def reference_log_prob(d, params, action):
    action = action.double().reshape(len(params), -1)
    return sum(part.log_prob(action[:, at]) for part, at in reference_parts(d, params))


def reference_entropy(d, params):
    return sum(part.entropy() for part, _ in reference_parts(d, params))


def reference_kl(d, p, q):
    pairs = zip(reference_parts(d, p), reference_parts(d, q), strict=True)
    return sum(torch.distributions.kl_divergence(p, q) for (p, _), (q, _) in pairs)


@EVERY
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_log_prob_and_entropy_against_float64(d, scale):
    torch.manual_seed(2)
    params = torch.randn(300, d.num_params) * scale
    action = d.sample(params, noise(300, d.noise_dims))
    for p in (params, in_heads_layout(params)):
        log_prob, entropy = d.log_prob_and_entropy(p, action)
        assert log_prob.dtype == entropy.dtype == torch.float32
        assert log_prob.shape == entropy.shape == (300,)
        torch.testing.assert_close(
            log_prob.double(), reference_log_prob(d, params, action), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            entropy.double(), reference_entropy(d, params), atol=1e-5, rtol=1e-5
        )
        assert torch.equal(d.log_prob(p, action), log_prob)
        assert torch.equal(d.entropy(p), entropy)


@EVERY
def test_samples_and_modes_have_the_stored_form(d):
    torch.manual_seed(0)
    params = torch.randn(50, d.num_params)
    shape = {
        Categorical: lambda: (),
        DiagonalGaussian: lambda: d.shape,
        MultiCategorical: lambda: (len(d.nvec),),
        MultiBernoulli: lambda: (d.size,),
    }[type(d)]()
    dtype = torch.float32 if isinstance(d, DiagonalGaussian) else torch.int32
    for action in (d.sample(params, noise(50, d.noise_dims)), d.mode(params)):
        assert action.shape == (50, *shape) and action.dtype == dtype


@EVERY
def test_nothing_is_more_probable_than_the_mode(d):
    torch.manual_seed(1)
    params = torch.randn(200, d.num_params)
    best = d.log_prob(params, d.mode(params))
    for seed in range(5):
        action = d.sample(params, noise(200, d.noise_dims, seed))
        assert (d.log_prob(params, action) <= best + 1e-6).all()


@EVERY
def test_nothing_is_read_back(d):
    """A tensor on the meta device has no numbers: reading one back would raise."""
    p, q = torch.zeros(2, 7, d.num_params, device="meta")
    u = torch.zeros(7, d.noise_dims, device="meta")
    action, log_prob = d.sample_with_log_prob(p, u)
    d.log_prob_and_entropy(p, action)
    assert d.mode(p).shape == action.shape
    assert d.kl(p, q).shape == d.kl_from_uniform(p).shape == log_prob.shape == (7,)
    if isinstance(d, Categorical | MultiCategorical):
        assert d.mask(p, torch.zeros(7, d.num_params, dtype=torch.bool, device="meta")).is_meta


@EVERY
def test_acting_and_evaluating_give_a_ratio_of_exactly_one(d):
    torch.manual_seed(0)
    params = in_heads_layout(torch.randn(1000, d.num_params))
    u = noise(1000, d.noise_dims)
    action, log_prob = d.sample_with_log_prob(params, u)
    assert torch.equal(action, d.sample(params, u))
    stored = action.contiguous()  # as it comes back from the arena
    assert torch.equal(d.log_prob(params, stored), log_prob)
    assert torch.equal(d.log_prob_and_entropy(params, stored)[0], log_prob)
    # A slice of the rows: a minibatch does not see the rows that the batch of acting had.
    part = d.log_prob(in_heads_layout(params[100:357]), stored[100:357])
    if d.noise_dims < 8:
        assert torch.equal(part, log_prob[100:357])
    else:  # torch's own sums of more terms depend on where in a register a column lies
        torch.testing.assert_close(part, log_prob[100:357], rtol=1e-6, atol=1e-6)


@EVERY
def test_bf16_parameters_are_evaluated_in_f32(d):
    torch.manual_seed(0)
    params = torch.randn(64, d.num_params).bfloat16()
    u = noise(64, d.noise_dims)
    assert torch.equal(d.sample(params, u), d.sample(params.float(), u))
    action, log_prob = d.sample_with_log_prob(params, u)
    assert log_prob.dtype == torch.float32 and d.entropy(params).dtype == torch.float32
    assert torch.equal(log_prob, d.log_prob(params.float(), action))


@pytest.mark.parametrize(
    "d",
    [
        Categorical(3),
        DiagonalGaussian((2,)),
        MultiCategorical((3, 3)),
        MultiCategorical((2, 9, 3, 1)),
        MultiBernoulli(3),
    ],
    ids=repr,
)
def test_gradients_against_float64_differences(d):
    torch.manual_seed(0)
    params = torch.randn(5, d.num_params)
    action = d.sample(params, noise(5, d.noise_dims))
    leaf = params.clone().requires_grad_()
    log_prob, entropy = d.log_prob_and_entropy(leaf, action)
    (log_prob.sum() + entropy.sum()).backward()

    def reference(p):
        return reference_log_prob(d, p, action).sum() + reference_entropy(d, p).sum()

    p = params.double()
    for i in range(params.numel()):
        h = torch.zeros_like(p).view(-1).index_fill(0, torch.tensor(i), 1e-6).view_as(p)
        slope = (reference(p + h) - reference(p - h)) / 2e-6
        assert leaf.grad.view(-1)[i].item() == pytest.approx(slope.item(), abs=1e-5, rel=1e-5)


# ------------------------------------------------------------------------------------- KL(p‖q)


@EVERY
@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0])
def test_kl_against_float64(d, distance):
    torch.manual_seed(3)
    p = torch.randn(300, d.num_params)
    q = p + distance * torch.randn(300, d.num_params)
    expected = reference_kl(d, p, q)
    for params in ((p, q), (in_heads_layout(p), in_heads_layout(q)), (p, in_heads_layout(q))):
        kl = d.kl(*params)
        assert kl.dtype == torch.float32 and kl.shape == (300,)
        assert (kl >= 0).all()
        # What rounding adds is up to 1e-7 for each component, however close the two are.
        atol = max(1e-6, 1e-7 * d.noise_dims)
        torch.testing.assert_close(kl.double(), expected, atol=atol, rtol=1e-5)


@EVERY
def test_kl_of_equal_parameters_is_exactly_zero_in_every_layout(d):
    torch.manual_seed(4)
    p = torch.randn(500, d.num_params) * 3
    for other in (p, p.clone(), in_heads_layout(p)):
        assert torch.equal(d.kl(p, other), torch.zeros(500))
        assert torch.equal(d.kl(other, p), torch.zeros(500))


@EVERY
def test_kl_is_never_negative_however_close(d):
    torch.manual_seed(5)
    p = torch.randn(2000, d.num_params) * 2
    for distance in (1e-7, 1e-6, 1e-5, 1e-4):
        assert (d.kl(p, p + distance * torch.randn_like(p)) >= 0).all()


@EVERY
def test_kl_computes_in_f32_whatever_comes_in(d):
    torch.manual_seed(6)
    p, q = torch.randn(2, 50, d.num_params).bfloat16()
    assert torch.equal(d.kl(p, q), d.kl(p.float(), q.float()))


def test_kl_of_impossible_actions():
    inf = math.inf
    p = torch.tensor([[0.0, 1.0, -inf], [0.0, 0.0, -inf], [0.0, -inf, -inf]], requires_grad=True)
    q = torch.tensor([[0.5, 0.0, -inf], [0.0, 0.0, 0.0], [0.3, -inf, 2.0]], requires_grad=True)
    kl = Categorical(3).kl(p, q)
    first = reference_kl(Categorical(2), p[:1, :2], q[:1, :2]).item()
    assert kl[0].item() == pytest.approx(first, abs=1e-6)
    assert kl[1].item() == pytest.approx(math.log(1.5), abs=1e-6)
    assert kl[2].item() == pytest.approx(math.log(1 + math.exp(1.7)), abs=1e-6)
    kl.sum().backward()
    assert p.grad.isfinite().all() and q.grad.isfinite().all()
    assert p.grad[0, 2] == 0 and q.grad[0, 2] == 0
    never = Categorical(3).kl(torch.zeros(1, 3), torch.tensor([[0.0, 0.0, -inf]]))
    assert never.item() == inf


# --------------------------------------------------------------------------- KL(uniform‖p)


@EVERY
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_kl_from_uniform_is_kl_of_equal_choices(d, scale):
    torch.manual_seed(7)
    params = torch.randn(300, d.num_params) * scale
    if isinstance(d, DiagonalGaussian):
        expected = torch.zeros(300).double()
    else:
        expected = reference_kl(d, torch.zeros_like(params), params)
    for p in (params, in_heads_layout(params), params.bfloat16().float()):
        found = d.kl_from_uniform(p)
        assert found.dtype == torch.float32 and found.shape == (300,)
    torch.testing.assert_close(
        d.kl_from_uniform(in_heads_layout(params)).double(), expected, atol=1e-5, rtol=1e-5
    )


def test_kl_from_uniform_counts_only_what_is_possible():
    inf = math.inf
    params = torch.tensor([[0.0, 1.0, -inf], [0.0, -inf, 2.0], [-inf, -inf, 5.0]])
    leaf = params.requires_grad_()
    found = Categorical(3).kl_from_uniform(leaf)
    of_two = [math.log((1 + math.exp(x)) / 2) - x / 2 for x in (1.0, 2.0)]
    assert found.tolist() == pytest.approx([*of_two, 0.0], abs=1e-6)
    found.sum().backward()
    one, two = (1 / (1 + math.exp(-x)) - 0.5 for x in (1.0, 2.0))  # p - 1/n of the greater
    expected = torch.tensor([[-one, one, 0.0], [-two, 0.0, two], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(leaf.grad, expected, atol=1e-6, rtol=0)
    switches = torch.tensor([[inf, -inf, 0.0]], requires_grad=True)
    certain = MultiBernoulli(3).kl_from_uniform(switches)
    certain.backward()
    assert certain.item() == pytest.approx(0.0, abs=1e-6) and not switches.grad.any()


def test_kl_from_uniform_pulls_back_what_entropy_gives_up():
    """At a probability of 1e-9 the gradient by that action's logit: p - 1/n against about p."""
    params = torch.tensor([[0.0, 0.0, math.log(2e-9)]], requires_grad=True)
    Categorical(3).kl_from_uniform(params).backward()
    assert params.grad[0, 2].item() == pytest.approx(-1 / 3, abs=1e-6)
    params.grad = None
    Categorical(3).entropy(params).backward()
    assert abs(params.grad[0, 2].item()) < 1e-7


def test_every_kind_of_action_has_its_distribution():
    def of(kind, shape, dtype="int32", **more):
        return distribution_for(ActionSpec(kind, shape, dtype, dtype, **more))

    assert of("discrete", (), n=4) == Categorical(4)
    assert of("multi_discrete", (2,), nvec=(3, 5)) == MultiCategorical((3, 5))
    assert of("multi_binary", (7,)) == MultiBernoulli(7)
    box = {"low": (-1.0,) * 6, "high": (1.0,) * 6}
    assert of("continuous", (2, 3), "float32", **box) == DiagonalGaussian((2, 3))
    # A stored action is the sample itself, whatever is made of it afterwards.
    assert of("continuous", (2, 3), "float32", squash=True, **box) == DiagonalGaussian((2, 3))
    with pytest.raises(ValueError, match="'text'"):
        of("text", ())
