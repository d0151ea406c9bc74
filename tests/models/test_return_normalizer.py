"""Normalised returns: no value changes when the statistics do, and they travel with the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastrl.algo.optimizers import Adam
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.policy import ActorCritic
from fastrl.models.return_normalizer import MIN_STD, ReturnNormalizer, rescaled

ACTION = ActionSpec("discrete", (), "int32", "int64", n=3)
VECTOR = EnvSpec(
    "x:y", {"obs": ObservationSpec((5,), "float32", "vector")}, {"action": ACTION}, 1, None
)
IMAGE = EnvSpec(
    "x:y", {"obs": ObservationSpec((4, 84, 84), "uint8", "image")}, {"action": ACTION}, 4, None
)
SHARED_OR_SEPARATE = pytest.mark.parametrize("separate", [False, True])


def network_of(seed=0, normalize_returns=True, spec=VECTOR, separate=False):
    torch.manual_seed(seed)
    return ActorCritic(
        spec, ModelConfig(normalize_returns=normalize_returns, separate_critic=separate)
    )


def observations(n=40, seed=1):
    return {"obs": torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)) * 3}


def scalar(x):
    return torch.tensor(x, dtype=torch.float64)


def test_it_begins_as_if_it_were_not_there():
    plain, network = network_of(normalize_returns=False), network_of()
    obs = observations()
    expected, output = plain(obs), network(obs)
    assert plain.return_normalizer is None and expected.normalized_value is expected.value
    assert torch.equal(output.value, expected.value)
    assert torch.equal(output.normalized_value, expected.value)
    targets = torch.randn(3, 4)
    assert torch.equal(network.normalize_returns(targets), targets)
    assert plain.normalize_returns(targets) is targets


def test_unset_means_no_statistics():
    assert network_of(normalize_returns=None).return_normalizer is None
    names = dict(network_of(normalize_returns=None).named_parameters())
    assert not any("return" in name for name in names)


STATISTICS = [(0.0, 1.0), (5.0, 0.3), (-2.0, 40.0), (1e4, 300.0), (-1e4, 300.0), (0.01, 0.001)]


@SHARED_OR_SEPARATE
@pytest.mark.parametrize("after", STATISTICS)
@pytest.mark.parametrize("before", STATISTICS)
def test_no_value_changes_when_the_statistics_do(before, after, separate):
    """Returns are spread as the first statistics say; then others are taken over."""
    network = network_of(separate=separate)
    with torch.no_grad():
        network.return_normalizer.mean.fill_(before[0])
        network.return_normalizer.std.fill_(before[1])
    obs = observations()
    old = network(obs)
    network.rescale_returns(scalar(after[0]), scalar(after[1]))
    new = network(obs)
    spread = max(before[1], after[1])
    error = (new.value.double() - old.value.double()).abs().max().item()
    assert error <= 1e-5 * spread
    assert network.return_normalizer.mean.item() == pytest.approx(after[0])
    assert network.return_normalizer.std.item() == pytest.approx(after[1])
    expected = (old.value.double() - after[0]) / after[1]
    error = (new.normalized_value.double() - expected).abs().max().item()
    assert error * after[1] <= 1e-5 * spread


@pytest.mark.parametrize("mean, std", [(0.0, 1.0), (3.0, 20.0), (1e4, 300.0)])
def test_a_hundred_changes_change_no_value(mean, std):
    network = network_of()
    rng = np.random.default_rng(3)
    obs = observations()
    network.rescale_returns(scalar(mean), scalar(std))
    with torch.no_grad():  # a head that has learned returns of this size
        network.value_head.bias.zero_()
    before = network(obs).value.double()
    for _ in range(100):
        network.rescale_returns(
            scalar(mean + std * rng.normal()), scalar(std * np.exp(0.3 * rng.normal()))
        )
    after = network(obs).value.double()
    assert (after - before).abs().max().item() < 1e-5 * std


def test_the_same_statistics_again_change_no_bit():
    network = network_of()
    network.rescale_returns(scalar(123.456), scalar(7.89))
    weight, bias = network.value_head.weight.clone(), network.value_head.bias.clone()
    mean, std = (
        x.detach().clone() for x in (network.return_normalizer.mean, network.return_normalizer.std)
    )
    network.rescale_returns(mean, std)
    assert torch.equal(network.value_head.weight, weight)
    assert torch.equal(network.value_head.bias, bias)


def test_rescaled_solves_its_equation():
    g = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(s, generator=g).double() for s in ((1, 6), (1,), (6, 9)))
    mean, std, new_mean, new_std = (scalar(v) for v in (3.0, 0.5, -70.0, 11.0))
    new_weight, new_bias = rescaled(weight, bias, mean, std, new_mean, new_std)
    torch.testing.assert_close(
        new_std * (new_weight @ x + new_bias) + new_mean, std * (weight @ x + bias) + mean
    )


@pytest.mark.parametrize("std", [0.0, 1e-9, -0.0])
def test_returns_that_do_not_vary_are_not_divided_by_zero(std):
    network = network_of()
    obs = observations()
    before = network(obs).value
    network.rescale_returns(scalar(2.0), scalar(std))
    assert network.return_normalizer.std.item() == pytest.approx(MIN_STD)
    assert network.normalize_returns(torch.full((3,), 2.0)).tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(network(obs).value, before, atol=1e-6, rtol=0)


@SHARED_OR_SEPARATE
def test_the_loss_of_normalised_values_has_the_gradient_that_it_says(separate):
    """Of ½((V - v)/σ)², by V = μ + σ·v̂ and v̂ = w·x + b: (V - v)/σ to b, and times x to w."""
    network = network_of(separate=separate)
    network.rescale_returns(scalar(50.0), scalar(8.0))
    obs = observations()
    targets = torch.randn(40, generator=torch.Generator().manual_seed(5)) * 8 + 50
    features = network.encode(obs)
    output = network.heads(features)
    loss = 0.5 * (output.normalized_value - network.normalize_returns(targets)).square().sum()
    loss.backward()
    error = (output.value.double() - targets.double()).detach() / 8.0
    half = features.shape[1] // 2
    critic = (features[:, half:] if separate else features).detach().double()
    expected = (error[:, None] * critic).sum(0)
    grad = network.value_head.weight.grad[0].double()
    torch.testing.assert_close(grad, expected, atol=1e-3, rtol=1e-4)
    bias = network.value_head.bias.grad.double()
    torch.testing.assert_close(bias, error.sum()[None], atol=1e-3, rtol=1e-4)
    assert network.return_normalizer.mean.grad is None
    touched = {n for n, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert any(name.startswith("encoder.actor") for name in touched) != separate


@SHARED_OR_SEPARATE
def test_statistics_are_published_with_the_weights(separate):
    network = network_of(0, separate=separate)
    flat = FlatParameters(network)
    network.rescale_returns(scalar(1e4), scalar(300.0))
    other = network_of(1, separate=separate)
    target = FlatParameters(other)
    assert target.num_floats == flat.num_floats
    target.data.copy_(flat.data)
    obs = observations()
    assert torch.equal(other(obs).value, network(obs).value)
    assert torch.equal(other(obs).normalized_value, network(obs).normalized_value)
    restored = network_of(2, separate=separate)
    restored.load_state_dict(network.state_dict())
    assert torch.equal(restored(obs).value, network(obs).value)


def test_an_optimiser_leaves_the_statistics_alone():
    network = network_of()
    flat = FlatParameters(network)
    optimizer = Adam(flat.data, 1e-5)
    network.rescale_returns(scalar(3.0), scalar(2.0))
    for _ in range(3):
        flat.zero_grad()
        network(observations()).value.sum().backward()
        optimizer.step(flat.grad, torch.tensor(0.1), torch.tensor(False))
    assert network.return_normalizer.mean.item() == 3.0
    assert network.return_normalizer.std.item() == 2.0


def test_heads_stay_f32_where_the_encoder_is_bf16():
    network = network_of(spec=IMAGE)
    flat = FlatParameters(network)
    cast = CastCopy(flat, network.encoder, torch.bfloat16)
    images = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    obs = {"obs": images}
    network.rescale_returns(scalar(1e4), scalar(300.0))
    cast.refresh()
    with torch.no_grad():
        acting = network.heads(cast.module(obs))
        with torch.autocast("cpu", torch.bfloat16):
            training = network.heads(network.encode(obs))
            inside = network(obs)
    assert acting.value.dtype == acting.normalized_value.dtype == torch.float32
    assert network.return_normalizer.std.dtype == torch.float32
    assert torch.equal(acting.value, training.value)
    assert torch.equal(inside.value, training.value)
    assert torch.equal(inside.normalized_value, training.normalized_value)


def test_acting_stores_values_in_units_of_reward():
    network = network_of()
    network.rescale_returns(scalar(1e4), scalar(300.0))
    with torch.no_grad():
        network.value_head.bias.zero_()
    obs = observations()
    _, _, value = network.act(obs, {"action": torch.full((40, 1), 0.5)})
    output = network(obs)
    assert torch.equal(value, output.value)
    torch.testing.assert_close(value, 1e4 + 300.0 * output.normalized_value)


def test_nothing_is_read_back():
    """A tensor on the meta device has no numbers: reading one back would raise."""
    normalizer = ReturnNormalizer().to("meta")
    head = nn.Linear(4, 1, device="meta")
    mean, std = (torch.zeros((), dtype=torch.float64, device="meta") for _ in range(2))
    normalizer.rescale(mean, std, head)
    assert normalizer.normalize(torch.zeros(3, 2, device="meta")).shape == (3, 2)
