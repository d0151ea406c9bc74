"""Encoders of the user's own: what they get, what may come back, and that they train and act."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError
from fastrl.models import registry
from fastrl.models.config import ModelConfig
from fastrl.models.encoders import MLPEncoder, UserEncoder, encoder_for
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.policy import ActorCritic
from fastrl.models.registry import (
    model_builder,
    register_model,
    register_models,
    registered_models,
)

VECTOR = ObservationSpec((2, 3), "float32", "vector")
IMAGE = ObservationSpec((3, 12, 10), "uint8", "image")
DISCRETE = ObservationSpec((), "int32", "discrete", 7)
BYTES = ObservationSpec((6,), "uint8", "vector")
LEAVES = pytest.mark.parametrize(
    "leaf", [VECTOR, IMAGE, DISCRETE, BYTES], ids=["vector", "image", "discrete", "bytes"]
)


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_models", {})


def spec_of(leaf):
    action = ActionSpec("discrete", (), "int32", "int64", n=4)
    return EnvSpec("x:y", {"obs": leaf}, {"action": action}, 1, None)


def obs_of(leaf, n=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    if leaf.kind == "discrete":
        return torch.randint(0, leaf.n, (n,), generator=g, dtype=torch.int32)
    if leaf.dtype == "uint8":
        return torch.randint(0, 256, (n, *leaf.shape), generator=g, dtype=torch.uint8)
    return torch.randn(n, *leaf.shape, generator=g) * 4 + 2


def small(leaf):
    """What a user might write: a small CNN for images, an MLP for the rest."""
    if leaf.kind == "image":
        return nn.Sequential(
            nn.Conv2d(leaf.shape[0], 8, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 5, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
    size = leaf.n if leaf.kind == "discrete" else torch.Size(leaf.shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.LayerNorm(16), nn.Tanh())


class Recorder(nn.Module):
    """Keeps what it was given; then spoils it, as a module that works in place would."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, x):
        self.seen.append(x.clone())
        return x.mul_(0.0).flatten(1) + self.weight


def recorder_of(leaf):
    return UserEncoder("recorder", lambda spec: Recorder(), leaf)


# --------------------------------------------------------------------- what the module gets


@LEAVES
def test_a_module_gets_f32_observations_of_the_leafs_shape(leaf):
    encoder = recorder_of(leaf)
    obs = obs_of(leaf)
    before = obs.clone()
    encoder(obs)
    trial, seen = encoder.net.seen
    expected = {
        "vector": lambda: obs.float(),
        "image": lambda: obs.float() / 255,
        "discrete": lambda: nn.functional.one_hot(obs.long(), 7).float(),
    }[leaf.kind]()
    torch.testing.assert_close(seen, expected)
    assert seen.dtype == torch.float32
    assert trial.shape == (2, *expected.shape[1:])
    assert torch.equal(obs, before), "the caller's observations are not changed"


@pytest.mark.parametrize("leaf", [VECTOR, IMAGE, BYTES], ids=["vector", "image", "bytes"])
def test_a_module_gets_normalised_observations(leaf):
    register_model("recorder", lambda spec: Recorder())
    network = ActorCritic(spec_of(leaf), ModelConfig(model="recorder", normalize_obs=True))
    g = torch.Generator().manual_seed(4)
    mean, variance = (torch.rand(leaf.shape, generator=g) * s for s in (100, 900))
    network.encoder.normalizers["obs"].set(mean, variance)
    obs = obs_of(leaf)
    before = obs.clone()
    network.encode({"obs": obs})
    floor = 1.0 if leaf.kind == "image" else 1e-6
    expected = ((obs.float() - mean) / (variance + floor).sqrt()).clamp(-5, 5)
    (seen,) = network.encoder.actor.leaves["obs"].net.seen[1:]
    torch.testing.assert_close(seen, expected)
    assert torch.equal(obs, before)


def test_discrete_observations_have_no_normaliser():
    register_model("small", small)
    network = ActorCritic(spec_of(DISCRETE), ModelConfig(model="small", normalize_obs=True))
    assert len(network.encoder.normalizers) == 0
    assert network({"obs": obs_of(DISCRETE)}).value.shape == (9,)


def test_images_come_channels_last():
    encoder = recorder_of(IMAGE)
    encoder(obs_of(IMAGE))
    assert encoder.net.seen[-1].is_contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------------ training and acting


@LEAVES
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_reach_every_parameter(leaf, normalize):
    torch.manual_seed(0)
    register_model("small", small)
    config = ModelConfig(model="small", normalize_obs=normalize, separate_critic=True)
    network = ActorCritic(spec_of(leaf), config)
    output = network({"obs": obs_of(leaf, 32)})
    (output.value.sum() + output.params["action"].square().sum()).backward()
    for name, parameter in network.named_parameters():
        if "normalizer" not in name:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@LEAVES
@pytest.mark.parametrize("normalize", [False, True])
def test_a_bf16_copy_acts_as_the_module_trains(leaf, normalize):
    torch.manual_seed(0)
    register_model("small", small)
    network = ActorCritic(spec_of(leaf), ModelConfig(model="small", normalize_obs=normalize))
    flat = FlatParameters(network)
    cast = CastCopy(flat, network.encoder, torch.bfloat16)
    with torch.no_grad():
        flat.data.add_(
            torch.randn(flat.num_floats, generator=torch.Generator().manual_seed(2)) / 50
        )
        if normalize and leaf.kind != "discrete":
            mean = torch.full(leaf.shape, 100.0 if leaf.dtype == "uint8" else 2.0)
            network.encoder.normalizers["obs"].set(mean, mean.square())
        cast.refresh()
        obs = {"obs": obs_of(leaf, 50)}
        exact = network.encode(obs)
        acting = cast.module(obs)
        with torch.autocast("cpu", torch.bfloat16):
            training = network.encode(obs)
    scale = exact.norm()
    assert (acting.float() - exact).norm() / scale < 0.02
    assert (acting.float() - training.float()).norm() / scale < 0.01
    assert network.heads(acting).value.dtype == torch.float32


def test_a_module_that_computes_a_part_in_f32_acts_in_bf16():
    class InF32(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.register_buffer("scale", torch.full((6,), 0.5))

        def forward(self, x):
            return self.linear(x.flatten(1).float() * self.scale)

    register_model("in_f32", lambda spec: InF32())
    network = ActorCritic(spec_of(VECTOR), ModelConfig(model="in_f32"))
    acting = CastCopy(FlatParameters(network), network.encoder, torch.bfloat16).module
    obs = {"obs": obs_of(VECTOR)}
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            training = network.encode(obs)
        assert torch.equal(acting(obs), training)


def test_publishing_copies_a_users_parameters_too():
    register_model("small", small)
    config = ModelConfig(model="small", normalize_obs=True)
    torch.manual_seed(0)
    learner, actor = (ActorCritic(spec_of(IMAGE), config) for _ in range(2))
    source, target = FlatParameters(learner), FlatParameters(actor)
    target.data.copy_(source.data)
    obs = {"obs": obs_of(IMAGE)}
    assert torch.equal(learner(obs).value, actor(obs).value)


def test_modules_that_find_their_sizes_themselves_work():
    register_model("lazy", lambda spec: nn.Sequential(nn.Flatten(), nn.LazyLinear(11), nn.Tanh()))
    network = ActorCritic(spec_of(IMAGE), ModelConfig(model="lazy"))
    FlatParameters(network)
    assert network.value_head.in_features == 11
    assert network({"obs": obs_of(IMAGE)}).value.shape == (9,)


def test_towers_and_networks_share_no_weights_though_the_builder_returns_one_module():
    one = nn.Linear(7, 5)
    register_model("one", lambda spec: one)
    config = ModelConfig(model="one", separate_critic=True)
    networks = [ActorCritic(spec_of(DISCRETE), config) for _ in range(2)]
    parameters = [p.data_ptr() for network in networks for p in network.parameters()]
    assert len(set(parameters)) == len(parameters)
    assert networks[0].encoder.actor.size_out == networks[0].encoder.critic.size_out == 5
    assert torch.equal(networks[0].encoder.critic.leaves["obs"].net.weight, one.weight)


def test_the_trial_takes_no_gradient_and_leaves_the_mode():
    built = small(VECTOR)
    built.eval()
    encoder = UserEncoder("small", lambda spec: built, VECTOR)
    assert encoder.size_out == 16
    assert not encoder.net.training
    assert all(p.grad is None and p.requires_grad for p in encoder.parameters())


# ------------------------------------------------------------------------------------- names


def test_auto_is_the_engines_own():
    register_model("small", small)
    assert isinstance(encoder_for(VECTOR, ModelConfig()), MLPEncoder)
    assert isinstance(encoder_for(VECTOR, ModelConfig(model="small")), UserEncoder)
    assert model_builder("auto") is None


def test_names_travel_and_the_last_registration_counts():
    register_model("small", small)
    register_model("other", lambda spec: nn.Linear(1, 1))
    handed_on = registered_models()
    registry._models.clear()
    assert registered_models() == {}
    register_models(handed_on)
    assert registered_models() == handed_on and model_builder("small") is small
    register_model("small", handed_on["other"])
    assert model_builder("small") is handed_on["other"]
    assert handed_on["small"] is small, "what was handed on is a copy"


def test_an_unknown_name_is_refused_with_the_nearest():
    register_model("resnet", small)
    with pytest.raises(ConfigError) as error:
        encoder_for(VECTOR, ModelConfig(model="resent"))
    assert str(error.value) == (
        "There is no model 'resent', perhaps you meant 'resnet'; names given to register_model are "
        "known to the script that registers them."
    )
    with pytest.raises(ConfigError, match=r"no model 'zzz'; names given to register_model"):
        model_builder("zzz")


@pytest.mark.parametrize(
    "name",
    ["auto", "mlp", "nature", "impala", "", "Resnet", "my-net", "2d", "a b", None, 3, "py:a:B"],
)
def test_names_that_no_flag_could_carry_are_refused(name):
    with pytest.raises(ConfigError, match="must be a lower-case word"):
        register_model(name, small)
    assert registered_models() == {}


def test_a_module_in_place_of_a_function_is_refused():
    with pytest.raises(ConfigError, match="takes a function that builds a torch module"):
        register_model("net", "not a function")


def test_names_are_known_without_torch():
    program = "import sys, fastrl.models.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


# ------------------------------------------------------------- what a builder may not return


class Counter(nn.Module):
    """Keeps running statistics in a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += len(x)
        return self.linear(x.flatten(1))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), None


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def one_frozen_in_f64():
    net = flat(nn.Linear(6, 2), nn.Linear(2, 2))
    net[2].weight = nn.Parameter(net[2].weight.double(), requires_grad=False)
    return net


WRONG = [
    (lambda: None, "the function of model 'mine' returns None, expected a torch.nn.Module"),
    (lambda: torch.zeros(2), r"returns a tensor of shape \(2,\), expected a torch.nn.Module"),
    (lambda: nn.Linear, "returns a type, expected a torch.nn.Module"),
    (lambda: nn.Linear(3, 4), r"of shape \(2, 2, 3\) to a tensor of shape \(2, 2, 4\), expected"),
    (lambda: Pair(6, 2), "to a tuple, expected features of shape"),
    (lambda: flat(nn.Linear(6, 1), nn.Flatten(0)), r"to a tensor of shape \(2,\), expected"),
    (lambda: flat(nn.Linear(5, 4)), r"fails on observations of shape \(2, 2, 3\): mat1 and mat2"),
    (lambda: flat(), "model 'mine' has no parameters, expected some to train"),
    (lambda: flat(nn.Linear(6, 4)).double(), "parameter 1.weight of model 'mine' is torch.float"),
    (lambda: flat(nn.Linear(6, 4)).bfloat16(), "is torch.bfloat16, expected torch.float32"),
    (one_frozen_in_f64, "parameter 2.weight of model 'mine' is torch.float64"),
    (lambda: flat(nn.Linear(6, 4), nn.BatchNorm1d(4)), "has a BatchNorm1d at 2, with which acting"),
    (lambda: flat(nn.Linear(6, 4), nn.Dropout(0.1)), "has a Dropout at 2, with which acting"),
    (lambda: flat(nn.LazyLinear(4), nn.LazyBatchNorm1d()), "has a LazyBatchNorm1d at 2"),
    (lambda: nn.InstanceNorm1d(2, track_running_stats=True), "has a InstanceNorm1d, with which"),
    (Counter, "buffer count of model 'mine' changes with the observations"),
]  # fmt: skip


@pytest.mark.parametrize("build, sentence", WRONG)
def test_what_cannot_be_used_is_refused_in_a_sentence(build, sentence):
    register_model("mine", lambda spec: build())
    with pytest.raises(ValueError, match=sentence) as error:
        ActorCritic(spec_of(VECTOR), ModelConfig(model="mine"))
    assert "\n" not in str(error.value)


def test_a_builders_own_error_is_told_in_a_sentence():
    def build(spec):
        raise KeyError("mine")

    register_model("mine", build)
    with pytest.raises(ValueError, match="model 'mine' could not be built: KeyError: 'mine'"):
        encoder_for(VECTOR, ModelConfig(model="mine"))


def test_normalisation_within_a_row_is_taken():
    def build(spec):
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Flatten()
        )

    register_model("mine", build)
    assert encoder_for(IMAGE, ModelConfig(model="mine")).size_out == 4 * 10 * 8
