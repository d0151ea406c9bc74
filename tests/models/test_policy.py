import numpy as np
import pytest
import torch

from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.config import ModelConfig
from fastrl.models.noise import uniform
from fastrl.models.policy import ActorCritic, uses_separate_critic

IMAGE = ObservationSpec((4, 84, 84), "uint8", "image")
VECTOR = ObservationSpec((11,), "float32", "vector")
DISCRETE_OBS = ObservationSpec((), "int32", "discrete", 16)
DISCRETE = ActionSpec("discrete", (), "int32", "int64", n=6)
CONTINUOUS = ActionSpec("continuous", (3,), "float32", "float32", low=(-1.0,) * 3, high=(1.0,) * 3)
CASES = [
    (IMAGE, DISCRETE),
    (VECTOR, DISCRETE),
    (VECTOR, CONTINUOUS),
    (IMAGE, CONTINUOUS),
    (DISCRETE_OBS, DISCRETE),
]


def spec_of(observation, action):
    return EnvSpec("test", {"obs": observation}, {"action": action}, 1, None)


def obs_of(spec, n):
    leaf = spec.observation["obs"]
    if leaf.kind == "image":
        return {"obs": torch.randint(0, 256, (n, *leaf.shape), dtype=torch.uint8)}
    if leaf.kind == "discrete":
        return {"obs": torch.randint(0, leaf.n, (n,), dtype=torch.int32)}
    return {"obs": torch.randn(n, *leaf.shape)}


def noise_of(policy, n):
    dims = policy.distributions["action"].noise_dims
    return {"action": torch.from_numpy(uniform(0, np.arange(n), np.zeros(n, np.int64), 0, dims))}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].kind}-{case[1].kind}")
def spec(request):
    torch.manual_seed(0)
    return spec_of(*request.param)


def test_shapes_and_types(spec):
    policy = ActorCritic(spec, ModelConfig())
    output = policy(obs_of(spec, 9))
    assert output.params["action"].shape == (9, 6)  # six logits, or three means and log_stds
    assert output.params["action"].dtype == output.value.dtype == torch.float32
    assert output.value.shape == (9,)
    action, log_prob, value = policy.act(obs_of(spec, 9), noise_of(policy, 9))
    leaf = spec.action["action"]
    assert action["action"].shape == (9, *leaf.shape)
    assert str(action["action"].dtype) == f"torch.{leaf.dtype}"
    assert log_prob.shape == value.shape == (9,)
    assert not log_prob.requires_grad and not value.requires_grad
    assert policy.mode(obs_of(spec, 9))["action"].shape == (9, *leaf.shape)


def test_acting_and_evaluating_the_same_rows_gives_a_ratio_of_exactly_one(spec):
    policy = ActorCritic(spec, ModelConfig())
    obs = obs_of(spec, 33)
    action, behaviour, value = policy.act(obs, noise_of(policy, 33))
    output = policy.heads(policy.encode(obs))
    log_prob, entropy = policy.evaluate(output, {"action": action["action"].contiguous()})
    assert torch.equal((log_prob - behaviour).exp(), torch.ones(33))
    assert torch.equal(output.value, value)
    assert entropy.shape == (33,)


def test_gradients_reach_every_parameter(spec):
    policy = ActorCritic(spec, ModelConfig())
    obs = obs_of(spec, 17)
    action, _, _ = policy.act(obs, noise_of(policy, 17))
    output = policy(obs)
    log_prob, entropy = policy.evaluate(output, action)
    (log_prob + entropy + output.value).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_heads_are_orthogonal_and_start_nearly_uniform():
    torch.manual_seed(0)
    policy = ActorCritic(spec_of(VECTOR, DISCRETE), ModelConfig())
    w = policy.policy_head["action"].weight.detach().double()
    torch.testing.assert_close(w @ w.t(), 1e-4 * torch.eye(6).double(), atol=1e-9, rtol=0)
    assert policy.value_head.weight.norm().item() == pytest.approx(1.0, abs=1e-5)
    probabilities = policy(obs_of(spec_of(VECTOR, DISCRETE), 100)).params["action"].softmax(-1)
    assert (probabilities - 1 / 6).abs().max() < 0.02


def test_log_std_is_a_parameter_that_does_not_depend_on_the_observation():
    policy = ActorCritic(spec_of(VECTOR, CONTINUOUS), ModelConfig())
    with torch.no_grad():
        policy.policy_head["action"].log_std.copy_(torch.tensor([0.1, -0.2, 0.3]))
    params = policy(obs_of(spec_of(VECTOR, CONTINUOUS), 4)).params["action"]
    assert torch.equal(params[:, 3:], torch.tensor([0.1, -0.2, 0.3]).expand(4, 3))


@pytest.mark.parametrize("chosen, begins_at", [(None, 1.0), (0.5, 0.5)])
def test_the_deviation_begins_where_it_is_told_to(chosen, begins_at):
    policy = ActorCritic(spec_of(VECTOR, CONTINUOUS), ModelConfig(initial_std=chosen))
    params = policy(obs_of(spec_of(VECTOR, CONTINUOUS), 4)).params["action"]
    torch.testing.assert_close(params[:, 3:].exp(), torch.full((4, 3), begins_at))


def test_the_critic_is_separate_for_continuous_actions_from_vectors_only():
    config = ModelConfig()
    separate = [uses_separate_critic(spec_of(*case), config) for case in CASES]
    assert separate == [False, False, True, False, False]
    for choice in (True, False):
        config = ModelConfig(separate_critic=choice)
        assert all(uses_separate_critic(spec_of(*case), config) == choice for case in CASES)


@pytest.mark.parametrize("separate", [True, False])
def test_a_separate_critic_shares_nothing(separate):
    torch.manual_seed(0)
    policy = ActorCritic(spec_of(VECTOR, CONTINUOUS), ModelConfig(separate_critic=separate))
    policy(obs_of(spec_of(VECTOR, CONTINUOUS), 8)).value.sum().backward()
    touched = {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert any(name.startswith("encoder.actor") for name in touched) != separate


def test_heads_run_in_f32_under_autocast():
    torch.manual_seed(0)
    spec = spec_of(IMAGE, DISCRETE)
    policy = ActorCritic(spec, ModelConfig())
    obs = obs_of(spec, 6)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            features = policy.encode(obs)
            inside = policy.heads(features)
        outside = policy.heads(features)
        exact = policy(obs)
    assert not torch.equal(features.float(), policy.encode(obs)), "the encoder rounded"
    assert torch.equal(inside.value, outside.value) and inside.value.dtype == torch.float32
    assert torch.equal(inside.params["action"], outside.params["action"])
    assert (outside.value - exact.value).abs().max() < 0.02


def test_encoding_in_chunks_gives_the_gradient_of_the_whole():
    torch.manual_seed(0)
    spec = spec_of(VECTOR, CONTINUOUS)
    policy = ActorCritic(spec, ModelConfig())
    obs = obs_of(spec, 64)

    def gradient(chunks):
        policy.zero_grad()
        features = torch.cat([policy.encode({"obs": part}) for part in obs["obs"].chunk(chunks)])
        output = policy.heads(features)
        (output.value.square().mean() + output.params["action"].square().mean()).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters()])

    torch.testing.assert_close(gradient(4), gradient(1), atol=1e-6, rtol=1e-5)


def test_kl_is_summed_over_leaves():
    torch.manual_seed(0)
    spec = EnvSpec("test", {"obs": VECTOR}, {"a": DISCRETE, "b": CONTINUOUS}, 1, None)
    policy = ActorCritic(spec, ModelConfig())
    obs = obs_of(spec, 20)
    before = policy(obs).params
    assert torch.equal(policy.kl(before, policy(obs).params), torch.zeros(20))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    after = policy(obs).params
    kl = policy.kl(before, after)
    assert kl.shape == (20,) and (kl > 0).all()
    p, q = (torch.distributions.Categorical(logits=x["a"].double()) for x in (before, after))
    expected = torch.distributions.kl_divergence(p, q)
    p, q = (
        torch.distributions.Normal(x["b"][:, :3].double(), x["b"][:, 3:].double().exp())
        for x in (before, after)
    )
    expected = expected + torch.distributions.kl_divergence(p, q).sum(-1)
    torch.testing.assert_close(kl.double(), expected, atol=1e-6, rtol=1e-5)
