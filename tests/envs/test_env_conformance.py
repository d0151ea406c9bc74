"""What every adapter promises (fastrl/envs/vector_env.py), for one id of each kind."""

import pickle

import numpy as np
import pytest
from group import Group

from fastrl.envs import EnvOptions, describe
from fastrl.envs.envpool_adapter import DirectExchange, PublicExchange
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.envs.spec import sample_actions

SHORT = EnvOptions(max_episode_steps=17)
VECTOR = EnvOptions(vector_entry_point=True)
# name -> id and options under which 45 steps of 4 environments contain done rows.
CASES = {
    "atari:Pong": ("atari:Pong", SHORT),
    "atari:Breakout": ("atari:Breakout", EnvOptions()),
    "envpool:CartPole-v1": ("envpool:CartPole-v1", EnvOptions()),
    "envpool:Pendulum-v1": ("envpool:Pendulum-v1", SHORT),
    "envpool:MountainCar-v0": ("envpool:MountainCar-v0", SHORT),
    "envpool:Taxi-v3": ("envpool:Taxi-v3", SHORT),
    "envpool:HalfCheetah-v4": ("envpool:HalfCheetah-v4", SHORT),
    "envpool:MetaWorld/Reach-v3": ("envpool:MetaWorld/Reach-v3", SHORT),
    "gym:CartPole-v1": ("gym:CartPole-v1", EnvOptions()),
    "gym:Pendulum-v1": ("gym:Pendulum-v1", SHORT),
    "gym:Taxi-v4": ("gym:Taxi-v4", SHORT),
    "gym:CartPole-v1, vector": ("gym:CartPole-v1", VECTOR),
    "py:toys:Ledger": ("py:toys:Ledger", EnvOptions()),
    "py:toys:ledgers": ("py:toys:ledgers", EnvOptions()),
}
ENVPOOL = [case for case in CASES if case.startswith(("atari:", "envpool:"))]
# One generator for all, and all or none are stepped.
VECTORS = ["gym:CartPole-v1, vector", "py:toys:ledgers"]
CARTPOLE = ((4,), "float32", "vector", (), "int32")
LEDGER = ((3,), "float32", "vector", (), "int32")
SPECS = {
    "atari:Pong": ((4, 84, 84), "uint8", "image", (), "int32"),
    "atari:Breakout": ((4, 84, 84), "uint8", "image", (), "int32"),
    "envpool:CartPole-v1": CARTPOLE,
    "envpool:Pendulum-v1": ((3,), "float32", "vector", (1,), "float32"),
    "envpool:MountainCar-v0": ((2,), "float32", "vector", (), "int32"),
    "envpool:Taxi-v3": ((), "int32", "discrete", (), "int32"),
    "envpool:HalfCheetah-v4": ((17,), "float32", "vector", (6,), "float32"),
    "envpool:MetaWorld/Reach-v3": ((39,), "float32", "vector", (4,), "float32"),
    "gym:CartPole-v1": CARTPOLE,
    "gym:Pendulum-v1": ((3,), "float32", "vector", (1,), "float32"),
    "gym:Taxi-v4": ((), "int32", "discrete", (), "int32"),
    "gym:CartPole-v1, vector": CARTPOLE,
    "py:toys:Ledger": LEDGER,
    "py:toys:ledgers": LEDGER,
}
STEPS = 45
cases = pytest.mark.parametrize("case", CASES)
cases_of_own_generators = pytest.mark.parametrize("case", [c for c in CASES if c not in VECTORS])


def group_of(case, **keywords):
    env_id, options = CASES[case]
    return Group(env_id, options, **keywords)


def assert_same(a, b, columns=slice(None)):
    for name in ("obs", "reward", "terminated", "truncated", "episode_over"):
        np.testing.assert_array_equal(getattr(a, name)[:, columns], getattr(b, name), err_msg=name)


@pytest.fixture(scope="module")
def played():
    """Rows of every case, played once."""
    rows = {}

    def get(case):
        if case not in rows:
            rows[case] = group_of(case).play(STEPS)
        return rows[case]

    return get


@cases
def test_the_spec_is_told_and_travels(case):
    spec = describe(*CASES[case])
    obs, action = spec.observation["obs"], spec.action["action"]
    assert (obs.shape, obs.dtype, obs.kind, action.shape, action.dtype) == SPECS[case]
    assert pickle.loads(pickle.dumps(spec)) == spec


@cases
def test_every_value_is_written_and_finite(case, played):
    rows = played(case)
    assert np.isfinite(rows.reward).all()
    assert np.isfinite(rows.obs).all()
    if rows.obs.dtype == np.float32:
        assert not (rows.obs == 77).any()
    else:  # an unwritten image would be 77 all over; a discrete one that never moves would be too
        assert len(np.unique(rows.obs[1:])) > 1


@cases
def test_the_row_after_a_done_row_only_resets(case, played):
    rows = played(case)
    resets = rows.resets
    assert resets.any()
    assert not rows.reward[resets].any()
    assert not rows.done[resets].any()
    assert not (rows.terminated & rows.truncated).any()
    assert not (rows.episode_over & ~rows.done & ~resets).any()


@cases
def test_the_action_of_a_reset_row_has_no_effect(case, played):
    rows = played(case)
    other = group_of(case)
    spec = other.action_spec
    plan = rows.action.copy()
    turned = (plan + 1) % spec.n if spec.kind == "discrete" else -plan
    plan[rows.resets] = turned[rows.resets]
    assert_same(rows, other.play(STEPS, lambda t, obs: plan[t]))


@cases_of_own_generators
def test_rows_do_not_depend_on_how_environments_are_spread_over_groups(case, played):
    whole = played(case)
    for first in (0, 2):
        part = group_of(case, num_envs=2, first=first)
        assert_same(whole, part.play(STEPS), slice(first, first + 2))


@cases_of_own_generators
@pytest.mark.slow
def test_stagger_equals_the_same_actions_played_by_hand(case):
    steps = np.array([0, 1, 18, 25])
    group = group_of(case, seed=5)
    returns, lengths = group.reset(steps, [env_rng(3, i) for i in range(4)])
    assert returns.dtype == np.float64 and lengths.dtype == np.int64
    after = group.obs.copy()
    group.step(group.actions(1)[0])

    for i, count in enumerate(steps):
        alone = group_of(case, num_envs=1, first=i, seed=5)
        alone.reset()
        plan = sample_actions(alone.action_spec, int(count), env_rng(3, i))
        total, length, played, done = 0.0, 0, 0, False
        while played < count or done:
            out = alone.step(plan[[min(played, count - 1)]])
            if not done:
                played += 1
                length += 1
                total += float(out.reward[0])
            if out.episode_over[0]:
                total, length = 0.0, 0
            done = bool(out.terminated[0] | out.truncated[0])
        assert (returns[i], lengths[i]) == (total, length)
        np.testing.assert_array_equal(after[i], alone.obs[0])
        # The running episodes go on alike: the stagger left no reset pending.
        alone_out = alone.step(group.actions(1)[0][[i]])
        np.testing.assert_array_equal(group.obs[i], alone.obs[0])
        assert group.out.reward[i] == alone_out.reward[0]


@pytest.mark.parametrize("case", ENVPOOL)
@pytest.mark.slow
def test_both_ways_into_envpool_give_the_same_rows(case, played, monkeypatch):
    assert isinstance(group_of(case).env._exchange, DirectExchange)
    monkeypatch.setattr(DirectExchange, "fits", lambda pool: False)
    public = group_of(case)
    assert isinstance(public.env._exchange, PublicExchange)
    assert_same(played(case), public.play(STEPS))


@cases
def test_a_second_reset_starts_new_episodes_even_in_the_middle(case):
    group = group_of(case)
    group.reset()
    for action in group.actions(5):
        group.step(action)
    group.reset()
    reward, length = np.zeros(4), np.zeros(4, dtype=int)
    for action in group.actions(3):
        out = group.step(action)
        reward += out.reward
        length += 1
    assert (length == 3).all()
    assert not out.truncated.any()


@cases
def test_close_twice_then_step(case):
    group = group_of(case)
    group.reset()
    group.env.close()
    group.env.close()
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        group.step(group.actions(1)[0])


def test_no_two_environments_of_a_run_share_a_seed():
    seeds = [env_seed(7, i) for i in range(100_000)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 1 and max(seeds) < 2**31 - 1
    assert env_seed(8, 0) != env_seed(7, 0)


@pytest.mark.parametrize(
    "case",
    [
        "envpool:CartPole-v1",
        "envpool:Pendulum-v1",
        "envpool:HalfCheetah-v4",
        "gym:Pendulum-v1",
        *VECTORS,
    ],
)
def test_environments_begin_differently_and_runs_too(case):
    first = group_of(case, num_envs=8, seed=1)
    second = group_of(case, num_envs=8, seed=2)
    first.reset()
    second.reset()
    assert len(np.unique(np.concatenate([first.obs, second.obs]), axis=0)) == 16


@pytest.mark.parametrize("case", ["envpool:CartPole-v1", "gym:CartPole-v1", *VECTORS])
def test_a_wrong_action_shape_is_refused(case):
    group = group_of(case)
    group.reset()
    with pytest.raises(ValueError, match=r"shape \(3,\), but 4 environments"):
        group.step(np.zeros(3))


@pytest.mark.parametrize("case", ["envpool:CartPole-v1", "gym:CartPole-v1"])
@pytest.mark.parametrize(("steps", "rngs"), [([1, 2], 2), ([1, 2, 3, -1], 4), ([1, 2, 3, 4], 3)])
def test_a_wrong_stagger_is_refused(case, steps, rngs):
    group = group_of(case)
    with pytest.raises(ValueError, match=r"stagger"):
        group.reset(np.array(steps), [env_rng(0, i) for i in range(rngs)])
    with pytest.raises(ValueError, match="4 stagger_steps and 0 rngs"):
        group.reset(np.array([1, 2, 3, 4]))
