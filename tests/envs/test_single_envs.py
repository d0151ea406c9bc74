"""The loop over single environments: what environments of all kinds do, and what the rows say."""

import gymnasium
import numpy as np
import pytest
from group import Group
from toys import LENGTHS, Ledger, Toy, spaces

from fastrl.envs import EnvOptions, describe, register_env
from fastrl.envs.seeding import env_seed
from fastrl.errors import ConfigError, UnsupportedEnvironment


@pytest.mark.parametrize(
    ("name", "limit"), [("CartPole-v1", None), ("CartPole-v1", 17), ("Pendulum-v1", 9)]
)
def test_rows_are_those_of_a_plain_gymnasium_loop(name, limit):
    """The same seeds and actions, played by a loop written from Gymnasium's own documentation."""
    steps, first, seed = 80, 3, 11
    options = EnvOptions(max_episode_steps=limit)
    group = Group(f"gym:{name}", options, num_envs=3, first=first, seed=seed)
    rows = group.play(steps)
    plain = {"max_episode_steps": limit} if limit else {}
    for e in range(3):
        env = gymnasium.make(name, **plain)
        obs, _ = env.reset(seed=env_seed(seed, first + e))
        np.testing.assert_array_equal(rows.obs[0, e], obs)
        over = False
        for t in range(steps):
            if over:
                (obs, _), reward, terminated, truncated = env.reset(), 0.0, False, False
            else:
                action = rows.action[t, e]
                if name == "Pendulum-v1":  # its bounds are -2 and 2
                    action = 2 * np.clip(action, -1, 1)
                obs, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            np.testing.assert_array_equal(rows.obs[t + 1, e], np.asarray(obs, np.float32))
            assert rows.reward[t, e] == np.float32(reward)
            assert rows.terminated[t, e] == terminated
            assert rows.truncated[t, e] == (truncated and not terminated)
            assert rows.episode_over[t, e] == over
        env.close()


def test_a_ledger_adds_up(toy):
    """Reward and observation name the action, the step and the episode they belong to."""
    rows = toy(Ledger, num_envs=8).play(200)
    episode, step, drawn = np.moveaxis(rows.obs, -1, 0)
    assert rows.terminated.any() and rows.truncated.any()
    assert not (rows.terminated & rows.truncated).any()
    np.testing.assert_array_equal(rows.episode_over, rows.done)
    for e in range(8):
        number, steps = 1, 0
        assert (episode[0, e], step[0, e]) == (1, 0)
        for t in range(200):
            if rows.resets[t, e]:
                number, steps = number + 1, 0
                assert rows.reward[t, e] == 0
            else:
                steps += 1
                assert rows.reward[t, e] == 10 * steps + 5 + rows.action[t, e]
                assert drawn[t + 1, e] == drawn[t, e]
            # After a done row this is the final observation, though the array is used again.
            assert (episode[t + 1, e], step[t + 1, e]) == (number, steps)
            if rows.done[t, e]:
                assert LENGTHS[0] <= steps < LENGTHS[1]


def test_an_end_of_both_kinds_is_stored_as_terminated(toy):
    class Both(Toy):
        def step(self, action):
            return self.look(), 1.0, action != 1, action != 0, {}

    group = toy(Both, num_envs=3)
    group.reset()
    out = group.step([0, 1, 2])
    assert out.terminated.tolist() == [True, False, True]
    assert out.truncated.tolist() == [False, True, False]
    assert out.episode_over.all()
    out = group.step([0, 1, 2])
    assert not (out.terminated | out.truncated | out.episode_over).any()
    assert not out.reward.any()


def test_a_discrete_action_is_a_python_number_counted_from_the_spaces_start(toy):
    class Typed(Toy):
        action_space = spaces.Discrete(3, start=-1)

        def step(self, action):
            assert type(action) is int
            return self.look(), action, False, False, {}

    group = toy(Typed, num_envs=3)
    group.reset()
    assert group.step([0, 1, 2]).reward.tolist() == [-1, 0, 1]


def test_each_environment_is_seeded_once_and_only_reset_after_an_end(toy):
    calls = []

    class Noted(Toy):
        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.name = seed
            calls.append((self.name, "reset", seed))
            return self.look(), {}

        def step(self, action):
            calls.append((self.name, "step", action))
            return self.look(), 0.0, action == 2, False, {}

    group = toy(Noted, num_envs=2, first=6, seed=3)
    a, b = env_seed(3, 6), env_seed(3, 7)
    group.reset()
    for action in ([2, 0], [1, 2], [0, 1]):
        group.step(action)
    group.reset()
    assert calls == [
        (a, "reset", a), (b, "reset", b),
        (a, "step", 2), (b, "step", 0),
        (a, "reset", None), (b, "step", 2),
        (a, "step", 0), (b, "reset", None),
        (a, "reset", None), (b, "reset", None),
    ]  # fmt: skip


def test_the_action_space_of_an_environment_is_seeded_too(toy):
    class Drawing(Toy):
        def __init__(self):
            self.action_space = spaces.Discrete(1000)

        def step(self, action):
            return self.look(), float(self.action_space.sample()), False, False, {}

    def rewards(first):
        return toy(Drawing, num_envs=2, first=first).play(20).reward

    np.testing.assert_array_equal(rewards(0), rewards(0))
    np.testing.assert_array_equal(rewards(0)[:, 1], rewards(1)[:, 0])
    assert (rewards(0)[:, 0] != rewards(0)[:, 1]).any()


def test_an_environment_may_change_and_keep_its_action(toy):
    class Greedy(Toy):
        action_space = spaces.Box(-2, 2, (3,), np.float64)
        kept = None

        def step(self, action):
            assert action.shape == (3,) and action.dtype == np.float64
            assert self.action_space.contains(action)
            before, self.kept = self.kept, action
            if before is not None:
                assert (before == -99).all(), "somebody wrote to the action of the last step"
            seen = action.astype(np.float32)
            action[:] = -99
            return seen, 0.0, False, False, {}

    group = toy(Greedy, num_envs=3)
    group.reset()
    for t in range(5):
        stored = (t + 7 * np.arange(9, dtype=np.float32).reshape(3, 3)) / 10 - 3
        before = stored.copy()
        group.env.step({"action": stored}, group.out)
        np.testing.assert_array_equal(stored, before)
        np.testing.assert_array_equal(group.obs, 2 * np.clip(stored, -1, 1))


@pytest.mark.parametrize(
    ("space", "given", "stored"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), np.array([0.1, 0.2]), np.float32([0.1, 0.2])),
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], np.float32([0.5, 1])),
        (spaces.Box(-9, 9, (2,), np.int64), np.array([7, -7]), np.int32([7, -7])),
        (spaces.Box(0, 9, (2,), np.uint8), np.array([7, 8]), np.uint8([7, 8])),
        (spaces.Box(0, 9, (2,), np.float32), np.array([True, False]), np.float32([1, 0])),
        (spaces.Discrete(7), np.int64(6), np.int32(6)),
        (spaces.Discrete(7), 6, np.int32(6)),
        (
            spaces.Box(0, 255, (6, 5, 3), np.uint8),
            np.arange(90, dtype=np.uint8).reshape(6, 5, 3),
            np.arange(90, dtype=np.uint8).reshape(6, 5, 3).transpose(2, 0, 1),
        ),
        (
            spaces.Box(0, 255, (4, 6, 5), np.uint8),
            np.arange(120, dtype=np.uint8).reshape(4, 6, 5),
            np.arange(120, dtype=np.uint8).reshape(4, 6, 5),
        ),
    ],
)
def test_observations_are_stored_in_their_own_form(toy, space, given, stored):
    class Seen(Toy):
        observation_space = space

        def look(self):
            return given

    group = toy(Seen, num_envs=2)
    group.reset()
    first = group.obs.copy()
    group.step([0, 0])
    for rows in (first, group.obs):
        assert rows.dtype == stored.dtype
        np.testing.assert_array_equal(rows, np.stack([stored, stored]))


@pytest.mark.parametrize(
    ("space", "given", "words"),
    [
        (Toy.observation_space, np.zeros(1), r"of shape \(1,\) and type float64, .* says \(3,\)"),
        (Toy.observation_space, 0.0, r"of shape \(\) and type float64"),
        (Toy.observation_space, np.zeros((1, 3)), r"of shape \(1, 3\)"),
        (Toy.observation_space, {"a": 1}, r"of shape \(\) and type object"),
        (Toy.observation_space, None, r"of shape \(\) and type object"),
        (spaces.Discrete(5), np.array([3]), r"of shape \(1,\) .* says \(\) and int64"),
        (spaces.Box(0, 255, (3,), np.uint8), np.full(3, 0.5), "type float64, .* and uint8"),
        (spaces.Box(0, 255, (6, 5, 3), np.uint8), np.zeros((3, 6, 5)), r"says \(6, 5, 3\)"),
    ],
)
@pytest.mark.parametrize("wrong_from", [0, 1])
def test_observations_that_are_not_the_spaces_are_refused(toy, space, given, words, wrong_from):
    class Wrong(Toy):
        observation_space = space
        looks = 0

        def look(self):
            self.looks += 1
            return given if self.looks > wrong_from else np.zeros(space.shape, space.dtype)

    with pytest.raises(UnsupportedEnvironment, match=r"py:toy cannot be used: .*" + words):
        group = toy(Wrong)
        assert wrong_from == 1, "it could have been refused as it was made"
        group.reset()
        group.step([0] * 4)


class OldStep(Toy):
    def step(self, action):
        return self.look(), 0.0, False, {}


class OldReset(Toy):
    def reset(self):
        return self.look()


class OldResetOfTwo(Toy):
    observation_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        return self.look()  # it unpacks into two values


class ManyFromReset(Toy):
    def reset(self, *, seed=None, options=None):
        return self.look(), {}, {}


@pytest.mark.parametrize("options", [EnvOptions(), EnvOptions(max_episode_steps=9)])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OldStep, "its step() does not return Gymnasium's five values"),
        (OldReset, "its reset() takes no seed and options; write it as Gymnasium's reset(self,"),
        (OldResetOfTwo, "its reset() returned one ndarray, and Gymnasium's returns the pair"),
        (ManyFromReset, "its reset() returned 3 values, and Gymnasium's returns two"),
    ],
)
def test_environments_of_the_old_gym_are_told_what_to_change(toy, kind, words, options):
    with pytest.raises(UnsupportedEnvironment) as caught:
        group = toy(kind, options)
        group.reset()
        group.step([0] * 4)
    assert f"py:toy cannot be used: {words}" in str(caught.value)


class Trouble(Exception):
    pass


def test_what_an_environment_raises_passes_with_a_note_that_names_it(toy):
    class Fails(Toy):
        def step(self, action):
            if action == 2:
                raise Trouble("the motor is stuck")
            return self.look(), 0.0, action == 1, False, {}

        def reset(self, *, seed=None, options=None):
            if seed is None:
                raise ValueError("not enough values to unpack (expected 5, got 4)")
            return self.look(), {}

    group = toy(Fails, first=8, seed=5)
    group.reset()
    with pytest.raises(Trouble) as caught:
        group.step([0, 0, 2, 0])
    assert str(caught.value) == "the motor is stuck"
    (note,) = caught.value.__notes__
    assert note.startswith(f"py:toy raised Trouble: the motor is stuck ({__file__}, line ")
    assert note.endswith(f") in step 1 of environment 10, first seeded {env_seed(5, 10)}.")
    # Its own words, though they sound like those of a step of four values.
    group = toy(Fails)
    group.reset()
    group.step([1, 0, 0, 0])
    with pytest.raises(ValueError, match="expected 5, got 4") as caught:
        group.step([0, 0, 0, 0])
    assert not isinstance(caught.value, ConfigError)


def test_one_that_cannot_begin_is_refused_when_it_is_made(toy):
    """So before anything else starts; and the others of its group are closed."""
    closed = []

    class Stuck(Toy):
        def reset(self, *, seed=None, options=None):
            raise Trouble("no map\nhere.")

        def close(self):
            closed.append(self)

    with pytest.raises(ConfigError) as caught:
        toy(Stuck, first=8, seed=5)
    text = str(caught.value)
    assert text.startswith(f"py:toy raised Trouble: no map here ({__file__}, line ")
    assert text.endswith(f") in reset() of environment 8, first seeded {env_seed(5, 8)}.")
    assert isinstance(caught.value.__cause__, Trouble)
    assert len(closed) == 4


def test_a_reward_must_be_a_number(toy):
    class Unpaid(Toy):
        def step(self, action):
            return self.look(), None, False, False, {}

    group = toy(Unpaid, first=8, seed=5)
    group.reset()
    with pytest.raises(UnsupportedEnvironment) as caught:
        group.step([0] * 4)
    assert str(caught.value) == (
        "py:toy cannot be used: its step() returned the reward None, but a reward is one number. "
        f"(It was in step 1 of environment 8, first seeded {env_seed(5, 8)}.)"
    )


def test_a_reward_may_be_nan_or_a_numpy_number(toy):
    values = [np.float64(0.5), float("nan"), np.array(2), True]

    class Paid(Toy):
        def step(self, action):
            return self.look(), values.pop(0), np.bool_(False), 0, {}

    group = toy(Paid)
    group.reset()
    np.testing.assert_array_equal(group.step([0] * 4).reward, np.float32([0.5, np.nan, 2, 1]))


def counting(fails_at=None, close_fails=False):
    """A class whose environment number `fails_at` cannot be constructed, and its closed ones."""
    made, closed = [], []

    class Counted(Toy):
        def __init__(self):
            self.number = len(made)
            if self.number == fails_at:
                raise Trouble("no licence\n left.")
            made.append(self)

        def close(self):
            closed.append(self.number)
            if close_fails and self.number == 1:
                raise Trouble("cannot close")

    return Counted, made, closed


def test_every_environment_is_closed_exactly_once(toy):
    kind, made, closed = counting()
    group = toy(kind, EnvOptions(max_episode_steps=3))
    group.reset()
    assert (len(made), closed) == (4, [])
    group.env.close()
    assert sorted(closed) == [0, 1, 2, 3]
    group.env.close()
    assert len(closed) == 4
    with pytest.raises(RuntimeError, match="py:toy is closed; make a new one"):
        group.reset()


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(toy):
    kind, _, closed = counting(close_fails=True)
    group = toy(kind)
    with pytest.raises(Trouble):
        group.env.close()
    group.env.close()
    assert sorted(closed) == [0, 1, 2, 3]


def test_those_before_one_that_cannot_be_constructed_are_closed(toy):
    kind, made, closed = counting(fails_at=2)
    with pytest.raises(ConfigError) as caught:
        toy(kind)
    assert (len(made), sorted(closed)) == (2, [0, 1])
    assert isinstance(caught.value.__cause__, Trouble)
    assert "py:toy could not be constructed: Trouble: no licence left (" in str(caught.value)
    assert __file__ in str(caught.value)


def test_one_environment_given_twice_is_refused(toy):
    shared = Ledger()
    for options in (EnvOptions(), EnvOptions(max_episode_steps=3)):
        with pytest.raises(UnsupportedEnvironment, match="gave the same environment twice"):
            toy(lambda: shared, options)


def test_environments_of_different_spaces_are_refused_and_closed(toy):
    kind, made, closed = counting()

    def grows():
        env = kind()
        env.observation_space = spaces.Box(-1, 1, (len(made) // 2 + 3,))
        return env

    with pytest.raises(UnsupportedEnvironment, match="its environments differ in their spaces"):
        toy(grows)
    assert sorted(closed) == [0, 1, 2, 3]


def test_an_environment_without_its_spaces_is_refused(toy):
    class Bare(gymnasium.Env):
        pass

    with pytest.raises(ConfigError, match=r"constructed: AttributeError: .*observation_space"):
        toy(Bare)


def test_the_limit_of_the_option_truncates(toy):
    rows = toy(Toy, EnvOptions(max_episode_steps=4)).play(12)
    np.testing.assert_array_equal(np.flatnonzero(rows.truncated[:, 0]), [3, 8])
    assert not rows.terminated.any()


def test_what_one_environment_draws_from_its_spaces_moves_no_other(monkeypatch):
    class Draws(Toy):
        """Shows what it draws from the spaces that its class has."""

        action_space = gymnasium.spaces.Discrete(1000)
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

        def look(self):
            drawn = self.observation_space.sample()
            drawn[0] = self.action_space.sample() / 1000
            return drawn

    register_env("draws", Draws)
    together = Group("py:draws", num_envs=3).play(8).obs
    for i in range(3):
        alone = Group("py:draws", num_envs=1, first=i).play(8).obs
        np.testing.assert_array_equal(alone[:, 0], together[:, i])
    assert (together[:, 0] != together[:, 1]).any()


class SharesItsArray(Toy):
    """All environments of the class write their observations to one array."""

    row = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.np_random.uniform()
        return self.look(), {}

    def look(self):
        self.row[:] = getattr(self, "number", -1)
        return self.row


def test_a_first_row_is_not_what_another_group_has_written_since():
    register_env("shared", SharesItsArray)
    whole = Group("py:shared", num_envs=4)
    parts = [Group("py:shared", num_envs=2, first=first) for first in (0, 2)]
    for group in (whole, *parts):
        group.reset()
    np.testing.assert_array_equal(whole.obs, np.concatenate([part.obs for part in parts]))


class AsksForProgress(Toy):
    """It cannot begin before it is told the progress, and counts its episodes."""

    episodes = 0

    def set_training_progress(self, steps, total_steps):
        self.progress = steps / total_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        return self.look(), {}

    def look(self):
        return np.array([self.progress, self.episodes, 0], np.float32)


def test_progress_comes_before_the_first_reset_which_is_the_first():
    register_env("asks", AsksForProgress)
    group = Group("py:asks", num_envs=3)
    group.env.set_progress(1, 4)
    group.reset()
    np.testing.assert_array_equal(group.obs[:, :2], [[0.25, 1]] * 3)


@pytest.mark.parametrize("flag", ["False", {"cut": False}, np.zeros(1, bool), np.nan, None, 2])
def test_a_flag_is_true_or_false(flag):
    class Flagged(Toy):
        def step(self, action):
            return self.look(), 0.0, flag, False, {}

    register_env("flagged", Flagged)
    group = Group("py:flagged")
    group.reset()
    with pytest.raises(
        UnsupportedEnvironment, match=r"returned terminated = .* \(It was in step 1"
    ):
        group.step(np.zeros(4, int))


@pytest.mark.parametrize("flag", [np.True_, 1, np.array(True), 1.0])
def test_a_flag_may_be_another_type(flag):
    class Flagged(Toy):
        def step(self, action):
            return self.look(), np.float64(2), False, flag, None

    register_env("flagged", Flagged)
    group = Group("py:flagged", EnvOptions(log_info=("x",)))
    group.reset()
    out = group.step(np.zeros(4, int))
    assert out.truncated.all() and not out.terminated.any() and (out.reward == 2).all()


@pytest.mark.parametrize("reward", ["1.5", None, [1.0], np.zeros((1, 1)), 1j])
def test_a_reward_is_one_real_number(reward):
    class Paid(Toy):
        def step(self, action):
            return self.look(), reward, False, False, {}

    register_env("paid", Paid)
    group = Group("py:paid")
    group.reset()
    with pytest.raises(UnsupportedEnvironment, match=r"returned the reward .* \(It was in step 1"):
        group.step(np.zeros(4, int))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, -1])),
        (spaces.Box(0, 255, (5, 5, 3), np.uint8), np.full((5, 5, 3), 300)),
        (spaces.MultiBinary(2), np.array([5, 300])),
        (spaces.Box(0, 1000, (2,), np.int64), np.array([2**40, 0])),
    ],
)
def test_integers_that_would_wrap_around_are_refused(space, value):
    class Wide(Toy):
        observation_space = space

        def look(self):
            return value

    register_env("wide", Wide)
    with pytest.raises(UnsupportedEnvironment, match=r"its observation holds .* more than u?int"):
        describe("py:wide", EnvOptions())


@pytest.mark.parametrize("number", [np.int8(100), np.uint8(1), 100])
def test_a_discrete_observation_may_be_of_a_narrow_type(number):
    class Narrow(Toy):
        observation_space = spaces.Discrete(201, start=-100)

        def look(self):
            return number

    register_env("narrow", Narrow)
    group = Group("py:narrow", num_envs=1)
    group.reset()
    assert group.obs[0] == int(number) + 100


def test_masks_and_action_repeat_do_not_go_together():
    for env_id in ("gym:Taxi-v4", "envpool:Game2048-v1"):
        with pytest.raises(ConfigError, match="has action masks, which --action-repeat 2 would"):
            describe(env_id, EnvOptions(action_repeat=2))
        describe(env_id, EnvOptions(action_repeat=2, action_mask="off"))
