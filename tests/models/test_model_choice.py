"""Which encoder a leaf gets, by `--model` and its sizes, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError
from fastrl.models.config import ModelConfig, check_cnn
from fastrl.models.encoders import (
    ImpalaEncoder,
    MLPEncoder,
    NatureEncoder,
    SmallImageEncoder,
    UserEncoder,
    encoder_for,
    encoders_for,
)
from fastrl.models.policy import ActorCritic
from fastrl.models.registry import model_builder, register_model

ATARI = ObservationSpec((4, 84, 84), "uint8", "image")
LEAST = ObservationSpec((3, 36, 40), "uint8", "image")
TINY = ObservationSpec((3, 7, 7), "uint8", "image")
VECTOR = ObservationSpec((2, 3), "float32", "vector")
DISCRETE = ObservationSpec((), "int32", "discrete", 5)
SEVERAL = ObservationSpec((3,), "int32", "multi_discrete", nvec=(2, 4, 3))
LEAVES = {
    "atari": ATARI, "least": LEAST, "tiny": TINY, "vector": VECTOR, "discrete": DISCRETE,
    "several": SEVERAL,
}  # fmt: skip
ACTION = ActionSpec("discrete", (), "int32", "int64", n=4)


def spec_of(**leaves):
    return EnvSpec("x:y", leaves, {"action": ACTION}, 1, None)


def obs_of(leaf, n=6):
    g = torch.Generator().manual_seed(0)
    if leaf.kind == "image":
        return torch.randint(0, 256, (n, *leaf.shape), generator=g, dtype=torch.uint8)
    if leaf.kind == "vector":
        return torch.randn(n, *leaf.shape, generator=g)
    nvec = leaf.nvec or (leaf.n,)
    columns = [torch.randint(0, v, (n,), generator=g, dtype=torch.int32) for v in nvec]
    return torch.stack(columns, 1).reshape(n, *leaf.shape)


@pytest.mark.parametrize(
    "model, images",
    [
        ("auto", (NatureEncoder, NatureEncoder, SmallImageEncoder)),
        ("impala", (ImpalaEncoder,) * 3),
        ("mlp", (MLPEncoder,) * 3),
    ],
)
def test_what_each_leaf_gets(model, images):
    encoders = encoders_for(LEAVES, ModelConfig(model=model))
    assert list(encoders) == list(LEAVES)
    assert tuple(map(type, encoders.values())) == (*images, MLPEncoder, MLPEncoder, MLPEncoder)
    for key, encoder in encoders.items():
        features = encoder(obs_of(LEAVES[key]))
        assert features.shape == (6, encoder.size_out) and features.isfinite().all()


def test_nature_takes_no_small_images_and_says_what_does():
    config = ModelConfig(model="nature")
    assert isinstance(encoder_for(LEAST, config), NatureEncoder)
    with pytest.raises(ValueError, match=r"\(3, 7, 7\).* at least 36 .*auto and impala take"):
        encoder_for(TINY, config)
    others = encoders_for({"image": ATARI, "vector": VECTOR}, config)
    assert isinstance(others["vector"], MLPEncoder)


@pytest.mark.parametrize("model", ["nature", "impala"])
def test_a_network_for_images_needs_one(model):
    spec = spec_of(position=VECTOR, level=DISCRETE)
    with pytest.raises(ValueError, match=f"--model {model} is for images, but .*discrete, vector"):
        ActorCritic(spec, ModelConfig(model=model))


def test_an_mlp_takes_images_scaled_or_normalised():
    torch.manual_seed(0)
    obs = {"obs": obs_of(TINY)}
    spec = spec_of(obs=TINY)
    network = ActorCritic(spec, ModelConfig(model="mlp", normalize_obs=True))
    plain = ActorCritic(spec, ModelConfig(model="mlp"))
    plain.load_state_dict(network.state_dict(), strict=False)
    # Statistics begin as the constant scale would have it.
    torch.testing.assert_close(network.encode(obs), plain.encode(obs))
    mean, variance = torch.rand(TINY.shape) * 200, torch.rand(TINY.shape) * 4000
    network.encoder.normalizers["obs"].set(mean, variance)
    x = ((obs["obs"].float() - mean) / (variance + 1).sqrt()).clamp(-5, 5)
    expected = plain.encode({"obs": x * 255})
    torch.testing.assert_close(network.encode(obs), expected, atol=1e-5, rtol=1e-5)


def test_integers_have_no_statistics():
    spec = spec_of(discrete=DISCRETE, several=SEVERAL)
    assert len(ActorCritic(spec, ModelConfig(normalize_obs=True)).encoder.normalizers) == 0


def test_elements_of_a_multi_discrete_leaf_are_told_apart():
    torch.manual_seed(0)
    encoder = encoder_for(SEVERAL, ModelConfig(hidden=(16,)))
    assert encoder.size_in == 9
    everything = torch.cartesian_prod(*(torch.arange(n) for n in SEVERAL.nvec)).int()
    features = encoder(everything)
    assert len(features.unique(dim=0)) == len(everything) == 24
    assert torch.equal(encoder(everything), encoder(everything.long()))


# ---------------------------------------------------------------------------------------- sizes


def test_sizes_reach_the_network():
    sizes = {"channels": (8, 16, 24), "image_features": 33}
    for leaf, kind in ((ATARI, NatureEncoder), (TINY, SmallImageEncoder)):
        encoder = encoder_for(leaf, ModelConfig(**sizes))
        assert isinstance(encoder, kind) and encoder.size_out == 33
        layers = (encoder.conv1, encoder.conv2, encoder.conv3)
        assert tuple(layer.out_channels for layer in layers) == (8, 16, 24)
    encoder = encoder_for(TINY, ModelConfig(model="impala", channels=(8, 9), image_features=7))
    assert [section.conv.out_channels for section in encoder.sections] == [8, 9]
    assert encoder.size_out == 7
    for leaf in (ATARI, TINY):
        assert encoder_for(leaf, ModelConfig()).activation == "relu"
        assert encoder_for(leaf, ModelConfig(cnn_activation="elu")).activation == "elu"
    defaults = {ATARI: 512, TINY: 256}
    assert {leaf: encoder_for(leaf, ModelConfig()).size_out for leaf in defaults} == defaults
    assert encoder_for(ATARI, ModelConfig(model="impala")).size_out == 256


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"channels": (8, 8)}, "--channels is 8 8; the CNN of --model auto has three convolutions"),
        ({"channels": (8,) * 4, "model": "nature"}, "give three numbers, such as 32 64 64"),
        ({"channels": (), "model": "impala"}, "--channels is empty; sizes of layers must be 1 or"),
        ({"channels": (8, 0, 8)}, "--channels is 8 0 8; sizes of layers must be 1 or more"),
        ({"image_features": 0}, "--image-features is 0; sizes of layers must be 1 or more"),
        ({"channels": (8, 8, 8), "model": "mlp"}, "--channels is 8 8 8, but --model mlp has no"),
        ({"image_features": 9, "model": "mine"}, "--image-features is 9, but --model mine has no"),
    ],
)
def test_sizes_that_no_network_has_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        check_cnn(ModelConfig(**options))
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=sentence):
        ActorCritic(spec_of(obs=ATARI), ModelConfig(**options))


def test_sizes_that_fit_are_taken():
    for options in (
        {},
        {"channels": (1, 1, 1)},
        {"model": "impala", "channels": (4,), "image_features": 1},
        {"model": "mlp"},
        {"model": "py:nets:Net"},
    ):
        check_cnn(ModelConfig(**options))


# ------------------------------------------------------------------------- a class of your own

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, spec):
        super().__init__()
        size = spec.n or (sum(spec.nvec) if spec.nvec else torch.Size(spec.shape).numel())
        self.linear = nn.Linear(size, 12)

    def forward(self, x):
        return self.linear(x.flatten(1)).tanh()


class Nets:
    small = Net


def build(spec):
    return Net(spec)


width = 3


def nothing(spec):
    return None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with nets.py in it, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets.py").write_text(NETS)
    yield tmp_path
    sys.modules.pop("nets", None)


@pytest.mark.parametrize("name", ["py:nets:Net", "py:nets:build", "py:nets:Nets.small"])
@pytest.mark.parametrize("leaf", [VECTOR, TINY, DISCRETE, SEVERAL], ids=lambda leaf: leaf.kind)
def test_a_class_in_a_file_encodes_every_leaf(folder, name, leaf):
    torch.manual_seed(0)
    network = ActorCritic(spec_of(obs=leaf), ModelConfig(model=name, normalize_obs=True))
    encoder = network.encoder.actor.leaves["obs"]
    assert isinstance(encoder, UserEncoder) and encoder.size_out == 12
    output = network({"obs": obs_of(leaf)})
    (output.value.sum() + output.params["action"].square().sum()).backward()
    assert encoder.net.linear.weight.grad.abs().sum() > 0


def test_a_users_module_gets_the_joined_one_hot_rows(folder):
    torch.manual_seed(0)
    encoder = encoder_for(SEVERAL, ModelConfig(model="py:nets:Net"))
    obs = obs_of(SEVERAL)
    rows = [nn.functional.one_hot(obs[:, i].long(), n) for i, n in enumerate(SEVERAL.nvec)]
    assert torch.equal(encoder(obs), encoder.net(torch.cat(rows, 1).float()))


@pytest.mark.parametrize("name", ["py:", "py:nets", "py:nets:", "py::Net", "py:a:b:c"])
def test_an_id_of_another_form_is_refused(name):
    with pytest.raises(ConfigError, match="is not py:module:Class"):
        model_builder(name)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("py:nats:Net", "There is no module nats .*did you mean nets"),
        ("py:nets:Nat", "There is no 'Nat' in nets .*did you mean Net"),
        (
            "py:nets:width",
            "'py:nets:width' names is of type int; it must be a class, or a",
        ),
        ("py:nets:nothing", "of model 'py:nets:nothing' returns None, expected a torch.nn.Module"),
        ("py:no-name:Net", "'no-name' in 'py:no-name:Net' is not a module's name"),
    ],
)
def test_what_cannot_be_found_or_used_is_told(folder, name, sentence):
    assert model_builder(name) is not None, "nothing is imported yet"
    with pytest.raises(ValueError, match=sentence) as error:
        encoder_for(VECTOR, ModelConfig(model=name))
    assert "\n" not in str(error.value)


def test_names_are_checked_without_torch_and_without_the_users_module(folder):
    (folder / "nets.py").write_text("raise SystemExit('imported')")
    program = (
        "import sys\n"
        "from fastrl.models.registry import model_builder\n"
        "for name in ('auto', 'mlp', 'nature', 'impala'):\n"
        "    assert model_builder(name) is None\n"
        "assert callable(model_builder('py:nets:Net'))\n"
        "assert not {'torch', 'nets', 'gymnasium'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.parametrize("name", ["auto", "mlp", "nature", "impala"])
def test_the_engines_own_names_cannot_be_taken(name):
    with pytest.raises(ConfigError, match="other than auto, mlp, nature, impala"):
        register_model(name, lambda spec: nn.Linear(1, 1))


def test_the_nearest_of_all_names_is_told():
    with pytest.raises(ConfigError, match="no model 'impalla', perhaps you meant 'impala'"):
        model_builder("impalla")
