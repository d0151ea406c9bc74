import pytest
import torch

from fastrl.algo.vtrace import gae, vtrace_appo, vtrace_impala

NAN = float("nan")


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)[:, None]


def flags(rows, *at):
    out = torch.zeros(rows, 1, dtype=torch.bool)
    out[list(at)] = True
    return out


# ---------------------------------------------------- golden values of the design page

PLAIN = [
    # w, options, ρ̄_pg, v, IMPALA advantage, APPO advantage
    (
        (1, 1, 1, 1),
        {},
        1.0,
        (4.9285, 4.365, 4.85, 6.5),
        (3.9285, 2.365, 1.85, 2.5),
        (3.9285, 2.365, 1.85, 2.5),
    ),
    (
        (1, 1, 1, 1),
        {"lambda_": 0.5},
        1.0,
        (3.2618125, 3.02625, 3.725, 6.5),
        None,
        (2.2618125, 1.02625, 0.725, 2.5),
    ),
    (
        (0.5, 2, 0.25, 4),
        {},
        1.0,
        (2.4023125, 3.11625, 3.4625, 6.5),
        (1.4023125, 1.11625, 0.4625, 2.5),
        (2.804625, 1.11625, 1.85, 2.5),
    ),
    (
        (0.5, 2, 0.25, 4),
        {"rho_bar": 2.0, "c_bar": 1.0},
        3.0,
        (2.945125, 4.3225, 4.025, 9.0),
        (1.945125, 3.245, 1.025, 7.5),
        (3.89025, 1.6225, 4.1, 2.5),
    ),
    (
        (0.5, 2, 0.25, 4),
        {"lambda_": 0.5},
        1.0,
        (2.0758516, 2.7815625, 3.18125, 6.5),
        (1.2517031, 0.863125, 0.4625, 2.5),
        (2.1517031, 0.7815625, 0.725, 2.5),
    ),
]


@pytest.mark.parametrize("case", PLAIN)
def test_golden_values(case):
    ratio, options, rho_bar_pg, vs, impala, appo = case
    no = flags(4)
    arguments = (column(*ratio), column(1, 0, -1, 2), column(1, 2, 3, 4, 5), no, no, no)
    arguments = tuple(a.float() if a.dtype != torch.bool else a for a in arguments)
    result = vtrace_appo(*arguments, gamma=0.9, **options)
    torch.testing.assert_close(result.vs, column(*vs), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.advantage, column(*appo), atol=1e-6, rtol=1e-6)
    result = vtrace_impala(*arguments, gamma=0.9, rho_bar_pg=rho_bar_pg, **options)
    torch.testing.assert_close(result.vs, column(*vs), atol=1e-6, rtol=1e-6)
    if impala is not None:
        torch.testing.assert_close(result.advantage, column(*impala), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "x"),
    [("truncated", 10.0), *(("terminated", x) for x in (10.0, 0.0, -3.5, 1e6))],
)
@pytest.mark.parametrize("ignored_ratio", [1.0, 0.0, float("inf"), NAN])
def test_golden_values_with_a_reset_row(x, end, ignored_ratio):
    done = {"terminated": flags(5), "truncated": flags(5)}
    done[end] = flags(5, 1)
    arguments = (
        column(0.5, 2.0, ignored_ratio, 0.25, 4.0),
        column(1.0, 0.0, 0.0, -1.0, 2.0),
        column(1.0, 2.0, x, 3.0, 4.0, 5.0),
        done["terminated"],
        done["truncated"],
        flags(5, 2),
    )
    if end == "terminated":
        vs, impala, appo = (1, 0, x, 3.4625, 6.5), (0, -2, 0, 0.4625, 2.5), (0, -2, 0, 1.85, 2.5)
    else:
        vs, impala, appo = (
            (5.05, 9, x, 3.4625, 6.5),
            (4.05, 7, 0, 0.4625, 2.5),
            (8.1, 7, 0, 1.85, 2.5),
        )
    result = vtrace_appo(*arguments, gamma=0.9)
    torch.testing.assert_close(result.vs, column(*vs).float(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.advantage, column(*appo).float(), atol=1e-6, rtol=1e-6)
    result = vtrace_impala(*arguments, gamma=0.9)
    torch.testing.assert_close(result.vs, column(*vs).float(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.advantage, column(*impala).float(), atol=1e-6, rtol=1e-6)


# ------------------------------------------- an independent derivation: sums of products


def rollout(rows, columns, seed, done=0.15, absent=0.05):
    """A random rollout that keeps the design's rules, as keyword arguments of the functions.

    A row after a done row is ignored; row 0 may be one (its episode ended in the rollout before);
    other rows are sometimes ignored because the agent was absent.
    """
    g = torch.Generator().manual_seed(seed)
    uniform = torch.rand(rows, columns, generator=g)
    kind = torch.rand(rows, columns, generator=g) < 0.5
    terminated = torch.zeros(rows, columns, dtype=torch.bool)
    truncated = torch.zeros_like(terminated)
    ignored = torch.rand(rows, columns, generator=g) < absent
    ignored[0] |= torch.rand(columns, generator=g) < 0.3
    for t in range(rows):
        end = (uniform[t] < done) & ~ignored[t]
        terminated[t], truncated[t] = end & kind[t], end & ~kind[t]
        if t + 1 < rows:
            ignored[t + 1] |= end
    return {
        "ratio": torch.randn(rows, columns, generator=g).exp(),
        "reward": torch.randn(rows, columns, generator=g),
        "value": torch.randn(rows + 1, columns, generator=g),
        "terminated": terminated,
        "truncated": truncated,
        "ignored": ignored,
    }


def by_definition(r, gamma, lambda_=1.0, rho_bar=1.0, c_bar=1.0, rho_bar_pg=1.0):
    """v and both advantages in float64: v_s = V_s + Σ_{t≥s} γ^{t-s}·(Π_{s≤i<t} λ·c_i)·ρ_t·δV_t.

    The sum of the paper's equation 1, over the rows of s's own episode: it stops behind a row that
    ends the episode and before a row that has no effect.
    """
    rows, columns = r["reward"].shape
    w, reward, value = (r[k].double() for k in ("ratio", "reward", "value"))
    vs = value.clone()
    impala, appo = torch.zeros_like(reward), torch.zeros_like(reward)
    for b in range(columns):

        def bootstrap(t, b=b):
            return 0.0 if r["terminated"][t, b] else gamma * value[t + 1, b]

        def cut(t, b=b):
            return bool(r["terminated"][t, b] or r["truncated"][t, b])

        for s in range(rows):
            product = 1.0
            for t in range(s, rows):
                if r["ignored"][t, b]:
                    break
                difference = reward[t, b] + bootstrap(t) - value[t, b]
                vs[s, b] += product * min(rho_bar, w[t, b].item()) * difference
                if cut(t):
                    break
                product *= gamma * lambda_ * min(c_bar, w[t, b].item())
        for s in range(rows):
            if r["ignored"][s, b]:
                continue
            if cut(s):
                target = mixed = reward[s, b] + bootstrap(s)
            else:
                target = reward[s, b] + gamma * vs[s + 1, b]
                mixed = reward[s, b] + gamma * (
                    (1 - lambda_) * value[s + 1, b] + lambda_ * vs[s + 1, b]
                )
            impala[s, b] = min(rho_bar_pg, w[s, b].item()) * (target - value[s, b])
            appo[s, b] = mixed - value[s, b]
    return vs[:-1], impala, appo


def assert_as_defined(r, **options):
    vs, impala, appo = by_definition(r, **options)
    result = vtrace_impala(**r, **options)
    torch.testing.assert_close(result.vs.double(), vs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(result.advantage.double(), impala, atol=1e-5, rtol=1e-6)
    options.pop("rho_bar_pg", None)
    result = vtrace_appo(**r, **options)
    torch.testing.assert_close(result.vs.double(), vs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(result.advantage.double(), appo, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lambda_": 0.95},
        {"lambda_": 0.0},
        {"lambda_": 0.7, "rho_bar": 2.0, "c_bar": 1.5, "rho_bar_pg": 3.0},
        {"lambda_": 0.9, "rho_bar": float("inf"), "c_bar": 1.0},
    ],
)
def test_against_the_sum_of_products(seed, options):
    assert_as_defined(rollout(11, 7, seed), gamma=0.97, **options)


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_end_at_every_position(position, end):
    r = rollout(6, 4, position, done=0.0, absent=0.0)
    r["ignored"].zero_()
    r[end][position] = True
    if position + 1 < 6:
        r["ignored"][position + 1] = True
    assert_as_defined(r, gamma=0.9, lambda_=0.8)


@pytest.mark.parametrize("position", range(6))
def test_an_ignored_row_at_every_position(position):
    r = rollout(6, 4, position, done=0.0, absent=0.0)
    r["ignored"].zero_()
    r["ignored"][position] = True
    assert_as_defined(r, gamma=0.9, lambda_=0.8)


def test_one_row_and_episodes_of_one_step():
    for rows in (1, 2, 3):
        assert_as_defined(rollout(rows, 20, rows, done=0.9), gamma=0.99, lambda_=0.95)


# --------------------------------------------------------------- GAE, by its recursion


def independent_gae(r, gamma, lambda_):
    """Per episode, backwards, in plain Python: Schulman et al. 2016, equation 16."""
    rows, columns = r["reward"].shape
    advantage = torch.zeros(rows, columns, dtype=torch.float64)
    value, reward = r["value"].double(), r["reward"].double()
    for b in range(columns):
        running = 0.0
        for t in reversed(range(rows)):
            if r["ignored"][t, b]:
                running = 0.0
                continue
            if r["terminated"][t, b]:
                running = reward[t, b] - value[t, b]
            elif r["truncated"][t, b]:
                running = reward[t, b] + gamma * value[t + 1, b] - value[t, b]
            else:
                delta = reward[t, b] + gamma * value[t + 1, b] - value[t, b]
                running = delta + gamma * lambda_ * running
            advantage[t, b] = running
    return advantage


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_on_policy_it_is_gae(seed, lambda_):
    r = rollout(12, 6, seed)
    r["ratio"] = torch.ones_like(r["ratio"])
    expected = independent_gae(r, 0.9, lambda_)
    on_policy = vtrace_appo(**r, gamma=0.9, lambda_=lambda_)
    torch.testing.assert_close(on_policy.advantage.double(), expected, atol=1e-6, rtol=1e-6)
    target = r["value"][:-1].double() + expected
    torch.testing.assert_close(on_policy.vs.double(), target, atol=1e-6, rtol=1e-6)
    r.pop("ratio")
    by_name = gae(**r, gamma=0.9, lambda_=lambda_)
    assert torch.equal(by_name.advantage, on_policy.advantage)
    assert torch.equal(by_name.vs, on_policy.vs)


def exponentially_weighted(r, gamma, lambda_):
    """Schulman et al. 2016, equation 16: (1 - λ)·Σ_k λ^{k-1}·Â^(k), k rows ahead, in float64.

    Â^(k) = r_t + … + γ^{k-1}·r_{t+k-1} + γ^k·V_{t+k} - V_t. Where the episode, or what is known of
    it, has n more rows, Â^(k) of every k > n is Â^(n), which so gets the rest of the weight.
    """
    rows, columns = r["reward"].shape
    value, reward = r["value"].double(), r["reward"].double()
    ignored, terminated = r["ignored"], r["terminated"]
    cut = terminated | r["truncated"]
    advantage = torch.zeros(rows, columns, dtype=torch.float64)
    for b in range(columns):
        for t in range(rows):
            if ignored[t, b]:
                continue
            estimates, rewards, last = [], 0.0, False
            while not last:
                row = t + len(estimates)
                rewards = rewards + gamma ** (row - t) * reward[row, b]
                beyond = 0.0 if terminated[row, b] else gamma ** (row - t + 1) * value[row + 1, b]
                estimates.append(rewards + beyond - value[t, b])
                last = bool(cut[row, b]) or row + 1 == rows or bool(ignored[row + 1, b])
            n = len(estimates)
            weights = [(1 - lambda_) * lambda_**k for k in range(n - 1)] + [lambda_ ** (n - 1)]
            advantage[t, b] = sum(w * a for w, a in zip(weights, estimates, strict=True))
    return advantage


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("done", [0.0, 0.15, 0.5])
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_on_policy_it_is_the_exponentially_weighted_average_of_k_step_advantages(
    seed, done, lambda_
):
    r = rollout(14, 5, 100 + seed, done=done)
    r["ratio"] = torch.ones_like(r["ratio"])
    expected = exponentially_weighted(r, 0.97, lambda_)
    result = vtrace_appo(**r, gamma=0.97, lambda_=lambda_)
    torch.testing.assert_close(result.advantage.double(), expected, atol=1e-6, rtol=1e-6)


# ------------------------------------------------------------------ what must not matter


@pytest.mark.parametrize("function", [vtrace_appo, vtrace_impala])
def test_what_an_ignored_row_holds_changes_no_bit_elsewhere(function):
    r = rollout(16, 32, 0)
    before = function(**r, gamma=0.99, lambda_=0.95)
    for junk in (NAN, float("inf"), -1e30):
        changed = dict(r)
        changed["reward"] = r["reward"].masked_fill(r["ignored"], junk)
        changed["ratio"] = r["ratio"].masked_fill(r["ignored"], junk)
        after = function(**changed, gamma=0.99, lambda_=0.95)
        assert torch.equal(before.vs, after.vs) and torch.equal(before.advantage, after.advantage)


@pytest.mark.parametrize("function", [vtrace_appo, vtrace_impala])
@pytest.mark.parametrize("last", [False, True])
def test_the_value_of_a_reset_row_matters_after_truncation_only_and_to_its_own_episode(
    function, last
):
    """Two episodes, the first ending at row 3, then the reset row, then the second."""
    rows = 4 if last else 9  # last: the episode ends in row T-1, and the reset row is row T
    for end in ("terminated", "truncated"):
        r = rollout(rows, 5, 1, done=0.0, absent=0.0)
        r["ignored"].zero_()
        r[end][3] = True
        if not last:
            r["ignored"][4] = True
        before = function(**r, gamma=0.99, lambda_=0.95)
        changed = dict(r, value=r["value"].clone())
        changed["value"][4] += 100.0
        after = function(**changed, gamma=0.99, lambda_=0.95)
        for a, b in ((before.vs, after.vs), (before.advantage, after.advantage)):
            assert torch.equal(a[5:], b[5:])
            if end == "terminated":
                assert torch.equal(a[:4], b[:4])
            else:
                assert (a[:4] != b[:4]).all()


def test_the_next_episode_does_not_reach_back():
    r = rollout(9, 5, 2, done=0.0, absent=0.0)
    r["ignored"].zero_()
    r["truncated"][3] = True
    r["ignored"][4] = True
    before = vtrace_appo(**r, gamma=0.99)
    changed = dict(r, reward=r["reward"].clone(), value=r["value"].clone())
    changed["reward"][5:] += 7.0
    changed["value"][5:] -= 3.0
    after = vtrace_appo(**changed, gamma=0.99)
    assert torch.equal(before.vs[:5], after.vs[:5])
    assert torch.equal(before.advantage[:5], after.advantage[:5])


def test_columns_do_not_mix_and_results_carry_no_gradient():
    r = rollout(8, 6, 3)
    r["value"].requires_grad_()
    whole = vtrace_appo(**r, gamma=0.9)
    assert not whole.vs.requires_grad and not whole.advantage.requires_grad
    part = vtrace_appo(**{name: x[:, 2:4] for name, x in r.items()}, gamma=0.9)
    assert torch.equal(part.vs, whole.vs[:, 2:4])


@pytest.mark.parametrize("function", [vtrace_appo, vtrace_impala])
def test_arguments_are_not_changed(function):
    r = rollout(8, 6, 3)
    before = {name: x.clone() for name, x in r.items()}
    function(**r, gamma=0.9)
    assert all(torch.equal(r[name], before[name]) for name in r)


def test_arguments_that_do_not_fit_are_refused():
    r = rollout(5, 3, 0)
    with pytest.raises(ValueError, match="c_bar is 2"):
        vtrace_appo(**r, gamma=0.9, c_bar=2.0)
    arena_rows = torch.zeros(6, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"ignored has shape \(6, 3\), expected \(5, 3\)"):
        vtrace_appo(**dict(r, ignored=arena_rows), gamma=0.9)
    with pytest.raises(ValueError, match="value has shape"):
        vtrace_appo(**dict(r, value=r["value"][:-1]), gamma=0.9)
