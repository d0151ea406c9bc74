"""A reset row is no step: nothing that it holds is learned from, but V(final) of a truncated one.

Two runs of the same updates, one of them with other contents in its reset rows, are compared bit
for bit: weights, optimiser, statistics of every normaliser, metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import counting
import numpy as np
import pytest
import torch
from engine import Engine

from fastrl.algo import appo
from fastrl.algo.vtrace import vtrace_appo

T, BATCH_SLOTS, OLD = 12, 4, 5
GAMMA, LAMBDA = 0.97, 0.9
GARBAGE = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -7.5, 0.0], np.float32)

Change = Callable[[Engine, np.ndarray, np.random.Generator], None]


def final_rows(engine: Engine, slots: np.ndarray, truncated: bool) -> np.ndarray:
    """bool [slots, T+1, E]: reset rows whose episode ended by truncation, or by termination.

    The observation says how it ended, also where the row that ended it lies in another slot.
    """
    obs = engine.shared.obs["obs"][slots]
    ends = np.vectorize(counting.ends_by)
    _, by_truncation = ends(obs[..., counting.INDEX], obs[..., counting.EPISODE])
    return engine.shared.ignored[slots] & (by_truncation == truncated)


def fill_batch(engine: Engine, rng: np.random.Generator) -> np.ndarray:
    """Fill two slots of each group; μ is near π, and the first rows of some columns are too old."""
    for _ in range(2):
        for group in (0, 1):
            engine.fill(group, version=engine.learner.version)
    slots, dropped = engine.queue.take(BATCH_SLOTS)
    assert dropped == 0
    shared, E = engine.shared, engine.plan.envs_per_group
    rows = (BATCH_SLOTS, T, E)
    behaviour = -np.log(7) if engine.plan.spec.action["action"].kind == "discrete" else -2.8
    shared.log_prob[slots] = behaviour + rng.uniform(-0.4, 0.4, rows)
    shared.value[slots] = rng.normal(size=rows)
    old = np.arange(T)[:, None] < rng.integers(-6, 7, (BATCH_SLOTS, 1, E))
    shared.version[slots] = engine.learner.version - np.where(old, OLD + 1, 0)
    return slots


def new_engine(**options: Any) -> Engine:
    return Engine(
        **{
            "rollout_length": T,
            "envs_per_worker": 16,
            "batch_size": BATCH_SLOTS * T * 8,
            "max_policy_lag": OLD,
            "learning_rate": 1e-3,
            "lr_schedule": "constant",
            "reward_clip": "sign",
            "gamma": GAMMA,
            "gae_lambda": LAMBDA,
            **options,
        }
    )


def train(change: Change | None, updates: int = 2, moment_rows: int | None = None, **options: Any):
    """All that some updates leave behind, as bytes by name; `change` edits each batch before."""
    engine = new_engine(**options)
    if moment_rows is not None:
        engine.updater._moment_rows = moment_rows
    rng, garbage = np.random.default_rng(1), np.random.default_rng(2)
    left: dict[str, bytes] = {}
    for number in range(updates):
        slots = fill_batch(engine, rng)
        if change is not None:
            change(engine, slots, garbage)
        metrics = engine.train(slots)
        del metrics["perf/update_ms"]
        left |= bits(metrics, f"{number}/metrics")
        left |= bits(engine.updater.state(), f"{number}/state")
    published = np.empty(engine.updater.num_params, np.float32)
    engine.shared.weights().read(published)
    assert np.isfinite(published).all()
    return left | bits(published, "published")


def bits(tree: Any, path: str) -> dict[str, bytes]:
    """Every leaf of nested dicts and lists as bytes, by its path."""
    if isinstance(tree, dict):
        return {k: v for key, leaf in tree.items() for k, v in bits(leaf, f"{path}/{key}").items()}
    if isinstance(tree, list | tuple):
        return bits(dict(enumerate(tree)), path)
    return {path: repr(tree).encode() if tree is None else np.asarray(tree).tobytes()}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    assert before.keys() == after.keys()
    return [path for path, leaf in before.items() if leaf != after[path]]


def set_rows(field: str) -> Change:
    """Garbage in one field of all reset rows (`action`: others that are in the action space)."""

    def change(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
        shared = engine.shared
        array = shared.action["action"] if field == "action" else getattr(shared, field)
        for slot in slots.tolist():
            reset = shared.ignored[slot, :-1]
            assert reset.any()
            held = array[slot][reset]
            if field != "action":
                new = rng.choice(GARBAGE, held.shape)
            elif np.issubdtype(held.dtype, np.integer):
                new = (held + rng.integers(1, counting.NUM_ACTIONS, held.shape)) % 7
            else:
                new = rng.normal(scale=1e6, size=held.shape)
            array[slot][reset] = new

    return change


def set_observations(truncated: bool, only_row_0: bool = False) -> Change:
    """Other finite observations in reset rows, the bootstrap row's among them."""

    def change(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
        rows = final_rows(engine, slots, truncated)
        if only_row_0:
            rows[:, 1:] = False
        assert rows[:, 0].any(), "of an episode that lies in the slot before"
        assert only_row_0 or (rows[:, 1:-1].any() and rows[:, -1].any())
        for slot, reset in zip(slots.tolist(), rows, strict=True):
            held = engine.shared.obs["obs"][slot]
            scale = 10.0 ** rng.integers(-3, 8, (reset.sum(), 1))
            held[reset] = rng.normal(size=(reset.sum(), 4)) * scale

    return change


def all_at_once(*changes: Change) -> Change:
    def change(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
        for each in changes:
            each(engine, slots, rng)

    return change


FIELDS = [set_rows(field) for field in ("reward", "action", "log_prob", "value")]
NOT_LEARNED_FROM = {
    "reward": FIELDS[0],
    "action": FIELDS[1],
    "log_prob": FIELDS[2],
    "value": FIELDS[3],
    "observation after a termination": set_observations(truncated=False),
    "observation in row 0": set_observations(truncated=True, only_row_0=True),
    "all": all_at_once(
        *FIELDS, set_observations(truncated=False), set_observations(True, only_row_0=True)
    ),
}


@pytest.mark.parametrize("epochs, minibatches", [(1, 1), (2, 2)])
@pytest.mark.parametrize("lr_schedule", ["constant", "kl"])
@pytest.mark.parametrize("normalize_returns", [False, True])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_what_a_reset_row_holds_changes_nothing_by_one_bit(
    normalize_obs, normalize_returns, lr_schedule, epochs, minibatches
):
    options = {
        "normalize_obs": normalize_obs,
        "normalize_returns": normalize_returns,
        "lr_schedule": lr_schedule,
        "epochs": epochs,
        "minibatches": minibatches,
    }
    unchanged = train(None, **options)
    assert ("0/metrics/losses/kl" in unchanged) == (lr_schedule == "kl")
    assert any("/moments/obs" in path for path in unchanged) == normalize_obs
    for name, change in NOT_LEARNED_FROM.items():
        assert changed(unchanged, train(change, **options)) == [], name


@pytest.mark.parametrize(
    "options",
    [{"action": counting.CONTINUOUS}, {"action": counting.CONTINUOUS, "separate_critic": False},
     {"moment_rows": 50}, {"normalize_advantage": False, "publish": "step"}, {"dtype": "bf16"}],
    ids=["two towers", "continuous", "moments of some rows", "step", "bf16"],
)  # fmt: skip
@pytest.mark.slow
def test_what_a_reset_row_holds_changes_nothing_in_other_networks(options):
    options = {"epochs": 2, "minibatches": 2, "lr_schedule": "kl", **options}
    unchanged = train(None, **options)
    for name, change in NOT_LEARNED_FROM.items():
        assert changed(unchanged, train(change, **options)) == [], name


@pytest.mark.parametrize("field", ["reward", "action", "log_prob"])
def test_the_comparison_sees_a_change_of_a_row_that_is_trained_on(field):
    def change(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
        shared = engine.shared
        array = shared.action["action"] if field == "action" else getattr(shared, field)
        slot = int(slots[0])
        kept = ~shared.ignored[slot, :-1] & (shared.version[slot] == engine.learner.version)
        row, e = np.argwhere(kept)[0]
        array[slot, row, e] = 3 if array[slot, row, e] != 3 else 4

    assert "published" in changed(train(None), train(change))


@pytest.mark.parametrize("normalize_returns", [False, True])
def test_statistics_of_observations_never_see_a_final_observation(normalize_returns):
    options = {"normalize_returns": normalize_returns, "epochs": 2, "minibatches": 2}
    before = train(None, updates=1, **options)
    after = train(set_observations(truncated=True), updates=1, **options)
    different = changed(before, after)
    assert "published" in different, "V(final) is learned from"
    assert "0/state/model/value_head.weight" in different
    seen = [path for path in before if "normalizers" in path or "/moments/" in path]
    assert len(seen) == 5
    assert not set(seen) & set(different)
    assert any("return_moments" in path for path in different) == normalize_returns


class Captured:
    """What V-trace was given and what it returned, call by call; each array [T(+1), columns].

    Of the second update, so that the normalisers have statistics. With a learning rate of 0 all its
    minibatches are evaluated by the same weights.
    """

    def __init__(self, monkeypatch, **options: Any) -> None:
        self._patch = monkeypatch
        self._options = {"learning_rate": 0.0, **options}

    def run(self, change: Change) -> list[dict[str, np.ndarray]]:
        calls = []

        def spy(ratio, reward, value, terminated, truncated, ignored, **constants):
            given = (ratio, reward, value, terminated, truncated, ignored)
            returns = vtrace_appo(*given, **constants)
            names = ("ratio", "reward", "value", "terminated", "truncated", "ignored")
            call = dict(zip(names, given, strict=True)) | returns._asdict()
            calls.append({name: array.numpy().copy() for name, array in call.items()})
            return returns

        def in_the_second(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
            if engine.learner.updates == 1:
                calls.clear()
                change(engine, slots, rng)

        self._patch.setattr(appo, "vtrace_appo", spy)
        train(in_the_second, **self._options)
        return calls


def sums(call: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """v_t and A_t in float64 as sums over what follows, an independent derivation.

    v_t = V_t + Σ_k (Π_{i=t}^{k-1} γλ·c_i)·ρ_k·(r_k + d_k·V_{k+1} - V_k), k up to the row that ends
    the episode or the slot; A_t is the same sum with ρ_t = 1 and without c_t. NaN where ignored.
    """
    value, ratio = call["value"].astype(np.float64), call["ratio"].astype(np.float64)
    c = np.minimum(1.0, ratio)
    vs, advantage = np.full_like(ratio, np.nan), np.full_like(ratio, np.nan)
    for t, b in np.argwhere(~call["ignored"]):
        total, weight = 0.0, 1.0
        for k in range(t, T):
            discount = 0.0 if call["terminated"][k, b] else GAMMA
            delta = call["reward"][k, b] + discount * value[k + 1, b] - value[k, b]
            total += weight * (delta if k == t else c[k, b] * delta)
            if call["terminated"][k, b] or call["truncated"][k, b]:
                break
            weight *= GAMMA * LAMBDA * (1.0 if k == t else c[k, b])
        advantage[t, b] = total
        vs[t, b] = value[t, b] + c[t, b] * total
    return vs, advantage


def reached(call: dict[str, np.ndarray], finals: np.ndarray) -> np.ndarray:
    """bool [T, columns]: rows of the episodes whose final observations are `finals` [T+1, ..]."""
    rows = np.zeros_like(call["ignored"])
    for t, b in np.argwhere(finals):
        row = t - 1
        while row >= 0 and not call["ignored"][row, b]:
            rows[row, b] = True
            row -= 1
    return rows


@pytest.mark.parametrize("epochs, minibatches", [(1, 1), (2, 4)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_final_observation_reaches_the_rows_of_its_truncated_episode_alone(
    monkeypatch, normalize, epochs, minibatches
):
    capture = Captured(
        monkeypatch,
        normalize_obs=normalize,
        normalize_returns=normalize,
        epochs=epochs,
        minibatches=minibatches,
    )
    finals: list[list[int]] = []

    def find(engine: Engine, slots: np.ndarray, rng: np.random.Generator) -> None:
        rows = np.argwhere(final_rows(engine, slots, truncated=True)).tolist()
        finals.extend([at, row, e] for at, row, e in rows if row > 0)

    before = capture.run(find)
    assert len(before) == epochs * minibatches
    assert len(finals) > 8 and any(row == T for _, row, _ in finals)
    for places in [*([final] for final in finals), finals]:

        def change(engine, slots, rng, places=places):
            for at, row, e in places:
                engine.shared.obs["obs"][slots[at], row, e] += rng.choice([-2, 2], 4)

        after = capture.run(change)
        found = 0
        for old, new in zip(before, after, strict=True):
            found += check_call(old, new)
        assert found == epochs * len(places)


def check_call(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> int:
    """Compare one call without and with other final observations; returns how many it saw."""
    for name in ("ratio", "reward", "terminated", "truncated", "ignored"):
        np.testing.assert_array_equal(old[name], new[name])
    assert old["ratio"].min() > 0
    finals = old["value"] != new["value"]
    assert old["truncated"][np.nonzero(finals)[0] - 1, np.nonzero(finals)[1]].all()
    expected = reached(old, finals)
    valid = ~old["ignored"]
    for name, was, becomes in zip(("vs", "advantage"), sums(old), sums(new), strict=True):
        different = old[name] != new[name]
        np.testing.assert_array_equal(different & valid, expected)
        reset = different & ~valid
        # At the reset row itself v is V(final), by definition; nothing takes it.
        np.testing.assert_array_equal(reset, finals[:-1] if name == "vs" else False & reset)
        np.testing.assert_allclose(new[name][valid], becomes[valid], rtol=1e-5, atol=1e-5)
        moved = new[name].astype(np.float64) - old[name]
        np.testing.assert_allclose(moved[expected], (becomes - was)[expected], rtol=1e-3, atol=2e-6)
    return int(finals.sum())


def test_rows_too_old_to_train_on_pass_the_final_value_on(monkeypatch):
    # A row that is masked keeps its place in the trace: only its weight in the loss is 0.
    weights: list[torch.Tensor] = []
    original = appo.appo_loss

    def spy(*args, **kwargs):
        weights.append(args[5].clone())
        return original(*args, **kwargs)

    monkeypatch.setattr(appo, "appo_loss", spy)
    capture = Captured(monkeypatch, epochs=1, minibatches=1)
    (old,) = capture.run(lambda *nothing: None)
    (new,) = capture.run(set_observations(truncated=True))
    different = (old["advantage"] != new["advantage"]) & ~old["ignored"]
    masked = (weights[1].numpy() == 0) & ~old["ignored"]
    assert (different & masked).any() and (different & ~masked).any()
