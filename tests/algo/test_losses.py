import math

import pytest
import torch

from fastrl.algo.appo import appo_loss
from fastrl.algo.impala import impala_loss
from fastrl.algo.losses import (
    clipped_surrogate,
    impala_policy_gradient,
    importance_log_ratio,
    mean_over_valid,
    normalise_advantage,
    squared_value_error,
)
from fastrl.algo.vtrace import VTraceReturns, vtrace_appo, vtrace_impala
from fastrl.models.distributions import Categorical

COEFFICIENTS = {"value_coef": 0.5, "entropy_coef": 0.01, "barrier_coef": 0.02}


class Batch:
    """A minibatch of 10 x 6 rows for a linear policy and value function of 5 features."""

    def __init__(self, seed=0):
        g = torch.Generator().manual_seed(seed)
        rows, columns = 10, 6
        self.features = torch.randn(rows + 1, columns, 5, generator=g)
        self.value_offset = torch.zeros(rows + 1, columns)
        self.policy_weight = torch.randn(5, 3, generator=g)
        self.value_weight = torch.randn(5, 1, generator=g)
        self.action = torch.randint(0, 3, (rows, columns), generator=g)
        self.behaviour = torch.randn(rows, columns, generator=g) * 0.3 - 1.1
        self.reward = torch.randn(rows, columns, generator=g)
        self.terminated = torch.zeros(rows, columns, dtype=torch.bool)
        self.truncated = torch.zeros(rows, columns, dtype=torch.bool)
        self.ignored = torch.zeros(rows, columns, dtype=torch.bool)
        self.terminated[3, 0] = self.terminated[9, 1] = True
        self.truncated[4, 2] = self.truncated[9, 3] = True
        self.ignored[4, 0] = self.ignored[5, 2] = self.ignored[0, 4] = True
        self.too_old = torch.zeros(rows, columns, dtype=torch.bool)

    def loss(self, kind="appo", proximal=None, barrier=True):
        """The loss terms and the gradients of the two weight matrices."""
        policy_weight = self.policy_weight.clone().requires_grad_()
        value_weight = self.value_weight.clone().requires_grad_()
        rows, columns = self.reward.shape
        logits = (self.features[:-1] @ policy_weight).flatten(0, 1)
        log_prob, entropy = Categorical(3).log_prob_and_entropy(logits, self.action.flatten())
        log_prob, entropy = log_prob.view(rows, columns), entropy.view(rows, columns)
        value = (self.features @ value_weight).squeeze(-1) + self.value_offset
        ratio = importance_log_ratio(log_prob.detach(), self.behaviour, self.ignored).exp()
        trace = vtrace_appo if kind == "appo" else vtrace_impala
        returns = trace(
            ratio, self.reward, value.detach(), self.terminated, self.truncated, self.ignored,
            gamma=0.97, lambda_=0.9,
        )  # fmt: skip
        weight = (~self.ignored & ~self.too_old).float()
        arguments = (log_prob, entropy, value[:-1], self.behaviour, returns, weight, self.ignored)
        more = dict(COEFFICIENTS)
        if barrier:
            more["kl_from_uniform"] = Categorical(3).kl_from_uniform(logits).view(rows, columns)
        if kind == "appo":
            terms = appo_loss(*arguments, clip=0.2, proximal_log_prob=proximal, **more)
        else:
            terms = impala_loss(*arguments, **more)
        terms.loss.backward()
        return terms, policy_weight.grad, value_weight.grad


def assert_same_bits(before, after):
    for a, b in zip((*before[0], *before[1:]), (*after[0], *after[1:]), strict=True):
        assert torch.equal(a, b)


def test_masks_divide_by_valid_rows_not_by_kept_rows():
    weight = torch.tensor([1.0, 0.0, 1.0, 0.0])
    num_valid = torch.tensor(3.0)  # one row is ignored, one masked for its age
    x = torch.tensor([3.0, 100.0, 6.0, 100.0])
    assert mean_over_valid(x, weight, num_valid) == 3.0
    assert squared_value_error(x, torch.zeros(4), weight, num_valid) == 0.5 * (9 + 36) / 3
    ratio, advantage = torch.tensor([1.5, 9.0, 0.5, 9.0]), torch.tensor([1.0, 9.0, -1.0, 9.0])
    expected = -(1.2 * 1.0 + 0.8 * -1.0) / 3
    assert clipped_surrogate(ratio, advantage, weight, num_valid, 0.2).item() == pytest.approx(
        expected
    )
    assert impala_policy_gradient(x, advantage, weight, num_valid) == -(3.0 - 6.0) / 3


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 3.0])
def test_gradient_of_the_surrogate_by_hand(advantage, ratio):
    """d/d log π of -min(w·A, clip(w)·A) is -w·A, or 0 where moving on would not be rewarded."""
    log_prob = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    w = importance_log_ratio(log_prob, torch.tensor([-1.0]), torch.tensor([False])).exp()
    clipped_surrogate(
        w, torch.tensor([advantage]), torch.ones(1), torch.tensor(4.0), 0.2
    ).backward()
    stopped = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
    expected = 0.0 if stopped else -ratio * advantage / 4
    assert log_prob.grad.item() == pytest.approx(expected, abs=1e-6)


def test_a_clip_around_the_behaviour_itself_changes_no_bit():
    batch = Batch()
    assert_same_bits(batch.loss(), batch.loss(proximal=batch.behaviour))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("stale", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("moved", [0.7, 1.0, 1.3])
def test_gradient_of_the_decoupled_surrogate_by_hand(advantage, stale, moved):
    """d/d log π of -min(ρ̄, π'/μ)·min(w·A, clip(w)·A) with w = π/π', or 0 where that is clipped."""
    behaviour = torch.full((1, 1), -2.0)
    proximal = behaviour + math.log(stale)
    log_prob = (proximal + math.log(moved)).requires_grad_()
    no = torch.zeros(1, 1, dtype=torch.bool)
    returns = VTraceReturns(torch.zeros(1, 1), torch.full((1, 1), advantage))
    appo_loss(
        log_prob, torch.zeros(1, 1), torch.zeros(1, 1), behaviour, returns, torch.ones(1, 1), no,
        clip=0.2, rho_bar=1.5, normalise=False, proximal_log_prob=proximal, **COEFFICIENTS,
    ).loss.backward()  # fmt: skip
    stopped = (advantage > 0 and moved > 1.2) or (advantage < 0 and moved < 0.8)
    expected = 0.0 if stopped else -min(1.5, stale) * moved * advantage
    assert log_prob.grad.item() == pytest.approx(expected, abs=1e-5)


def test_gradients_of_the_whole_loss_by_hand():
    """Softmax: d log π(a)/d logit = 1[a] - π; entropy: d H/d logit_k = -π_k·(log π_k + H);
    barrier: d KL(u‖π)/d logit = π - 1/n."""
    batch = Batch()
    batch.too_old[0:2, 1] = True
    terms, policy_grad, value_grad = batch.loss("impala")
    f = batch.features.double()
    logits = f[:-1] @ batch.policy_weight.double()
    pi = logits.softmax(-1)
    value = (f @ batch.value_weight.double()).squeeze(-1)
    log_prob = pi.log().gather(-1, batch.action[..., None]).squeeze(-1)
    returns = vtrace_impala(
        (log_prob - batch.behaviour).exp().float(), batch.reward, value.float(),
        batch.terminated, batch.truncated, batch.ignored, gamma=0.97, lambda_=0.9,
    )  # fmt: skip
    kept = (~batch.ignored & ~batch.too_old).double()
    num_valid = (~batch.ignored).sum()
    onehot = torch.nn.functional.one_hot(batch.action, 3)
    entropy = -(pi * pi.log()).sum(-1, keepdim=True)
    d_logits = -returns.advantage.double()[..., None] * (onehot - pi)
    d_logits += 0.01 * pi * (pi.log() + entropy)
    d_logits += 0.02 * (pi - 1 / 3)
    d_logits *= kept[..., None] / num_valid
    d_value = 0.5 * (value[:-1] - returns.vs.double()) * kept / num_valid
    expected_policy = torch.einsum("tbi,tbk->ik", f[:-1], d_logits)
    expected_value = torch.einsum("tbi,tb->i", f[:-1], d_value)[:, None]
    torch.testing.assert_close(policy_grad.double(), expected_policy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(value_grad.double(), expected_value, atol=1e-5, rtol=1e-5)
    assert terms.entropy.item() == pytest.approx(
        ((entropy.squeeze(-1) * kept).sum() / num_valid).item(), rel=1e-5
    )


@pytest.mark.parametrize("kind", ["appo", "impala"])
def test_what_an_ignored_row_holds_changes_no_bit_of_loss_or_gradient(kind):
    before = Batch().loss(kind)
    at = Batch().ignored
    for field, junk in (
        ("reward", 1e6),
        ("action", 2),
        ("action", 0),
        ("behaviour", -math.inf),
        ("behaviour", 50.0),
    ):
        batch = Batch()
        setattr(batch, field, getattr(batch, field).masked_fill(at, junk))
        assert_same_bits(before, batch.loss(kind))


@pytest.mark.parametrize("kind", ["appo", "impala"])
def test_the_value_of_a_reset_row_changes_no_bit_after_termination(kind):
    before = Batch().loss(kind)
    batch = Batch()
    batch.value_offset[4, 0] = 123.0  # the reset row inside column 0
    batch.value_offset[10, 1] = -55.0  # row T of column 1, which terminates in row T-1
    batch.value_offset[0, 4] = 9.0  # row 0 of column 4: its episode is in the rollout before
    assert_same_bits(before, batch.loss(kind))
    batch.value_offset[5, 2] = 1.0  # after a truncation it is the bootstrap
    assert not torch.equal(before[2], batch.loss(kind)[2])


@pytest.mark.parametrize("kind", ["appo", "impala"])
def test_rows_masked_for_age_have_no_gradient_but_do_not_cut_the_trace(kind):
    batch = Batch()
    batch.too_old[:3] = True
    rows, columns = batch.reward.shape
    log_prob = torch.randn(rows, columns, requires_grad=True)
    entropy = torch.rand(rows, columns, requires_grad=True)
    value = torch.randn(rows + 1, columns, requires_grad=True)
    ratio = importance_log_ratio(log_prob.detach(), batch.behaviour, batch.ignored).exp()
    trace = vtrace_appo if kind == "appo" else vtrace_impala
    returns = trace(
        ratio, batch.reward, value.detach(), batch.terminated, batch.truncated, batch.ignored,
        gamma=0.97,
    )  # fmt: skip
    weight = (~batch.ignored & ~batch.too_old).float()
    rest = (log_prob, entropy, value[:-1], batch.behaviour, returns, weight, batch.ignored)
    if kind == "appo":
        appo_loss(*rest, clip=0.2, **COEFFICIENTS).loss.backward()
    else:
        impala_loss(*rest, **COEFFICIENTS).loss.backward()
    for leaf in (log_prob, entropy, value):
        assert not leaf.grad[:3].any() and not leaf.grad[:rows][batch.ignored].any()
    assert (entropy.grad[3:][weight[3:] > 0] != 0).all()
    # Their own targets still reach through them: the trace is older than the mask.
    shifted = batch.reward.clone()
    shifted[4, 5] += 1.0
    other = trace(
        ratio, shifted, value.detach(), batch.terminated, batch.truncated, batch.ignored,
        gamma=0.97,
    )  # fmt: skip
    assert (other.vs[:5, 5] != returns.vs[:5, 5]).all()


def test_a_batch_with_no_kept_row_has_a_loss_and_gradients_of_zero():
    for all_ignored in (False, True):
        batch = Batch()
        (batch.ignored if all_ignored else batch.too_old).fill_(True)
        for kind in ("appo", "impala"):
            terms, policy_grad, value_grad = batch.loss(kind)
            assert terms.loss == 0 and not policy_grad.any() and not value_grad.any()
            assert all(x.isfinite() for x in terms[:-1])


def test_a_log_ratio_beyond_f32_does_not_make_the_gradient_nan():
    log_prob = torch.tensor([200.0, -200.0, 0.0], requires_grad=True)
    w = importance_log_ratio(log_prob, torch.zeros(3), torch.zeros(3, dtype=torch.bool)).exp()
    clipped_surrogate(w, torch.ones(3), torch.ones(3), torch.tensor(3.0), 0.2).backward()
    assert w.isfinite().all() and log_prob.grad.isfinite().all()


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_kept_rows():
    torch.manual_seed(0)
    advantage = torch.randn(20, 4) * 3 + 5
    weight = (torch.rand(20, 4) < 0.7).float()
    out = normalise_advantage(advantage, weight)
    kept = out[weight > 0].double()
    assert kept.mean().abs() < 1e-6 and abs(kept.std() - 1) < 1e-6
    assert not out[weight == 0].any()
    masked = torch.where(weight > 0, advantage, -1e4)
    torch.testing.assert_close(normalise_advantage(masked, weight), out, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kept", [0, 1])
def test_normalising_none_or_one_row_gives_zero(kept):
    weight = torch.zeros(5)
    weight[:kept] = 1.0
    assert torch.equal(normalise_advantage(torch.arange(5.0), weight), torch.zeros(5))


@pytest.mark.parametrize("kind", ["appo", "impala"])
def test_gradient_of_the_barrier_by_hand(kind):
    """d KL(u‖π)/d logit = π - 1/n, over kept rows, divided by those that are not ignored."""
    batch = Batch()
    batch.too_old[0:2, 1] = True
    without, before, _ = batch.loss(kind, barrier=False)
    terms, after, _ = batch.loss(kind)
    features = batch.features[:-1].double()
    pi = (features @ batch.policy_weight.double()).softmax(-1)
    kept = (~batch.ignored & ~batch.too_old).double() / (~batch.ignored).sum()
    expected = 0.02 * torch.einsum("tbi,tbk,tb->ik", features, pi - 1 / 3, kept)
    torch.testing.assert_close((after - before).double(), expected, atol=1e-5, rtol=1e-5)
    divergence = -(pi.log().mean(-1) + math.log(3))
    assert terms.barrier.item() == pytest.approx((divergence * kept).sum().item(), rel=1e-5)
    assert terms.loss.item() == pytest.approx(without.loss.item() + 0.02 * terms.barrier.item())
    assert without.barrier.isnan(), "it is not computed"


def test_metrics():
    ratio = torch.tensor([[1.0, 1.5, 0.7, 0.9, 3.0]])
    weight = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    value = torch.tensor([[1.0, 2.0, 3.0, 4.0, 50.0]])
    target = torch.tensor([[1.5, 2.0, 2.5, 4.5, -9.0]])
    returns = VTraceReturns(target, torch.ones(1, 5))
    ignored = torch.tensor([[False, False, False, False, True]])
    log_prob = ratio.log().requires_grad_()
    terms = appo_loss(
        log_prob, torch.full((1, 5), 0.7), value, torch.zeros(1, 5), returns, weight, ignored,
        clip=0.2, normalise=False, **COEFFICIENTS,
    )  # fmt: skip
    w = ratio[0, :4].double()
    assert terms.policy_loss.item() == pytest.approx(-(1.0 + 1.2 + 0.7 + 0.9) / 4)
    assert terms.value_loss.item() == pytest.approx(0.5 * 3 * 0.25 / 4)
    assert terms.entropy.item() == pytest.approx(0.7)
    assert terms.loss.item() == pytest.approx(
        terms.policy_loss.item() + 0.5 * terms.value_loss.item() - 0.01 * 0.7
    )
    assert terms.approx_kl.item() == pytest.approx((w - 1 - w.log()).mean().item(), abs=1e-6)
    assert terms.clipfrac == 0.5 and terms.rho_clipped_share == 0.25
    t, v = target[0, :4].double(), value[0, :4].double()
    explained = 1 - (t - v).var() / t.var()
    assert terms.explained_variance.item() == pytest.approx(explained.item(), abs=1e-6)
    assert terms.loss.requires_grad and not any(x.requires_grad for x in terms[1:])
    assert all(x.shape == () and x.dtype == torch.float32 for x in terms)
    assert terms.barrier.isnan(), "it has no weight"


def test_explained_variance_of_a_constant_target_has_no_value():
    returns = VTraceReturns(torch.ones(1, 3), torch.zeros(1, 3))
    zeros, no = torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)
    terms = impala_loss(zeros, zeros, zeros, zeros, returns, torch.ones(1, 3), no, **COEFFICIENTS)
    assert terms.explained_variance.isnan() and terms.clipfrac == 0
