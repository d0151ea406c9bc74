"""What a user puts around an environment: wrappers, arguments, progress, a repeated action."""

import gymnasium
import numpy as np
import pytest
from group import Group, assert_same
from toys import Curriculum, Ledger, Nested, Toy, spaces

from fastrl.envs import EnvOptions, describe
from fastrl.envs.wrapping import progress_teller
from fastrl.errors import ConfigError, UnsupportedEnvironment

WRAPPERS = """
import gymnasium
import numpy as np

def doubled(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward)

def plus_one(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward + 1)

def doubled_vector(env):
    return gymnasium.wrappers.vector.TransformReward(env, lambda reward: 2 * reward)

def nothing(env):
    pass

def fails(env):
    raise OSError("no display")

LIMIT = 3

class Inner:
    halved = staticmethod(doubled)
"""


@pytest.fixture
def wrappers(folder):
    (folder / "wrap.py").write_text(WRAPPERS)
    return lambda *names: EnvOptions(wrap=tuple(f"py:wrap:{name}" for name in names))


def test_the_first_wrapper_is_the_innermost(toy, wrappers):
    plain = toy(Ledger).play(20)
    played = [
        toy(Ledger, wrappers(*names)).play(20)
        for names in (["doubled", "plus_one"], ["plus_one", "doubled"], ["Inner.halved"])
    ]
    valid = ~plain.resets
    for rows, reward in zip(
        played,
        (2 * plain.reward + 1, 2 * (plain.reward + 1), 2 * plain.reward),
        strict=True,
    ):
        np.testing.assert_array_equal(rows.reward, np.where(valid, reward, 0))
        np.testing.assert_array_equal(rows.obs, plain.obs)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("gym:CartPole-v1", {}),
        ("gym:CartPole-v1", {"vector_entry_point": True}),
        ("py:toys:ledgers", {}),
    ],
)
def test_every_kind_is_wrapped(wrappers, env_id, options):
    vector = options or env_id == "py:toys:ledgers"
    wrap = wrappers("doubled_vector" if vector else "doubled").wrap
    plain = Group(env_id, EnvOptions(**options)).play(20)
    rows = Group(env_id, EnvOptions(wrap=wrap, **options)).play(20)
    np.testing.assert_array_equal(rows.reward, 2 * plain.reward)


def test_a_wrapper_may_change_the_spaces(toy):
    options = EnvOptions(wrap=("py:gymnasium.wrappers:FlattenObservation",))
    rows = toy(Nested, options).play(20)
    assert rows.obs.shape[2:] == (3 + 6 * 5 * 3 + 20 + 22 + 4 + 1,)
    assert rows.resets.any()


def test_a_wrapper_is_outside_of_the_limit(toy, wrappers):
    """So one that counts or repeats steps does so in the episode as it is cut."""
    options = EnvOptions(
        max_episode_steps=4, wrap=("py:gymnasium.wrappers:RecordEpisodeStatistics",),
        log_info=("episode.l",),
    )  # fmt: skip
    rows = toy(Toy, options).play(9)
    assert rows.truncated[[3, 8]].all()
    assert (rows.info[[3, 8]] == 4).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("py:wrap:nothing", "cannot be used: it returned a NoneType, and not a gymnasium Env."),
        ("py:wrap:fails", "could not wrap <"),
        ("py:wrap:fails", "OSError: no display ("),
        ("py:wrap:LIMIT", "is a int; it must be a function that takes an environment and"),
        ("py:wrap:doubles", "There is no 'doubles' in wrap ("),
        ("py:warp:doubled", "There is no module warp (of 'py:warp:doubled')"),
    ],
)
def test_what_cannot_wrap_is_told(toy, wrappers, name, words):
    wrappers()
    with pytest.raises(ConfigError) as caught:
        toy(Toy, EnvOptions(wrap=(name,)))
    text = str(caught.value)
    assert words in text and name in text and "\n" not in text


def test_those_before_one_that_cannot_be_wrapped_are_closed(toy, wrappers):
    closed = []

    class Noted(Toy):
        def close(self):
            closed.append(self)

    made = []

    def factory():
        made.append(Noted())
        return made[-1]

    with pytest.raises(UnsupportedEnvironment):
        toy(factory, wrappers("nothing"))
    assert closed == made


def test_a_vector_that_is_wrapped_into_something_else_is_closed(toy, wrappers):
    closed = []

    class Noted(Toy):
        def close(self):
            closed.append(self)

    with pytest.raises(UnsupportedEnvironment, match="not a gymnasium VectorEnv"):
        toy(
            lambda num_envs: gymnasium.vector.SyncVectorEnv([Noted] * num_envs), wrappers("nothing")
        )
    assert len(closed) == 4


def test_arguments_reach_the_constructor(toy):
    seen = []

    class Given(Toy):
        def __init__(self, **arguments):
            seen.append(arguments)

    options = EnvOptions(env_args=("size=3", "name=big", "on=true", "sides=[1, 2]"))
    given = {"size": 3, "name": "big", "on": True, "sides": [1, 2]}
    toy(Given, options)
    assert seen == [given] * 4

    def vector(num_envs, **arguments):
        seen.append({**arguments, "num_envs": num_envs})
        return gymnasium.vector.SyncVectorEnv([Given] * num_envs)

    seen.clear()
    toy(vector, options)
    assert seen[0] == {**given, "num_envs": 4}
    assert Group("gym:Pendulum-v1", EnvOptions(env_args=("g=5.0",))).env is not None
    slippery = EnvOptions(env_args=("map_name=8x8",))
    assert describe("gym:FrozenLake-v1", slippery).observation["obs"].n == 64


@pytest.mark.parametrize("env_id", ["gym:CartPole-v1", "py:toys:Ledger", "py:toys:ledgers"])
def test_arguments_that_the_constructor_does_not_take_are_told(env_id):
    with pytest.raises(ConfigError) as caught:
        describe(env_id, EnvOptions(env_args=("sizes=3",)))
    text = str(caught.value)
    assert text.startswith(f"{env_id} could not be constructed: TypeError: ") and "sizes" in text


def test_a_repeated_action_is_taken_until_the_episode_ends(toy):
    rows = toy(Ledger, EnvOptions(action_repeat=3)).play(40)
    plain = toy(Ledger).play(3)
    np.testing.assert_array_equal(rows.obs[0], plain.obs[0])
    step = rows.obs[..., 1].astype(int)
    for e in range(4):
        for t in range(40):
            if rows.resets[t, e]:
                assert (step[t + 1, e], rows.reward[t, e]) == (0, 0)
                continue
            taken = range(step[t, e] + 1, step[t + 1, e] + 1)
            assert len(taken) == 3 or (rows.done[t, e] and 1 <= len(taken) <= 3)
            assert rows.reward[t, e] == sum(10 * k + 5 + rows.action[t, e] for k in taken)
    assert (step[1:][rows.done] % 3 != 0).any()
    assert toy(Ledger, EnvOptions(action_repeat=3)).spec.frame_skip == 3


def test_a_vector_repeats_no_action():
    with pytest.raises(ConfigError, match="does not use --action-repeat, which was set to 2"):
        describe("py:toys:ledgers", EnvOptions(action_repeat=2))
    with pytest.raises(ConfigError, match="does not use --action-repeat, which was set to 2"):
        describe("gym:CartPole-v1", EnvOptions(action_repeat=2, vector_entry_point=True))


# Progress.


def test_environments_are_told_how_far_training_is(toy):
    group = toy(Curriculum)
    group.env.set_progress(0, 200)
    group.reset()
    assert (group.obs[:, 2] == 0).all()
    group.env.set_progress(150, 200)
    first = group.obs[:, 0].copy()
    for _ in range(12):
        obs = group.step([0] * 4) and group.obs
        # From the next episode on.
        np.testing.assert_array_equal(obs[:, 2], np.where(obs[:, 0] == first, 0, 0.75))
    assert (obs[:, 0] > first).all()
    group.env.close()
    group.env.set_progress(200, 200)  # which nobody hears


def curricula(num_envs):
    class Vector(gymnasium.vector.SyncVectorEnv):
        def set_training_progress(self, steps, total_steps):
            for env in self.envs:
                env.set_training_progress(steps, total_steps)

    return Vector([Curriculum] * num_envs)


@pytest.mark.parametrize("factory", [Curriculum, curricula])
def test_the_very_first_episode_begins_after_it_is_told(toy, factory):
    """Although one was begun as the group was made, to see that it can be."""
    group = toy(factory)
    group.env.set_progress(50, 200)
    group.reset()
    assert (group.obs[:, 2] == 0.25).all()


class Told(Ledger):
    def set_training_progress(self, steps, total_steps):
        self.row[0] = 0  # its count of episodes


class ToldTogether(gymnasium.vector.SyncVectorEnv):
    def __init__(self, num_envs):
        super().__init__([Told] * num_envs)

    def set_training_progress(self, steps, total_steps):
        for env in self.envs:
            env.set_training_progress(steps, total_steps)


@pytest.mark.parametrize("factory", [Told, ToldTogether])
def test_told_or_not_a_run_is_that_of_its_seed(toy, factory):
    told, plain = toy(factory), toy(factory)
    told.env.set_progress(1, 2)
    assert_same(told.play(30), plain.play(30))


def test_a_wrapper_or_what_is_inside_is_told(toy):
    class Wrapper(gymnasium.Wrapper):
        def set_training_progress(self, steps, total_steps):
            self.unwrapped.level = 7.0

    def wrapped():
        return gymnasium.wrappers.TimeLimit(Wrapper(Curriculum()), 50)

    group = toy(wrapped)
    group.env.set_progress(1, 2)
    group.reset()
    assert (group.obs[:, 2] == 7).all()
    for options in (EnvOptions(max_episode_steps=9), EnvOptions(frame_stack=2)):
        group = toy(Curriculum, options)
        group.env.set_progress(1, 2)
        group.reset()
        assert (group.obs[..., 2] == 0.5).all()


def test_who_does_not_ask_is_not_told(toy):
    class Constant(Toy):
        set_training_progress = 3

    assert toy(Toy).env.set_progress is None
    assert toy(Constant).env.set_progress is None
    assert Group("gym:CartPole-v1", EnvOptions(vector_entry_point=True)).env.set_progress is None
    assert progress_teller(Toy()) is None


# Numbers of info.


@pytest.mark.parametrize("env_id", ["py:toys:Reporter", "py:toys:reporters"])
def test_numbers_of_info_are_those_at_the_end_of_an_episode(env_id):
    keys = ("score", "parts.half", "a.b", "parts.name", "missing", "parts")
    rows = Group(env_id, EnvOptions(log_info=keys)).play(45)
    episode, step, _ = np.moveaxis(rows.obs[1:], -1, 0)
    score = np.where(rows.done, 100 * episode + step, np.nan)
    seven = np.where(rows.done, 7, np.nan)
    none = np.full_like(score, np.nan)
    expected = np.stack([score, score / 2, seven, none, none, none], -1)
    assert rows.done.sum() > 8
    np.testing.assert_array_equal(rows.info, expected)


def test_info_of_a_vector_may_be_of_any_form(toy):
    class Vector(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
        single_observation_space = spaces.Box(-1, 1, (1,))
        single_action_space = spaces.Box(-1, 1, (1,))

        def __init__(self, num_envs):
            self.num_envs = num_envs

        def reset(self, *, seed=None, options=None):
            return np.zeros((4, 1), np.float32), {}

        def step(self, actions):
            info = {
                "each": np.arange(4),
                "some": np.arange(4) + 10,
                "_some": np.array([True, False, True, False]),
                "all": 5.0,
                "odd": [[1], [2, 3], [4], [5]],
                "inner": {"each": np.arange(4) / 2, "all": 6},
                "_private": np.arange(4) + 20,
            }
            ends = np.array([True, True, False, True])
            return np.zeros((4, 1), np.float32), np.zeros(4), ends, np.zeros(4, bool), info

    keys = ("each", "some", "all", "odd", "inner.each", "inner.all", "_private")
    group = toy(Vector, EnvOptions(log_info=keys))
    group.reset()
    info = group.step(np.zeros((4, 1))).info
    nan = np.nan
    expected = np.array(
        [
            [0, 10, 5, nan, 0, 6, 20],
            [1, nan, 5, nan, 0.5, 6, 21],
            [nan] * 7,
            [3, nan, 5, nan, 1.5, 6, 23],
        ]
    )
    np.testing.assert_array_equal(info, expected)
