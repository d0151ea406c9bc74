"""Leaves may be called anything, and each has its own parameters whatever it is called."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.leaves import LeafModules
from fastrl.models.noise import uniform
from fastrl.models.policy import ActorCritic

# Names that a torch module refuses, and pairs that a careless escape would join.
NAMES = [
    "obs", "robot/arm", "0", "1", "a.b", "a%2Eb", "a%b", "a_b", "a", "", "keys", "items", "type",
    "training", "forward", "T_destination", "_modules", "leaf_obs", "ünï ✓", "weight", ".", "..",
]  # fmt: skip


def test_a_mapping_by_the_leafs_own_key():
    modules = {key: nn.Linear(1, i + 1) for i, key in enumerate(NAMES)}
    leaves = LeafModules(modules)
    assert len(leaves) == len(NAMES) and list(leaves) == list(leaves.keys()) == NAMES
    assert list(leaves.items()) == list(modules.items())
    assert list(leaves.values()) == list(modules.values())
    assert all(key in leaves and leaves[key] is leaves.get(key) for key in NAMES)
    assert "b" not in leaves and leaves.get("b") is None
    with pytest.raises(KeyError):
        leaves["b"]
    assert not LeafModules({})


def test_parameters_have_names_of_their_own_and_travel():
    torch.manual_seed(0)
    leaves, other = (LeafModules({key: nn.Linear(2, 3) for key in NAMES}) for _ in range(2))
    names = [name for name, _ in leaves.named_parameters()]
    assert len(set(names)) == 2 * len(NAMES) and names[0] == "leaf_obs.weight"
    other.load_state_dict(leaves.state_dict())
    for key in NAMES:
        assert torch.equal(other[key].weight, leaves[key].weight)
    twin = copy.deepcopy(leaves)
    assert list(twin) == NAMES and twin["a.b"] is not leaves["a.b"]
    assert {id(module) for module in twin.values()} == {id(m) for m in twin.children()}


OBSERVATION = {
    "robot/arm": ObservationSpec((2, 3), "float32", "vector"),
    "a.b": ObservationSpec((3, 40, 36), "uint8", "image"),
    "keys": ObservationSpec((3, 7, 7), "uint8", "image"),
    "type": ObservationSpec((), "int32", "discrete", 5),
    "0": ObservationSpec((2, 2), "int32", "multi_discrete", nvec=(3, 2, 4, 6)),
    "": ObservationSpec((), "float32", "vector"),
}
ACTION = {
    "type": ActionSpec("discrete", (), "int32", "int64", n=3),
    "a.b": ActionSpec("multi_discrete", (3,), "int32", "int64", nvec=(2, 5, 3)),
    "0": ActionSpec("multi_binary", (4,), "int32", "int8"),
    "": ActionSpec("continuous", (2, 2), "float32", "float32", low=(-1.0,) * 4, high=(1.0,) * 4),
    "training": ActionSpec("continuous", (), "float32", "float32", low=(-1.0,), high=(1.0,)),
}
SPEC = EnvSpec("x:y", OBSERVATION, ACTION, 1, None)


def observations(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    nvec = OBSERVATION["0"].nvec
    return {
        "robot/arm": torch.randn(n, 2, 3, generator=g),
        "a.b": torch.randint(0, 256, (n, 3, 40, 36), generator=g, dtype=torch.uint8),
        "keys": torch.randint(0, 11, (n, 3, 7, 7), generator=g, dtype=torch.uint8),
        "type": torch.randint(0, 5, (n,), generator=g, dtype=torch.int32),
        "0": torch.stack([torch.randint(0, v, (n,), generator=g) for v in nvec], 1)
        .view(n, 2, 2)
        .int(),
        "": torch.randn(n, generator=g),
    }


def noise(network, n):
    index = np.arange(n)
    return {
        key: torch.from_numpy(uniform(0, index, index, leaf, dist.noise_dims))
        for leaf, (key, dist) in enumerate(network.distributions.items())
    }


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("model", ["auto", "impala", "mlp"])
def test_a_network_for_a_tree_of_spaces(model, separate):
    torch.manual_seed(0)
    config = ModelConfig(model=model, normalize_obs=True, separate_critic=separate)
    network = ActorCritic(SPEC, config)
    assert list(network.encoder.normalizers) == ["robot/arm", "a.b", "keys", ""]
    obs = observations(9)
    before = {key: leaf.clone() for key, leaf in obs.items()}
    action, behaviour, value = network.act(obs, noise(network, 9))
    for key, leaf in ACTION.items():
        assert action[key].shape == (9, *leaf.shape)
        assert str(action[key].dtype) == f"torch.{leaf.dtype}"
    output = network(obs)
    log_prob, entropy = network.evaluate(output, {k: a.contiguous() for k, a in action.items()})
    assert torch.equal((log_prob - behaviour).exp(), torch.ones(9))
    assert torch.equal(value, output.value)
    assert torch.equal(network.kl(output.params, network(obs).params), torch.zeros(9))
    # Apart from a constant the heads begin with no preference: means 0 have no gradient to follow.
    (log_prob + entropy + output.value).square().sum().backward()
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert all(torch.equal(obs[key], before[key]) for key in obs)
    mode = network.mode(obs)
    assert {key: leaf.shape for key, leaf in mode.items()} == {
        key: (9, *leaf.shape) for key, leaf in ACTION.items()
    }


def test_features_are_those_of_each_leaf_side_by_side():
    torch.manual_seed(0)
    network = ActorCritic(SPEC, ModelConfig())
    obs = observations(4)
    expected = [leaf(obs[key]) for key, leaf in network.encoder.actor.leaves.items()]
    assert [f.shape[1] for f in expected] == [64, 512, 256, 64, 64, 64]
    assert torch.equal(network.encode(obs), torch.cat(expected, 1))


def test_such_a_network_is_published_and_acts_in_bf16():
    config = ModelConfig(normalize_obs=True, normalize_returns=True)
    torch.manual_seed(0)
    learner, actor = ActorCritic(SPEC, config), ActorCritic(SPEC, config)
    source, target = FlatParameters(learner), FlatParameters(actor)
    learner.encoder.normalizers["robot/arm"].set(torch.ones(2, 3), torch.full((2, 3), 4.0))
    target.data.copy_(source.data)
    obs = observations(5)
    with torch.no_grad():
        assert torch.equal(learner(obs).value, actor(obs).value)
        acting = CastCopy(target, actor.encoder, torch.bfloat16).module
        with torch.autocast("cpu", torch.bfloat16):
            training = learner.encode(obs)
        assert torch.equal(acting(obs), training)


def test_all_that_is_not_the_encoder_is_f32_under_autocast():
    torch.manual_seed(0)
    network = ActorCritic(SPEC, ModelConfig(normalize_obs=True, normalize_returns=True))
    obs = observations(6)
    with torch.autocast("cpu", torch.bfloat16):
        features = network.encode(obs)
        output = network.heads(features)
        action, behaviour, value = network.act(obs, noise(network, 6))
        log_prob, entropy = network.evaluate(output, action)
        kl = network.kl(output.params, output.params)
    assert not torch.equal(features.float(), network.encode(obs)), "the encoder rounded"
    for tensor in (*output.params.values(), output.value, output.normalized_value, behaviour):
        assert tensor.dtype == torch.float32
    for tensor in (value, log_prob, entropy, kl):
        assert tensor.dtype == torch.float32
    assert torch.equal(log_prob, behaviour)
    outside = network.heads(features)
    for key in ACTION:
        assert torch.equal(outside.params[key], output.params[key])
    log_prob_outside, entropy_outside = network.evaluate(outside, action)
    assert torch.equal(log_prob_outside, log_prob) and torch.equal(entropy_outside, entropy)
