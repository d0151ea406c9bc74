import pytest
import torch

from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.config import ModelConfig
from fastrl.models.flat import CastCopy, FlatParameters
from fastrl.models.policy import ActorCritic

IMAGES = EnvSpec(
    "test",
    {"obs": ObservationSpec((4, 84, 84), "uint8", "image")},
    {"action": ActionSpec("discrete", (), "int32", "int64", n=6)},
    4,
    None,
)


def policy_of(seed=0):
    torch.manual_seed(seed)
    return ActorCritic(IMAGES, ModelConfig())


def observations(n=3):
    torch.manual_seed(7)
    return {"obs": torch.randint(0, 256, (n, 4, 84, 84), dtype=torch.uint8)}


def inside(part, whole):
    start, end = whole.data_ptr(), whole.data_ptr() + whole.numel() * whole.element_size()
    return start <= part.data_ptr() < end and part.numel() * part.element_size() <= end - start


def backward(policy, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        features = policy.encode(observations())
    output = policy.heads(features)
    (output.value.sum() + output.params["action"].square().sum()).backward()


def test_flattening_changes_no_output():
    policy = policy_of()
    before = policy(observations())
    names = {name: p.detach().clone() for name, p in policy.named_parameters()}
    flat = FlatParameters(policy)
    after = policy(observations())
    assert torch.equal(before.value, after.value)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, names[name]) and inside(parameter, flat.data)
    assert flat.data.shape == flat.grad.shape == (flat.num_floats,)


@pytest.mark.parametrize("autocast", [False, True])
def test_backward_accumulates_into_the_flat_gradient(autocast):
    plain, policy = policy_of(), policy_of()
    flat = FlatParameters(policy)
    backward(plain, autocast)
    backward(policy, autocast)
    for (name, a), b in zip(plain.named_parameters(), policy.parameters(), strict=True):
        assert inside(b.grad, flat.grad), name
        assert torch.equal(a.grad, b.grad), name
    once = flat.grad.clone()
    backward(policy, autocast)
    torch.testing.assert_close(flat.grad, 2 * once)
    flat.zero_grad()
    assert all(not p.grad.any() and inside(p.grad, flat.grad) for p in policy.parameters())


def test_the_flat_norm_is_the_norm_of_all_gradients():
    policy = policy_of()
    flat = FlatParameters(policy)
    backward(policy, False)
    every = torch.cat([p.grad.double().flatten() for p in policy.parameters()])
    torch.testing.assert_close(flat.grad.double().norm(), every.norm(), atol=0, rtol=1e-12)


def test_an_optimiser_on_one_tensor_steps_as_one_on_all():
    plain, policy = policy_of(), policy_of()
    flat = FlatParameters(policy)
    one = torch.optim.Adam([flat.parameter], lr=1e-3, fused=True)
    many = torch.optim.Adam(plain.parameters(), lr=1e-3, fused=True)
    for _ in range(3):
        many.zero_grad()
        flat.zero_grad()
        backward(plain, False)
        backward(policy, False)
        one.step()
        many.step()
    for a, b in zip(plain.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_publishing_is_one_copy():
    learner, actor = policy_of(0), policy_of(1)
    source, target = FlatParameters(learner), FlatParameters(actor)
    assert source.num_floats == target.num_floats
    published = source.data.numpy().copy()
    target.data.numpy()[:] = published
    assert torch.equal(learner(observations()).value, actor(observations()).value)


def test_state_dict_round_trip_keeps_the_views():
    policy = policy_of(0)
    flat = FlatParameters(policy)
    other = policy_of(1)
    policy.load_state_dict(other.state_dict())
    for a, b in zip(policy.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) and inside(a, flat.data)
    other.load_state_dict(policy.state_dict())


def test_gaps_between_parameters_stay_zero():
    policy = policy_of()
    flat = FlatParameters(policy)
    optimiser = torch.optim.Adam([flat.parameter], fused=True)
    backward(policy, False)
    optimiser.step()
    gap = torch.ones(flat.num_floats, dtype=torch.bool)
    for name, parameter in policy.named_parameters():
        gap[flat.offsets[name] : flat.offsets[name] + parameter.numel()] = False
    assert gap.any() and not flat.data[gap].any() and not flat.grad[gap].any()


def test_a_bf16_copy_follows_the_flat_parameters_without_allocating():
    policy = policy_of(0)
    flat = FlatParameters(policy)
    copy = CastCopy(flat, policy.encoder, torch.bfloat16)
    pointers = [p.data_ptr() for p in copy.module.parameters()]
    flat.data.copy_(FlatParameters(policy_of(1)).data)
    copy.refresh()
    assert pointers == [p.data_ptr() for p in copy.module.parameters()]
    for a, b in zip(policy.encoder.parameters(), copy.module.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b) and not b.requires_grad
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = policy.encode(observations())
    assert torch.equal(copy.module(observations()), expected)


def test_a_policy_acts_with_a_bf16_encoder_and_f32_heads():
    policy = policy_of()
    exact = policy(observations())
    flat = FlatParameters(policy)
    copy = CastCopy(flat, policy.encoder, torch.bfloat16)
    policy.encoder = copy.module
    assert policy.encode(observations()).dtype == torch.bfloat16
    low = policy(observations())
    assert low.value.dtype == torch.float32
    assert (low.value - exact.value).abs().max() < 0.02
    assert (low.params["action"] - exact.params["action"]).abs().max() < 1e-3


def test_what_cannot_be_flattened_is_refused():
    with pytest.raises(ValueError, match=r"torch\.bfloat16"):
        FlatParameters(torch.nn.Linear(2, 2).bfloat16())
    flat = FlatParameters(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not part"):
        CastCopy(flat, torch.nn.Linear(2, 2), torch.bfloat16)
