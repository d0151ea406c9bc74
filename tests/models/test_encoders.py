import pytest
import torch
import torch.nn.functional as F

from fastrl.models.encoders import MLPEncoder, NatureEncoder, OneHot, layers
from fastrl.models.encoders.layers import to_channels_last
from fastrl.models.encoders.mlp import fast_tanh
from fastrl.models.normalizer import ObservationNormalizer


def images(n=5, shape=(4, 84, 84)):
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8)


def reference_nature(encoder, obs):
    """The network as the paper writes it, in float64, scaling the pixels."""
    p = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    x = obs.double() / 255
    for name, stride in (("conv1", 4), ("conv2", 2), ("conv3", 1)):
        x = F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], stride=stride))
    x = x.permute(0, 2, 3, 1).flatten(1)
    return F.relu(F.linear(x, p["fc.weight"], p["fc.bias"]))


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 96, 96), (1, 36, 50)])
def test_nature_encoder_against_float64(shape):
    torch.manual_seed(0)
    encoder = NatureEncoder(shape)
    for layer in (encoder.conv1, encoder.conv2, encoder.conv3, encoder.fc):
        torch.nn.init.normal_(layer.bias, std=0.1)
    obs = images(shape=shape)
    features = encoder(obs)
    assert features.shape == (5, 512) and features.dtype == torch.float32
    torch.testing.assert_close(
        features.double(), reference_nature(encoder, obs), atol=1e-5, rtol=1e-5
    )


def test_nature_encoder_takes_a_strided_slice_of_a_rollout():
    torch.manual_seed(0)
    encoder = NatureEncoder((4, 84, 84))
    rollout = torch.randint(0, 256, (3, 4, 4, 84, 84), dtype=torch.uint8)  # [T, E, C, H, W]
    column = rollout[:, 2]
    assert torch.equal(encoder(column), encoder(column.clone()))


def test_nature_encoder_in_bf16_is_close_to_f32_and_the_same_under_autocast_as_in_a_copy():
    torch.manual_seed(0)
    encoder = NatureEncoder((4, 84, 84))
    obs = images()
    with torch.no_grad():
        exact = encoder(obs)
        with torch.autocast("cpu", torch.bfloat16):
            autocast = encoder(obs)
        half = NatureEncoder((4, 84, 84))
        half.load_state_dict(encoder.state_dict())
        copied = half.to(torch.bfloat16)(obs)
    assert autocast.dtype == copied.dtype == torch.bfloat16
    assert torch.equal(autocast, copied)
    error = (autocast.float() - exact).norm() / exact.norm()
    assert error < 0.01


def test_nature_encoder_gradients_under_autocast_are_close_to_those_in_f32():
    torch.manual_seed(0)
    encoder = NatureEncoder((4, 84, 84))
    obs = images(8)

    def gradients(autocast):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            features = encoder(obs)
        features.float().square().sum().backward()
        return torch.cat([p.grad.flatten() for p in encoder.parameters()])

    exact, low = gradients(False), gradients(True)
    assert low.dtype == torch.float32
    assert F.cosine_similarity(exact, low, dim=0) > 0.999


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 61, 47), (1, 36, 39)], ids=str)
def test_the_first_convolution_over_squares_is_the_one_over_pixels(monkeypatch, shape):
    """In f32 here, where the order of a sum is all that may differ."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(shape[0], 8, 8, stride=4)
    obs = images(4, shape)
    normalizer = ObservationNormalizer(shape, 1 / 255, image=True)
    found = []
    for side in (1, 4):
        monkeypatch.setattr(layers, "_square", lambda *given, side=side: side)
        conv.zero_grad()
        for normalised in (None, normalizer):
            y = layers.first_convolution(conv, obs, 1 / 255, normalised)
            y.square().sum().backward()
            found.append((y.detach(), conv.weight.grad.clone()))
    for plain, squares in zip(found[:2], found[2:], strict=True):
        for one, other in zip(plain, squares, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_squares_are_for_bf16_and_strides_that_divide_the_kernel():
    obs = images(2, (4, 84, 84))

    def side(conv, dtype=torch.bfloat16, obs=obs):
        return layers._square(conv, dtype, obs)

    assert side(torch.nn.Conv2d(4, 8, 8, stride=4)) == 4
    assert side(torch.nn.Conv2d(4, 8, 8, stride=4), torch.float32) == 1
    assert side(torch.nn.Conv2d(4, 8, 8, stride=3)) == 1
    assert side(torch.nn.Conv2d(4, 8, 3)) == 1
    assert side(torch.nn.Conv2d(4, 8, 4, stride=2, padding=1)) == 1
    assert side(torch.nn.Conv2d(4, 8, 8, stride=4), obs=obs.float()) == 1


def test_every_pixel_value_survives_bf16():
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for dtype in (torch.bfloat16, torch.float32):
        out = to_channels_last(pixels, dtype)
        assert torch.equal(out.long(), pixels.long())


def test_to_channels_last_is_only_a_change_of_layout():
    obs = images(3, (4, 10, 7))
    out = to_channels_last(obs, torch.float32)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, obs.float())


@pytest.mark.parametrize("layer", ["conv1", "conv2", "conv3", "fc"])
def test_initial_weights_are_orthogonal_with_gain_sqrt_two(layer):
    torch.manual_seed(0)
    module = getattr(NatureEncoder((4, 84, 84)), layer)
    w = module.weight.detach().flatten(1).double()
    gram = w @ w.t() if w.shape[0] <= w.shape[1] else w.t() @ w
    torch.testing.assert_close(gram, 2 * torch.eye(len(gram)).double(), atol=1e-4, rtol=0)
    assert (module.bias == 0).all()


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="at least 36"):
        NatureEncoder((4, 35, 84))
    with pytest.raises(ValueError, match="channels, height, width"):
        NatureEncoder((84, 84))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_mlp_against_float64(activation):
    torch.manual_seed(0)
    encoder = MLPEncoder(7, (32, 16), activation)
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.bias)
    obs = torch.randn(50, 7)
    function = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu}[activation]
    x = obs.double()
    for layer in encoder.layers:
        x = function(F.linear(x, layer.weight.double(), layer.bias.double()))
    features = encoder(obs)
    assert features.shape == (50, 16) == (50, encoder.size_out)
    torch.testing.assert_close(features.double(), x, atol=2e-6, rtol=1e-5)
    (features.sum()).backward()
    grad = encoder.layers[0].weight.grad.double()
    weights = [layer.weight.detach().double().requires_grad_() for layer in encoder.layers]
    x = obs.double()
    for weight, layer in zip(weights, encoder.layers, strict=True):
        x = function(F.linear(x, weight, layer.bias.detach().double()))
    x.sum().backward()
    torch.testing.assert_close(grad, weights[0].grad, atol=1e-4, rtol=1e-4)


def test_mlp_weights_are_orthogonal():
    torch.manual_seed(0)
    for layer in MLPEncoder(4, (64, 64)).layers:
        w = layer.weight.detach().double()
        gram = w.t() @ w
        torch.testing.assert_close(gram, 2 * torch.eye(len(gram)).double(), atol=1e-4, rtol=0)


def test_mlp_flattens_observations_and_casts_integers():
    encoder = MLPEncoder(6, (8,))
    obs = torch.randint(0, 255, (3, 2, 3), dtype=torch.uint8)
    assert torch.equal(encoder(obs), encoder(obs.flatten(1).float()))


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_discrete_observations_are_one_hot(shape):
    torch.manual_seed(0)
    encoder = MLPEncoder(10, (8,), one_hot=OneHot((10,)))
    obs = torch.tensor([0, 9, 3, 3, 5], dtype=torch.int32).reshape(shape)
    plain = MLPEncoder(10, (8,))
    plain.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(obs), plain(F.one_hot(obs.long().flatten(), 10).float()))


@pytest.mark.parametrize("nvec", [(3, 2, 5), (4,) * 6, (1, 1)])
def test_elements_of_multi_discrete_observations_are_one_hot_and_joined(nvec):
    torch.manual_seed(0)
    columns = [torch.randint(0, n, (12,), dtype=torch.int32) for n in nvec]
    expected = torch.cat([F.one_hot(c.long(), n) for c, n in zip(columns, nvec, strict=True)], 1)
    one_hot = OneHot(nvec)
    obs = torch.stack(columns, 1)
    assert torch.equal(one_hot(obs).long(), expected) and one_hot.size == sum(nvec)
    if len(nvec) == 6:  # of any shape
        assert torch.equal(one_hot(obs.view(12, 2, 3)).long(), expected)
        assert torch.equal(one_hot(obs.byte()).long(), expected)
    assert not one_hot.state_dict()
    assert one_hot.to("meta")(obs.to("meta")).is_meta, "nothing is read back"


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_the_scale_of_pixels_is_folded_into_the_first_layer(activation):
    torch.manual_seed(0)
    obs = images(6, (3, 5, 4))
    encoder = MLPEncoder(60, (16, 8), activation, scale=1 / 255)
    plain = MLPEncoder(60, (16, 8), activation)
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encoder(obs), plain(obs.float() / 255))


def test_numbers_without_a_shape_are_rows_of_one():
    encoder = MLPEncoder(1, (8,))
    obs = torch.randn(5)
    assert torch.equal(encoder(obs), encoder(obs[:, None]))


def test_fast_tanh_value_and_gradient():
    x = torch.linspace(-30, 30, 100_001)
    assert (fast_tanh(2 * x).double() - x.double().tanh()).abs().max() < 2.5e-7
    leaf = x.clone().requires_grad_()
    fast_tanh(2 * leaf).sum().backward()
    assert (leaf.grad.double() - (1 - x.double().tanh() ** 2)).abs().max() < 1e-6


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="'gelu'"):
        MLPEncoder(4, activation="gelu")


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("autocast", [False, True], ids=["f32", "bf16"])
def test_tanh_layers_have_the_gradients_of_tanh(scale, autocast):
    torch.manual_seed(0)
    encoder = MLPEncoder(5, (8, 6), "tanh", scale=scale)
    x, weight = torch.randn(40, 5) * 3, torch.randn(6)

    def plain() -> torch.Tensor:
        y = x * scale
        for layer in encoder.layers:
            y = torch.tanh(layer(y))
        return y

    def gradients(features: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad((features.float() * weight).sum(), encoder.parameters()))

    expected = gradients(plain())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        features = encoder(x)
    found = gradients(features)
    if not autocast:
        torch.testing.assert_close(features, plain())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        if autocast:
            assert F.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.999
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
