"""IMPALA's network and the small one for small images, against a plain float64 computation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fastrl.models.encoders import ImpalaEncoder, NatureEncoder, SmallImageEncoder
from fastrl.models.normalizer import ObservationNormalizer

SHAPES = [(4, 84, 84), (3, 64, 50), (3, 7, 7), (5, 10, 10), (1, 1, 1), (2, 1, 3), (3, 35, 35)]
ENCODERS = [(ImpalaEncoder, shape) for shape in SHAPES] + [
    (SmallImageEncoder, shape) for shape in SHAPES[2:]
]
EVERY = pytest.mark.parametrize(
    "kind, shape",
    ENCODERS,
    ids=lambda x: getattr(x, "__name__", "x".join(map(str, x)) if isinstance(x, tuple) else x),
)


def images(shape, n=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *shape), generator=g, dtype=torch.uint8)


def built(kind, shape, **more):
    torch.manual_seed(0)
    encoder = kind(shape, **more)
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.05)
    return encoder


def in_float64(encoder):
    return {n: p.detach().double().requires_grad_() for n, p in encoder.named_parameters()}


def reference(encoder, x, p=None):
    """The network as it is drawn, in float64, of pixels already scaled."""
    p = p or in_float64(encoder)

    def conv(name, x, stride=1):
        return F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], stride=stride, padding=1)

    if isinstance(encoder, SmallImageEncoder):
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2)):
            x = conv(name, x, stride).relu()
    else:
        for i in range(len(encoder.sections)):
            at = f"sections.{i}"
            x = F.max_pool2d(conv(f"{at}.conv", x), 3, stride=2, padding=1)
            for block in ("residual1", "residual2"):
                y = conv(f"{at}.{block}.conv1", x.relu()).relu()
                x = x + conv(f"{at}.{block}.conv2", y)
        x = x.relu()
    x = x.permute(0, 2, 3, 1).flatten(1)
    return F.linear(x, p["fc.weight"], p["fc.bias"]).relu()


@EVERY
def test_against_float64(kind, shape):
    encoder = built(kind, shape)
    obs = images(shape)
    features = encoder(obs)
    assert features.shape == (3, encoder.size_out) and features.dtype == torch.float32
    expected = reference(encoder, obs.double() / 255)
    torch.testing.assert_close(features.double(), expected, atol=1e-5, rtol=1e-5)


@EVERY
def test_against_float64_with_a_normaliser(kind, shape):
    encoder = built(kind, shape)
    normalizer = ObservationNormalizer(shape, 1 / 255, image=True)
    g = torch.Generator().manual_seed(1)
    mean = torch.rand(shape, generator=g) * 255
    variance = torch.rand(shape, generator=g) * 4000
    normalizer.set(mean, variance)
    obs = images(shape)
    x = ((obs.double() - mean.double()) / (variance.double() + 1).sqrt()).clamp(-5, 5)
    torch.testing.assert_close(
        encoder(obs, normalizer).double(), reference(encoder, x), atol=2e-5, rtol=2e-5
    )


@EVERY
def test_bf16_is_close_and_the_same_under_autocast_as_in_a_copy(kind, shape):
    encoder = built(kind, shape)
    obs = images(shape)
    with torch.no_grad():
        exact = encoder(obs)
        with torch.autocast("cpu", torch.bfloat16):
            autocast = encoder(obs)
        half = kind(shape)
        half.load_state_dict(encoder.state_dict())
        copied = half.to(torch.bfloat16)(obs)
    assert autocast.dtype == copied.dtype == torch.bfloat16
    assert torch.equal(autocast, copied)
    assert (autocast.float() - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("kind", [ImpalaEncoder, SmallImageEncoder])
def test_gradients_against_float64(kind):
    """Nothing that a backward pass needs is overwritten by what works in place."""
    encoder = built(kind, (2, 9, 6), channels=(4, 5, 6), features=7)
    obs = images((2, 9, 6), 6)
    encoder(obs).square().sum().backward()
    p = in_float64(encoder)
    reference(encoder, obs.double() / 255, p).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), p[name].grad, atol=1e-4, rtol=1e-4)


def gram(layer):
    w = layer.weight.detach().flatten(1).double()
    return w @ w.t() if w.shape[0] <= w.shape[1] else w.t() @ w


def test_initial_weights_are_orthogonal():
    torch.manual_seed(0)
    small, impala = SmallImageEncoder((3, 7, 7)), ImpalaEncoder((4, 84, 84))
    gains = {layer: math.sqrt(2) for layer in (small.conv1, small.conv2, small.conv3, small.fc)}
    gains[impala.fc] = math.sqrt(2)
    for section in impala.sections:
        gains[section.conv] = 1.0
        for block in (section.residual1, section.residual2):
            gains[block.conv1] = math.sqrt(2)
            gains[block.conv2] = math.sqrt(2 / 6)
    for layer, gain in gains.items():
        g = gram(layer)
        torch.testing.assert_close(g, gain**2 * torch.eye(len(g)).double(), atol=1e-4, rtol=0)
        assert (layer.bias == 0).all()
    convolutions = [m for m in impala.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 15, "fifteen convolutions, as the paper says"


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 64, 64)])
def test_features_of_a_fresh_network_are_of_the_size_of_natures(shape):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    for scale, obs in ((1 / 255, images(shape)), (1.0, torch.randn(3, *shape, generator=g))):
        size = ImpalaEncoder(shape, scale)(obs).square().mean().sqrt()
        other = NatureEncoder(shape, scale)(obs).square().mean().sqrt()
        assert 0.2 * other < size < 5 * other


def test_sizes_can_be_chosen():
    encoder = ImpalaEncoder((3, 64, 64), channels=(8, 12), features=40)
    assert [s.conv.out_channels for s in encoder.sections] == [8, 12]
    assert encoder(images((3, 64, 64))).shape == (3, 40) == (3, encoder.size_out)
    assert encoder.fc.in_features == 12 * 16 * 16
    encoder = SmallImageEncoder((3, 7, 7), channels=(4, 6, 8), features=10)
    assert encoder(images((3, 7, 7))).shape == (3, 10)
