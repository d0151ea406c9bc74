"""Normalised observations, and statistics that travel with the weights."""

from __future__ import annotations

import pytest
import torch

from fastrl.algo.optimizers import Adam
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.normalizer import ObservationNormalizer
from fastrl.models.pixels import CLIP
from fastrl.models.policy import ActorCritic

ACTION = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=3)
IMAGE = EnvSpec(
    "x:y",
    {"obs": ObservationSpec((4, 84, 84), "uint8", "image", None)},
    {"action": ACTION},
    4,
    None,
)
VECTOR = EnvSpec(
    "x:y", {"obs": ObservationSpec((2, 3), "float32", "vector", None)}, {"action": ACTION}, 1, None
)


def observations(spec: EnvSpec, count: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    leaf = spec.observation["obs"]
    if leaf.kind == "image":
        return {"obs": torch.randint(0, 256, (count, *leaf.shape), generator=generator).byte()}
    return {"obs": torch.randn(count, *leaf.shape, generator=generator) * 7 + 3}


def test_images_are_normalised_per_pixel():
    normalizer = ObservationNormalizer((2, 3, 4), 1 / 255, image=True)
    mean, variance = torch.rand(2, 3, 4) * 100, torch.rand(2, 3, 4) * 400
    variance[0, 0, 0] = 0
    normalizer.set(mean.double(), variance.double())
    for dtype in (torch.uint8, torch.float32):
        x = (torch.rand(5, 2, 3, 4) * 255).to(dtype)
        expected = ((x - mean) / (variance + 1).sqrt()).clamp(-CLIP, CLIP)
        found = normalizer(x, torch.float32)
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_statistics_are_f32_in_bf16_too():
    """Mean 200 and deviation 0.1: rounded to bf16 first, the mean would be off by 5 deviations."""
    normalizer = ObservationNormalizer((2,), 1.0, image=False)
    normalizer.set(torch.full((2,), 200.4), torch.full((2,), 0.01))
    found = normalizer(torch.tensor([[200.5, 200.3]]), torch.bfloat16)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), torch.tensor([[1.0, -1.0]]), atol=0.01, rtol=0)


def test_vectors_are_normalised_per_element_and_left_alone_by_the_caller():
    network = ActorCritic(VECTOR, ModelConfig(normalize_obs=True))
    obs = observations(VECTOR, 50)
    before = obs["obs"].clone()
    rows = obs["obs"].flatten(1)
    network.encoder.normalizers["obs"].set(rows.mean(0), rows.var(0))
    features = network.encode(obs)
    torch.testing.assert_close(obs["obs"], before, rtol=0, atol=0)
    plain = ActorCritic(VECTOR, ModelConfig(normalize_obs=False))
    plain.load_state_dict(network.state_dict(), strict=False)
    normalised = ((rows - rows.mean(0)) / (rows.var(0) + 1e-6).sqrt()).clamp(-CLIP, CLIP)
    torch.testing.assert_close(features, plain.encode({"obs": normalised}))


@pytest.mark.parametrize("spec", [IMAGE, VECTOR], ids=["image", "vector"])
def test_statistics_are_published_with_the_weights_and_take_no_gradient(spec):
    torch.manual_seed(0)
    network = ActorCritic(spec, ModelConfig(normalize_obs=True))
    flat = FlatParameters(network)
    optimizer = Adam(flat.data, 1e-5)
    normalizer = network.encoder.normalizers["obs"]
    shape = spec.observation["obs"].shape
    normalizer.set(torch.full(shape, 2.0), torch.full(shape, 8.0))
    mean = normalizer.mean.clone()
    for _ in range(2):
        flat.zero_grad()
        network(observations(spec, 3)).value.sum().backward()
        optimizer.step(flat.grad, torch.tensor(0.1), torch.tensor(False))
    assert torch.equal(normalizer.mean, mean)
    other = ActorCritic(spec, ModelConfig(normalize_obs=True))
    FlatParameters(other).data.copy_(flat.data)
    assert torch.equal(other.encoder.normalizers["obs"].mean, mean)


def test_acting_in_bf16_sees_the_same_bits_as_training():
    torch.manual_seed(0)
    network = ActorCritic(IMAGE, ModelConfig(normalize_obs=True))
    flat = FlatParameters(network)
    generator = torch.Generator().manual_seed(2)
    network.encoder.normalizers["obs"].set(
        torch.rand(4, 84, 84, generator=generator) * 255,
        torch.rand(4, 84, 84, generator=generator) * 4000,
    )
    acting = CastCopy(flat, network.encoder, torch.bfloat16).module
    obs = observations(IMAGE, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        trained = network.encode(obs)
    with torch.no_grad():
        assert torch.equal(acting(obs), trained)
