"""What the environment forbids is never chosen, has no entropy, and nothing learns from it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from fastrl.config import TrainConfig
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.acting import ActingPolicy
from fastrl.models.config import ModelConfig
from fastrl.models.noise import uniform
from fastrl.models.policy import ActorCritic

VECTOR = ObservationSpec((5,), "float32", "vector")
ONE = ActionSpec("discrete", (), "int32", "int64", n=6, masked=True)
MANY = ActionSpec("multi_discrete", (3,), "int32", "int64", nvec=(3, 2, 9), masked=True)
EQUAL = ActionSpec("multi_discrete", (3,), "int32", "int64", nvec=(4, 4, 4), masked=True)
FREE = ActionSpec("discrete", (), "int32", "int64", n=4)
SPACES = {
    "discrete": {"action": ONE},
    "multi_discrete": {"action": MANY},
    "equal": {"action": EQUAL},
    "tree": {"build": MANY, "free": FREE, "move": ONE},
}
N = 64


@pytest.fixture(params=SPACES, autouse=False)
def spec(request):
    return EnvSpec("x:y", {"obs": VECTOR}, SPACES[request.param], 1, None)


def network_of(spec, **config):
    torch.manual_seed(0)
    network = ActorCritic(spec, ModelConfig(**config))
    with torch.no_grad():
        for head in network.policy_head.values():
            head.weight.mul_(200)  # fresh ones have no preference that a mistake could show
    return network


def observations(n=N):
    return {"obs": torch.randn(n, 5, generator=torch.Generator().manual_seed(1))}


def sizes(leaf):
    return (leaf.n,) if leaf.nvec is None else leaf.nvec


def masks(spec, n=N, share=0.5):
    """At random, with something allowed for every component, and often just one choice."""
    rng = np.random.default_rng(2)
    found = {}
    for key, size in spec.masks.items():
        parts = []
        for count in sizes(spec.action[key]):
            part = rng.random((n, count)) < share
            part[np.arange(n), rng.integers(count, size=n)] = True
            parts.append(part)
        found[key] = torch.from_numpy(np.concatenate(parts, 1))
        assert found[key].shape == (n, size)
    return found


def noise(network, n=N, seed=0):
    index = np.arange(n)
    return {
        key: torch.from_numpy(uniform(seed, index, index, leaf, dist.noise_dims))
        for leaf, (key, dist) in enumerate(network.distributions.items())
    }


def allowed_choices(spec, mask, action):
    """Whether each row's action is allowed in all its components: bool [N]."""
    ok = torch.ones(len(next(iter(action.values()))), dtype=torch.bool)
    for key, allowed in mask.items():
        chosen = action[key].long().reshape(len(ok), -1)
        parts = allowed.split(sizes(spec.action[key]), 1)
        for i, part in enumerate(parts):
            ok &= part.gather(1, chosen[:, i, None]).squeeze(1)
    return ok


def test_what_is_forbidden_is_never_sampled_nor_the_mode(spec):
    network, obs, mask = network_of(spec), observations(), masks(spec)
    for seed in range(30):
        action, log_prob, _ = network.act(obs, noise(network, seed=seed), mask)
        assert allowed_choices(spec, mask, action).all()
        assert log_prob.isfinite().all()
    assert allowed_choices(spec, mask, network.mode(obs, mask)).all()


def test_probabilities_are_the_softmax_over_what_is_allowed(spec):
    network, obs, mask = network_of(spec), observations(), masks(spec)
    bare = ActorCritic(without_masks(spec), ModelConfig())
    bare.load_state_dict(network.state_dict())
    free, output = bare(obs).params, network(obs, mask).params
    for key, leaf in spec.action.items():
        if not leaf.masked:
            assert torch.equal(free[key], output[key])
            continue
        parts = (x.split(sizes(leaf), 1) for x in (free[key], output[key], mask[key]))
        for logits, masked, allowed in zip(*parts, strict=True):
            assert torch.equal(masked, logits.masked_fill(~allowed, -math.inf))
            p = logits.double().exp() * allowed
            found = masked.softmax(1)
            torch.testing.assert_close(found.double(), p / p.sum(1, keepdim=True))
            assert (found[~allowed] == 0).all(), "exactly"


def without_masks(spec):
    action = {
        key: ActionSpec(a.kind, a.shape, a.dtype, a.env_dtype, n=a.n, nvec=a.nvec)
        for key, a in spec.action.items()
    }
    return EnvSpec(spec.env_id, spec.observation, action, 1, None)


def test_log_prob_and_entropy_by_enumeration_over_what_is_allowed(spec):
    network, obs, mask = network_of(spec), observations(8), masks(spec, 8)
    output = network(obs, mask)
    with torch.no_grad():
        log_prob, entropy = network.evaluate(output, network.mode(obs, mask))
    best, expected = torch.zeros(8).double(), torch.zeros(8).double()
    for key, leaf in spec.action.items():
        logits = output.params[key].detach().double().split(sizes(leaf), 1)
        tables = [[row[row > -math.inf] for row in part] for part in logits]
        for row in range(8):
            p = [table[row].softmax(0).tolist() for table in tables]
            joint = [math.prod(choice) for choice in itertools.product(*p)]
            best[row] += math.log(max(joint))
            expected[row] -= sum(x * math.log(x) for x in joint)
    torch.testing.assert_close(log_prob.double(), best, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), expected, atol=1e-5, rtol=1e-5)


def test_acting_and_evaluating_give_a_ratio_of_exactly_one(spec):
    network, obs, mask = network_of(spec), observations(), masks(spec)
    action, behaviour, value = network.act(obs, noise(network), mask)
    output = network.heads(network.encode(obs), mask)
    stored = {key: leaf.contiguous() for key, leaf in action.items()}
    log_prob, entropy = network.evaluate(output, stored)
    assert torch.equal((log_prob - behaviour).exp(), torch.ones(N))
    assert torch.equal(output.value, value)
    assert entropy.isfinite().all() and (entropy >= 0).all()


def test_gradients_are_finite_and_none_passes_through_what_is_forbidden(spec):
    network, obs, mask = network_of(spec), observations(), masks(spec)
    action, _, _ = network.act(obs, noise(network), mask)
    features = network.encode(obs).detach()
    # Forbidden in every row: its weights must not be moved by anything.
    for key in mask:
        mask[key][:, 0] = False
        mask[key][:, 1] = True
    action = network.act(obs, noise(network), mask)[0]
    output = network.heads(features, mask)
    log_prob, entropy = network.evaluate(output, action)
    kl = network.kl(
        {k: p.detach() + 0.1 * p.detach() for k, p in output.params.items()}, output.params
    )
    barrier = network.kl_from_uniform(output)
    assert kl.isfinite().all() and (kl > 0).any()
    assert barrier.isfinite().all() and (barrier > 0).any()
    (1e3 * (log_prob + entropy + kl + barrier + output.value)).sum().backward()
    for name, parameter in network.policy_head.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    for key in mask:
        head = network.policy_head[key]
        assert not head.weight.grad[0].any() and head.bias.grad[0] == 0
        assert head.weight.grad[1].any()


def test_rows_with_one_choice_are_certain(spec):
    network, obs = network_of(spec), observations()
    mask = masks(spec, share=0.0)
    output = network(obs, mask)
    action = network.mode(obs, mask)
    for key in mask:
        dist = network.distributions[key]
        log_prob, entropy = dist.log_prob_and_entropy(output.params[key], action[key])
        barrier = dist.kl_from_uniform(output.params[key])
        assert all(torch.equal(x, torch.zeros(N)) for x in (log_prob, entropy, barrier))
        assert torch.equal(dist.sample(output.params[key], noise(network)[key]), action[key])


def test_a_component_that_allows_nothing_is_free(spec):
    network, obs = network_of(spec), observations()
    nothing = {key: torch.zeros(N, size, dtype=torch.bool) for key, size in spec.masks.items()}
    everything = {key: ~mask for key, mask in nothing.items()}
    found, expected = network(obs, nothing), network(obs, everything)
    for key in spec.action:
        assert torch.equal(found.params[key], expected.params[key])
        assert found.params[key].isfinite().all()


def test_a_mask_that_allows_all_changes_no_bit(spec):
    network, obs = network_of(spec), observations()
    bare = ActorCritic(without_masks(spec), ModelConfig())
    bare.load_state_dict(network.state_dict())
    everything = {key: torch.ones(N, size, dtype=torch.bool) for key, size in spec.masks.items()}
    u = noise(network)
    found, expected = network.act(obs, u, everything), bare.act(obs, u)
    assert all(torch.equal(found[0][key], expected[0][key]) for key in spec.action)
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])


def test_a_missing_mask_is_named(spec):
    network, obs = network_of(spec), observations()
    first, *others = spec.masks
    given = {key: mask for key, mask in masks(spec).items() if key in others}
    for mask in (None, {}, given):
        with pytest.raises(ValueError, match=f"mask of action leaf '{first}' is missing"):
            network(obs, mask)
        with pytest.raises(ValueError, match="is missing"):
            network.act(obs, noise(network), mask)
        with pytest.raises(ValueError, match="is missing"):
            network.mode(obs, mask)


def test_heads_are_f32_under_autocast(spec):
    network, obs, mask = network_of(spec), observations(), masks(spec)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            features = network.encode(obs)
            inside = network.heads(features, mask)
            action, behaviour, _ = network.act(obs, noise(network), mask)
            log_prob, entropy = network.evaluate(inside, action)
        outside = network.heads(features, mask)
    assert not torch.equal(features.float(), network.encode(obs)), "the encoder rounded"
    for key in spec.action:
        assert inside.params[key].dtype == torch.float32
        assert torch.equal(inside.params[key], outside.params[key])
    assert log_prob.dtype == entropy.dtype == inside.value.dtype == torch.float32
    assert torch.equal(log_prob, behaviour)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_policy_that_acts_takes_masks(spec, dtype):
    config = TrainConfig(env="x:y", device="cpu", dtype=dtype)
    network, obs, mask = network_of(spec), observations(), masks(spec)
    policy = ActingPolicy(spec, config)
    policy.load_state_dict(network.state_dict())
    action, log_prob, value = policy.act(obs, noise(network), mask)
    assert allowed_choices(spec, mask, action).all()
    likeliest, best, _ = policy.act(obs, None, mask)
    assert allowed_choices(spec, mask, likeliest).all() and (best >= log_prob - 1e-6).all()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        output = network(obs, mask)
        expected, _ = network.evaluate(output, action)
    assert torch.equal(value, output.value)
    assert torch.equal(log_prob, expected)
    with pytest.raises(ValueError, match="is missing"):
        policy.act(obs, noise(network))
