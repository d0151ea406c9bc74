"""What every adapter promises (fastrl/envs/vector_env.py), for one id of each kind."""

import pickle

import numpy as np
import pytest
from group import Group, assert_same
from toys import LENGTHS

from fastrl.envs import EnvOptions, describe
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.envs.spec import sample_actions

PLAIN = EnvOptions()
SHORT = EnvOptions(max_episode_steps=17)
VECTOR = EnvOptions(vector_entry_point=True)
# name -> id and options under which 45 steps of 4 environments contain done rows.
CASES = {
    "atari:Pong": ("atari:Pong", SHORT),
    "atari:Breakout": ("atari:Breakout", PLAIN),
    "ale:pong": ("ale:pong", SHORT),
    "envpool:CartPole-v1": ("envpool:CartPole-v1", PLAIN),
    "envpool:CartPole-v1, repeated": ("envpool:CartPole-v1", EnvOptions(action_repeat=3)),
    "envpool:CartPole-v1, stacked": ("envpool:CartPole-v1", EnvOptions(frame_stack=2)),
    "envpool:Pendulum-v1": ("envpool:Pendulum-v1", SHORT),
    "envpool:MountainCar-v0": ("envpool:MountainCar-v0", SHORT),
    "envpool:Taxi-v3": ("envpool:Taxi-v3", SHORT),
    "envpool:LunarLander-v2": ("envpool:LunarLander-v2", SHORT),
    "envpool:HalfCheetah-v4": ("envpool:HalfCheetah-v4", SHORT),
    "envpool:MetaWorld/Reach-v3": ("envpool:MetaWorld/Reach-v3", SHORT),
    "envpool:ReacherEasy-v1": ("envpool:ReacherEasy-v1", SHORT),
    "envpool:MiniGrid-Empty-5x5-v0": ("envpool:MiniGrid-Empty-5x5-v0", SHORT),
    "envpool:TSP-v1": ("envpool:TSP-v1", PLAIN),
    "envpool:D1Basic-v1": ("envpool:D1Basic-v1", SHORT),
    "gym:CartPole-v1": ("gym:CartPole-v1", PLAIN),
    "gym:CartPole-v1, vector": ("gym:CartPole-v1", VECTOR),
    "gym:Pendulum-v1": ("gym:Pendulum-v1", SHORT),
    "gym:Taxi-v4": ("gym:Taxi-v4", SHORT),
    "gym:Blackjack-v1": ("gym:Blackjack-v1", PLAIN),
    "gym:FrozenLake-v1": ("gym:FrozenLake-v1", SHORT),
    "gym:nested": ("gym:toys:toys/Nested-v0", PLAIN),
    "gym:nested, vector": ("gym:toys:toys/Nested-v0", VECTOR),
    "py:ledger": ("py:toys:Ledger", PLAIN),
    "py:ledger, vector": ("py:toys:ledgers", PLAIN),
    "py:ledger, repeated": ("py:toys:Ledger", EnvOptions(action_repeat=2)),
    "py:nested": ("py:toys:Nested", PLAIN),
    "py:nested, vector": ("py:toys:nesteds", PLAIN),
    "py:nested, stacked": ("py:toys:Nested", EnvOptions(frame_stack=3)),
    "py:nested, stacked, vector": ("py:toys:nesteds", EnvOptions(frame_stack=3)),
    "py:nested, squashed": ("py:toys:Nested", EnvOptions(action_bounds="squash")),
    "py:nested, wrapped": (
        "py:toys:Nested",
        EnvOptions(wrap=("py:gymnasium.wrappers:FlattenObservation",)),
    ),
    "py:masked": ("py:toys:Masked", PLAIN),
    "py:masked, vector": ("py:toys:maskeds", PLAIN),
    "py:masked, stacked": ("py:toys:Masked", EnvOptions(frame_stack=2)),
    "py:masked by info": ("py:toys:MaskedByInfo", PLAIN),
    "py:masked by info, vector": ("py:toys:maskeds_by_info", PLAIN),
    "py:masked turns": ("py:toys:MaskedTurns", EnvOptions(action_mask="allowed")),
    "py:reporter": ("py:toys:Reporter", EnvOptions(log_info=("score", "parts.half"))),
    "py:reporter, vector": ("py:toys:reporters", EnvOptions(log_info=("score", "parts.half"))),
}
# One generator for all, and all or none are stepped.
VECTORS = [case for case in CASES if case.endswith(", vector")]
# Construction, above all, is not quick.
SLOW = ("atari:", "ale:", "envpool:MetaWorld", "envpool:ReacherEasy", "envpool:D1Basic")
STEPS = 45


def each(*names):
    """Parametrise a test by these cases."""
    slow = pytest.mark.slow
    params = [pytest.param(name, marks=slow) if name.startswith(SLOW) else name for name in names]
    return pytest.mark.parametrize("case", params)


def group_of(case, **keywords):
    env_id, options = CASES[case]
    return Group(env_id, options, **keywords)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # VizDoom writes a file into the current one


@pytest.fixture(scope="module")
def groups():
    """One group of every case, and the rows that it played first."""
    made = {}

    def get(case):
        if case not in made:
            group = group_of(case)
            made[case] = group, group.play(STEPS)
        return made[case]

    return get


@pytest.fixture
def played(groups):
    """The first rows of a case."""
    return lambda case: groups(case)[1]


@pytest.fixture
def used(groups):
    """A group of a case that has been played with."""
    return lambda case: groups(case)[0]


def again(actions):
    """For `Group.play`: the actions `[N, E, *shape]` by leaf."""
    return lambda t, obs: {key: array[t] for key, array in actions.items()}


CARTPOLE = ((4,), "float32", "vector", "discrete", (), "int32")
LEDGER = ((3,), "float32", "vector", "discrete", (), "int32")
SPECS = {
    "atari:Pong": ((4, 84, 84), "uint8", "image", "discrete", (), "int32"),
    "ale:pong": ((4, 84, 84), "uint8", "image", "discrete", (), "int32"),
    "envpool:CartPole-v1": CARTPOLE,
    "envpool:CartPole-v1, stacked": ((2, 4), "float32", "vector", "discrete", (), "int32"),
    "envpool:Pendulum-v1": ((3,), "float32", "vector", "continuous", (1,), "float32"),
    "envpool:MountainCar-v0": ((2,), "float32", "vector", "discrete", (), "int32"),
    "envpool:Taxi-v3": ((), "int32", "discrete", "discrete", (), "int32"),
    "envpool:HalfCheetah-v4": ((17,), "float32", "vector", "continuous", (6,), "float32"),
    "envpool:MetaWorld/Reach-v3": ((39,), "float32", "vector", "continuous", (4,), "float32"),
    "gym:CartPole-v1": CARTPOLE,
    "gym:CartPole-v1, vector": CARTPOLE,
    "gym:Pendulum-v1": ((3,), "float32", "vector", "continuous", (1,), "float32"),
    "gym:Taxi-v4": ((), "int32", "discrete", "discrete", (), "int32"),
    "gym:FrozenLake-v1": ((), "int32", "discrete", "discrete", (), "int32"),
    "py:ledger": LEDGER,
    "py:ledger, vector": LEDGER,
    "py:masked": LEDGER,
    "py:masked, stacked": ((2, 3), "float32", "vector", "discrete", (), "int32"),
}


@each(*SPECS)
def test_the_spec_says_what_is_stored(case):
    spec = describe(*CASES[case])
    (obs,), (action,) = spec.observation.values(), spec.action.values()
    stored = (obs.shape, obs.dtype, obs.kind, action.kind, action.shape, action.dtype)
    assert stored == SPECS[case]


@each(*CASES)
def test_the_spec_is_that_of_a_group_and_travels(case, used):
    spec = describe(*CASES[case])
    assert spec == used(case).spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.one_generator == (case in VECTORS)


@each(*CASES)
def test_all_that_is_given_is_finite(case, played):
    rows = played(case)
    assert np.isfinite(rows.reward).all()
    for obs in rows.observations.values():
        assert np.isfinite(obs).all()


@each(*CASES)
def test_the_row_after_a_done_row_only_resets(case, played):
    rows = played(case)
    resets = rows.resets
    assert resets.any()
    assert not rows.reward[resets].any()
    assert not rows.done[resets].any()
    assert not (rows.terminated & rows.truncated).any()
    assert not (rows.episode_over & ~rows.done & ~resets).any()


@each(*CASES)
def test_the_action_of_a_reset_row_has_no_effect(case, played):
    rows = played(case)
    group = group_of(case)
    plan = {}
    for key, leaf in group.spec.action.items():
        taken = rows.actions[key]
        sizes = {"discrete": leaf.n, "multi_discrete": leaf.nvec, "multi_binary": 2}
        turned = 1 - taken if leaf.kind == "continuous" else (taken + 1) % sizes[leaf.kind]
        plan[key] = np.where(rows.resets.reshape(STEPS, 4, *[1] * len(leaf.shape)), turned, taken)
    assert_same(rows, group.play(STEPS, again(plan)))


@each(*CASES)
def test_something_is_allowed_in_every_row_and_everything_in_a_done_one(case, groups):
    group, rows = groups(case)
    assert rows.masks.keys() == {key for key, leaf in group.spec.action.items() if leaf.masked}
    for key, mask in rows.masks.items():
        assert mask[1:][rows.done].all()
        assert not mask.all()
        sizes = group.spec.action[key].nvec or (group.spec.action[key].n,)
        for part in np.split(mask, np.cumsum(sizes)[:-1], axis=-1):
            assert part.any(-1).all()


@each(*CASES)
def test_what_is_to_be_logged_is_given_where_an_episode_is_over(case, played):
    rows = played(case)
    if rows.info.shape[2]:
        np.testing.assert_array_equal(np.isfinite(rows.info).all(-1), rows.episode_over)
        np.testing.assert_array_equal(np.isnan(rows.info).all(-1), ~rows.episode_over)


@each(*CASES)
def test_equal_seeds_and_actions_give_equal_rows_however_they_are_spread(case, played):
    """Over groups, and whatever was in the arrays that they are written to."""
    whole = played(case)
    for first, size in [(0, 4)] if case in VECTORS else [(0, 1), (1, 3)]:
        own = slice(first, first + size)
        part = group_of(case, num_envs=size, first=first, fill=33)
        actions = {key: array[:, own] for key, array in whole.actions.items()}
        assert_same(whole, part.play(STEPS, again(actions)), own)


@pytest.mark.parametrize("case", ["gym:CartPole-v1", "envpool:CartPole-v1", "py:masked by info"])
@pytest.mark.slow
def test_groups_of_all_sizes_have_the_same_rows(case):
    group, rng = group_of(case, num_envs=1024), np.random.default_rng(0)
    whole = group.play(12, lambda t, obs: group.draw(rng))
    first = 0
    for size in (1, 2, 255, 256, 257):
        own = slice(first, first + size)
        part = group_of(case, num_envs=size, first=first)
        actions = {key: array[:, own] for key, array in whole.actions.items()}
        assert_same(whole, part.play(12, again(actions)), own)
        first += size


# Not of vectors, which play none; nor where a stack does not go back into the stagger; nor of ale:,
# whose environments are all stepped together; nor of games of which another takes less time.
WITHOUT = (*VECTORS, "ale:pong", "atari:Pong", "envpool:D1Basic-v1")


@each(*(case for case in CASES if case not in WITHOUT and ", stacked" not in case))
def test_stagger_equals_the_same_actions_played_by_hand(case):
    steps = np.array([0, 1, 18, 25])
    group = group_of(case, seed=5)
    returns, lengths = group.reset(steps, [env_rng(3, i) for i in range(4)])
    assert returns.dtype == np.float64 and lengths.dtype == np.int64
    now = {**group.out.obs, **group.out.action_mask}
    action = group.draw(group.rngs())
    then = group.step(action)

    for i, count in enumerate(steps):
        alone = group_of(case, num_envs=1, first=i, seed=5)
        alone.reset()
        rng = env_rng(3, i)
        leaves = alone.spec.action.items()
        if not alone.spec.masks:  # then all are drawn at once
            plan = {key: sample_actions(leaf, int(count), rng) for key, leaf in leaves}
        total, length, played, done = 0.0, 0, 0, False
        while played < count or done:
            if done:
                out = alone.step({key: np.zeros((1, *leaf.shape)) for key, leaf in leaves})
            else:
                masked = bool(alone.spec.masks)
                row = [played]
                out = alone.step(alone.draw([rng]) if masked else {k: plan[k][row] for k in plan})
                played += 1
                length += 1
                total += float(out.reward[0])
            if out.episode_over[0]:
                total, length = 0.0, 0
            done = bool(out.terminated[0] | out.truncated[0])
        assert (returns[i], lengths[i]) == (total, length)
        for key, array in {**alone.out.obs, **alone.out.action_mask}.items():
            np.testing.assert_array_equal(now[key][i], array[0])
        # The running episodes go on alike: the stagger left no reset pending.
        out = alone.step({key: value[[i]] for key, value in action.items()})
        for key, array in {**out.obs, **out.action_mask}.items():
            np.testing.assert_array_equal({**then.obs, **then.action_mask}[key][i], array[0])
        assert then.reward[i] == out.reward[0]


@each(*CASES)
def test_a_second_reset_starts_new_episodes_even_in_the_middle(case, used):
    group = used(case)
    rngs = group.rngs()
    group.reset()
    out = group.step(group.draw(rngs))
    for _ in range(19):  # until one has just ended
        if (out.terminated | out.truncated).any():
            break
        out = group.step(group.draw(rngs))
    returns, lengths = group.reset()
    assert not returns.any() and not lengths.any()
    # The next step is the first of an episode, and not the reset after the one that ended.
    before = {key: array.copy() for key, array in group.out.obs.items()}
    out = group.step(group.draw(rngs))
    moved = out.terminated | (out.reward != 0)
    for key, array in out.obs.items():
        moved |= (array != before[key]).reshape(4, -1).any(1)
    if case.startswith("py:") or "CartPole" in case:  # they pay for every step
        assert (out.reward != 0).all()
    limit = CASES[case][1].max_episode_steps
    if limit is None:
        assert moved.all()
        return
    ended = out.terminated.copy()
    for t in range(1, limit):
        out = group.step(group.draw(rngs))
        ended |= out.terminated
        assert t == limit - 1 or not (out.truncated & ~ended).any()
    assert (out.truncated | ended).all()


@each(*CASES)
def test_close_twice_then_step(case):
    group = group_of(case, num_envs=1)
    group.reset()
    action = group.draw(group.rngs())
    group.env.close()
    group.env.close()
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        group.step(action)
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        group.reset()


def test_no_two_environments_of_a_run_share_a_seed():
    seeds = [env_seed(7, i) for i in range(30_000)]
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
        "gym:CartPole-v1, vector",
        "py:ledger, vector",
    ],
)
def test_environments_begin_differently_and_runs_too(case):
    first = group_of(case, num_envs=8, seed=1)
    second = group_of(case, num_envs=8, seed=2)
    first.reset()
    second.reset()
    assert len(np.unique(np.concatenate([first.obs, second.obs]), axis=0)) == 16


@each(*CASES)
def test_a_wrong_action_shape_is_refused(case, used):
    group = used(case)
    group.reset()
    action = group.draw(group.rngs())
    for key, right in action.items():
        for wrong in (right[:3], right[..., None], right[0]):
            with pytest.raises(ValueError) as caught:
                group.step({**action, key: wrong})
            assert f"The actions have shape {wrong.shape}, but 4 environments of" in str(
                caught.value
            )
            assert f"{CASES[case][0]} take {right.shape}." in str(caught.value)


@each(*(case for case in CASES if case not in VECTORS))
def test_a_wrong_stagger_is_refused(case, used):
    group = used(case)
    for steps, count in (([1, 2], 2), ([1, 2, 3, -1], 4), ([1, 2, 3, 4], 3)):
        with pytest.raises(ValueError, match=r"stagger"):
            group.reset(np.array(steps), [env_rng(0, i) for i in range(count)])
    with pytest.raises(ValueError, match="4 stagger_steps and 0 rngs"):
        group.reset(np.array([1, 2, 3, 4]))


def assert_counts(rows, options):
    """Every row of a Nested names the action, the step and the episode it belongs to."""
    obs = rows.observations
    if options.frame_stack:  # the newest; images are joined along their channels
        obs = {key: array[:, :, -1] for key, array in obs.items() if key != "camera"}
        obs["camera"] = rows.observations["camera"][:, :, -3:]
    episode, step, drawn = np.moveaxis(obs["state"], -1, 0)
    valid = ~rows.resets

    # Only a done environment resets, and at once; the final observation is of the same episode.
    assert (episode[0] == 1).all() and (step[0] == 0).all()
    np.testing.assert_array_equal(episode[1:], episode[:-1] + rows.resets)
    np.testing.assert_array_equal(step[1:], np.where(valid, step[:-1] + 1, 0))
    np.testing.assert_array_equal(drawn[1:] == drawn[:-1], valid)
    ended = step[1:][rows.done]
    assert (LENGTHS[0] <= ended).all() and (ended < LENGTHS[1]).all()
    np.testing.assert_array_equal(rows.episode_over, rows.done)

    step = step.astype(int)
    np.testing.assert_array_equal(obs["clock/0"], step)
    np.testing.assert_array_equal(obs["clock/1"], np.stack([step, step % 2], -1))
    bits = np.stack([step >> k & 1 for k in range(4)], -1)
    np.testing.assert_array_equal(obs["clock/2/bits"], bits)
    image = np.zeros((*step.shape, 3, 6, 5), np.uint8)
    image[:, :, 1] = step[:, :, None, None]
    np.testing.assert_array_equal(obs["camera"], image)

    force = rows.actions["force"][..., 0].astype(np.float64)
    unit = np.tanh(force) if options.action_bounds == "squash" else np.clip(force, -1, 1)
    expected = np.where(valid, 2 + 4 * unit, 0).astype(np.float32)
    np.testing.assert_array_equal(obs["e~1cho"][1:], expected)
    digits = [rows.actions["move"][..., None], rows.actions["grip/0"], rows.actions["grip/1"]]
    digits = np.concatenate([*digits, rows.actions["level"]], -1)
    code = 0
    for k, base in enumerate((3, 2, 3, 2, 2, 2, 4, 4)):
        code = code * base + digits[..., k]
    np.testing.assert_array_equal(rows.reward, np.where(valid, 4096 * step[1:] + code, 0))


COUNTING = [case for case in CASES if ":nested" in case and "wrapped" not in case]


@pytest.mark.parametrize("case", COUNTING)
def test_action_reward_flags_and_observation_of_a_row_belong_together(case, played):
    assert_counts(played(case), CASES[case][1])


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1024])
@pytest.mark.parametrize("case", ["py:nested, vector"])
@pytest.mark.slow
def test_vectors_of_all_sizes_count(case, size):
    group, rng = group_of(case, num_envs=size), np.random.default_rng(0)
    assert_counts(group.play(12, lambda t, obs: group.draw(rng)), CASES[case][1])
