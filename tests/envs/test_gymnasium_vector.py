"""Vector environments: which are used, which refused, and that the arrays stay their owners'."""

import gymnasium
import numpy as np
import pytest
from group import Group
from gymnasium.vector import AutoresetMode
from toys import Ledger, Toy, ledgers, spaces

from fastrl.envs import EnvOptions, describe, make, register_env
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.errors import ConfigError, UnsupportedEnvironment

VECTOR = EnvOptions(vector_entry_point=True)


class Row(gymnasium.vector.VectorEnv):
    """Action 1 terminates, 2 truncates, 3 does both; the next step resets. Its arrays are its own,
    and so are the actions that it is given."""

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-99, 99, (1,))
        self.single_action_space = spaces.Discrete(4, dtype=np.int32)
        self.obs = np.zeros((num_envs, 1), np.float32)
        self.ended = np.zeros(num_envs, bool)
        self.seeds, self.closes = [], 0

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.obs[:] = self.ended[:] = 0
        return self.obs, {}

    def step(self, actions):
        moved = np.where(self.ended, 0, actions)
        self.obs += 1
        self.obs[self.ended] = 0
        terminated, truncated = moved % 2 == 1, moved >= 2
        self.ended = terminated | truncated
        actions[:] = -1
        return self.obs, np.full(self.num_envs, 0.5), terminated, truncated, {}

    def close(self):
        self.closes += 1


def row(**changed):
    """A factory of one Row with some of its attributes replaced, which it shows afterwards."""
    made = []

    def factory(num_envs):
        made.append(Row(num_envs))
        for name, value in changed.items():
            setattr(made[0], name, value)
        return made[0]

    return factory, made


def test_rows_are_those_of_the_vector_environment_itself():
    steps, seed, first = 120, 4, 8
    options = EnvOptions(vector_entry_point=True, max_episode_steps=40)
    group = Group("gym:CartPole-v1", options, num_envs=5, first=first, seed=seed)
    rows = group.play(steps, lambda t, obs: (obs[:, 2] + obs[:, 3] > 0).astype(int))
    plain = gymnasium.make_vec("CartPole-v1", 5, "vector_entry_point", max_episode_steps=40)
    obs, _ = plain.reset(seed=env_seed(seed, first))
    np.testing.assert_array_equal(rows.obs[0], obs)
    for t in range(steps):
        obs, reward, terminated, truncated, _ = plain.step(rows.action[t])
        np.testing.assert_array_equal(rows.obs[t + 1], obs)
        np.testing.assert_array_equal(rows.reward[t], reward)
        np.testing.assert_array_equal(rows.terminated[t], terminated)
        np.testing.assert_array_equal(rows.truncated[t], truncated & ~terminated)
        np.testing.assert_array_equal(rows.episode_over[t], terminated | truncated)
    assert rows.truncated.any()


def test_a_ledger_in_a_vector_adds_up(toy):
    rows = toy(ledgers).play(60)
    step = rows.obs[..., 1]
    valid = ~rows.resets
    np.testing.assert_array_equal(step[1:], np.where(valid, step[:-1] + 1, 0))
    expected = np.where(valid, 10 * step[1:] + 5 + rows.action, 0)
    np.testing.assert_array_equal(rows.reward, expected)


def test_ends_resets_and_arrays_of_its_own(toy):
    factory, made = row()
    group = toy(factory)
    group.reset()
    action = np.array([0, 1, 2, 3], np.int32)
    group.env.step({"action": action}, group.out)
    assert action.tolist() == [0, 1, 2, 3]
    out = group.out
    assert out.terminated.tolist() == [False, True, False, True]
    assert out.truncated.tolist() == [False, False, True, False]
    assert out.episode_over.tolist() == [False, True, True, True]
    assert group.obs[:, 0].tolist() == [1, 1, 1, 1]
    before = group.obs.copy()
    made[0].obs[:] = 55
    np.testing.assert_array_equal(group.obs, before)
    made[0].obs[:] = 1
    out = group.step([0, 3, 3, 3])
    assert group.obs[:, 0].tolist() == [2, 0, 0, 0]
    assert out.reward.tolist() == [0.5, 0, 0, 0]
    assert not (out.terminated | out.truncated | out.episode_over).any()


def test_it_is_seeded_once_and_closed_once(toy):
    factory, made = row()
    group = toy(factory, first=12, seed=7)
    group.reset()
    group.reset()
    assert made[0].seeds == [env_seed(7, 12), None]
    group.env.close()
    group.env.close()
    assert made[0].closes == 1
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        group.reset()


def test_no_random_steps_are_played(toy):
    factory, _ = row()
    group = toy(factory)
    returns, lengths = group.reset(np.arange(4), [env_rng(0, i) for i in range(4)])
    assert returns.dtype == np.float64 and lengths.dtype == np.int64
    assert not returns.any() and not lengths.any() and not group.obs.any()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (AutoresetMode.SAME_STEP, "resets within the step that ends an episode, so it would exec"),
        (AutoresetMode.DISABLED, "leaves resetting to its caller"),
        (None, "does not say in metadata['autoreset_mode'] when it resets"),
        ("sometimes", "does not say in metadata['autoreset_mode'] when it resets"),
    ],
)
def test_another_way_of_resetting_is_refused(toy, mode, words):
    made = []

    def factory(num_envs):
        made.append(Row(num_envs, mode))
        return made[0]

    with pytest.raises(UnsupportedEnvironment) as caught:
        toy(factory)
    assert f"py:toy cannot be used as a vector: it {words}" in str(caught.value)
    assert str(caught.value).endswith("one gymnasium.Env, to have them run one by one.")
    assert made[0].closes == 1


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)


def test_the_reset_on_the_next_step_is_asked_for(registry):
    def entry_point(num_envs, autoreset_mode=AutoresetMode.SAME_STEP):
        return Row(num_envs, autoreset_mode)

    gymnasium.register("Asked-v0", vector_entry_point=entry_point)
    assert describe("gym:Asked-v0", VECTOR).observation["obs"].shape == (1,)
    gymnasium.register("Same-v0", vector_entry_point=lambda num_envs: Row(num_envs, "SameStep"))
    with pytest.raises(UnsupportedEnvironment, match="leave --vector-entry-point off to run it"):
        describe("gym:Same-v0", VECTOR)


def test_a_vector_entry_point_must_exist_and_be_asked_for(registry):
    with pytest.raises(ConfigError) as caught:
        make("gym:Pendulum-v1", VECTOR, 2, 0, 0)
    assert str(caught.value) == (
        "gym:Pendulum-v1 has no vector entry point: leave --vector-entry-point off to run it one "
        "by one."
    )
    gymnasium.register("Only-v0", vector_entry_point=Row)
    with pytest.raises(ConfigError, match="vector entry point only: set --vector-entry-point"):
        make("gym:Only-v0", EnvOptions(), 2, 0, 0)


def test_a_limit_that_the_constructor_does_not_take_is_refused(registry, toy):
    gymnasium.register("Row-v0", vector_entry_point=Row)
    options = EnvOptions(vector_entry_point=True, max_episode_steps=9)
    with pytest.raises(ConfigError, match=r"gym:Row-v0 does not use --max-episode-steps"):
        describe("gym:Row-v0", options)
    with pytest.raises(ConfigError, match=r"py:toy does not use --max-episode-steps"):
        toy(Row, EnvOptions(max_episode_steps=9))
    seen = []

    def takes_it(num_envs, max_episode_steps=None):
        seen.append(max_episode_steps)
        return Row(num_envs)

    toy(takes_it, EnvOptions(max_episode_steps=9))
    toy(takes_it)
    assert seen == [9, None]


def test_a_wrong_number_or_kind_is_refused(toy):
    with pytest.raises(UnsupportedEnvironment, match="has 3 environments where 4 were asked for"):
        toy(lambda num_envs: Row(3))
    with pytest.raises(UnsupportedEnvironment, match=r"gave a toys\.Ledger and not a gymnasium"):
        toy(lambda num_envs: Ledger())
    with pytest.raises(UnsupportedEnvironment, match="vector environment without being told of"):
        toy(lambda: Row(4))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((np.zeros((4, 2)), [0] * 4, [False] * 4, [False] * 4, {}), r"of shape \(4, 2\)"),
        ((np.zeros((1, 1)), [0] * 4, [False] * 4, [False] * 4, {}), r"of shape \(1, 1\)"),
        ((np.zeros((4, 1)), 0.0, [False] * 4, [False] * 4, {}), r"reward of shape \(\) for 4"),
        ((np.zeros((4, 1)), [0] * 4, False, [False] * 4, {}), r"terminated of shape \(\)"),
        ((np.zeros((4, 1)), [0] * 4, [False] * 4, [True], {}), r"truncated of shape \(1,\)"),
        ((np.zeros((4, 1)), [0] * 4, [False] * 4, {}), r"does not return Gymnasium's five"),
    ],
)
def test_a_batch_of_another_form_is_refused(toy, result, words):
    factory, _ = row(step=lambda actions: result)
    group = toy(factory)
    group.reset()
    with pytest.raises(UnsupportedEnvironment, match=r"py:toy cannot be used: .*" + words):
        group.step([0] * 4)


def test_one_that_does_not_reset_as_it_says_is_refused(toy):
    over = (np.zeros((4, 1)), np.zeros(4), np.ones(4, bool), np.zeros(4, bool), {})
    factory, _ = row(step=lambda actions: over)
    group = toy(factory)
    group.reset()
    group.step([0] * 4)
    with pytest.raises(UnsupportedEnvironment, match="does not reset as it says"):
        group.step([0] * 4)


def test_what_the_constructor_raises_is_told(toy):
    def fails(num_envs):
        raise OSError("no display")

    with pytest.raises(ConfigError, match=r"py:toy could not be constructed: OSError: no display"):
        toy(fails)


def test_a_class_of_single_environments_is_not_called_with_a_number(toy):
    assert toy(Toy).num_envs == 4


class Trouble(Exception):
    pass


def test_what_it_raises_passes_with_a_note_or_refuses_it_as_it_begins(toy):
    def fails(*args, **keywords):
        raise Trouble("no map\nhere.")

    factory, _ = row(step=fails)
    group = toy(factory)
    group.reset()
    with pytest.raises(Trouble) as caught:
        group.step([0] * 4)
    (note,) = caught.value.__notes__
    assert note.startswith("py:toy raised Trouble: no map here (")
    assert note.endswith(") in step 1.")
    factory, made = row(reset=fails)
    with pytest.raises(ConfigError) as caught:
        toy(factory)
    assert str(caught.value).startswith("py:toy raised Trouble: no map here (")
    assert str(caught.value).endswith(") in reset().")
    assert made[0].closes == 1


def test_a_wrapper_is_closed_and_closes_what_is_inside(toy, folder):
    (folder / "around.py").write_text(
        "import gymnasium\n"
        "closed = []\n"
        "class Around(gymnasium.vector.VectorWrapper):\n"
        "    def close(self, **keywords):\n"
        "        closed.append(self)\n"
        "        self.env.close()\n"
    )
    factory, made = row()
    group = toy(factory, EnvOptions(wrap=("py:around:Around",)))
    group.env.close()
    group.env.close()
    import around

    assert (len(around.closed), made[0].closes) == (1, 1)


class Pairs(gymnasium.Env):
    """Two choices, whose masks are a tuple of arrays in info: gymnasium's vectors keep the tuples.
    None comes with a final observation."""

    observation_space = gymnasium.spaces.Discrete(9)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, self.draw()

    def draw(self):
        self.allowed = self.np_random.integers(2), self.np_random.integers(3)
        return {
            "action_mask": tuple(
                np.arange(n) == k for n, k in zip((2, 3), self.allowed, strict=True)
            )
        }

    def step(self, action):
        assert tuple(action) == self.allowed
        self.count += 1
        over = self.count == 5
        return self.count, 1.0, over, False, {} if over else self.draw()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_masks_may_be_tuples_in_info(num_envs):
    register_env("pairs", lambda num_envs: gymnasium.vector.SyncVectorEnv([Pairs] * num_envs))
    group = Group("py:pairs", num_envs=num_envs)
    rows = group.play(20)
    assert rows.reward.sum() == 17 * num_envs
