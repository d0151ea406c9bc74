"""The last observations as one, against Gymnasium's own wrapper."""

import gymnasium
import numpy as np
import pytest
from group import Group
from toys import Ledger, Toy, spaces

from fastrl.envs import EnvOptions, StepOut, describe
from fastrl.envs.frame_stack import FrameStack, stacked_spec
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.envs.spec import EnvSpec, ObservationSpec

STACKED = EnvOptions(frame_stack=3)


def leaf_of(leaf):
    spec = stacked_spec(EnvSpec("x:y", {"obs": leaf}, {}, 1, None), 3)
    return spec.observation["obs"]


@pytest.mark.parametrize(
    ("leaf", "stacked"),
    [
        (
            ObservationSpec((4, 8, 6), "uint8", "image", path=("a",)),
            ObservationSpec((12, 8, 6), "uint8", "image", path=("a",)),
        ),
        (ObservationSpec((5,), "float32", "vector"), ObservationSpec((3, 5), "float32", "vector")),
        (ObservationSpec((), "int8", "vector"), ObservationSpec((3,), "int8", "vector")),
        (
            ObservationSpec((), "int32", "discrete", n=7, start=(2,)),
            ObservationSpec((3,), "int32", "multi_discrete", nvec=(7,) * 3, start=(2,) * 3),
        ),
        (
            ObservationSpec((2,), "int32", "multi_discrete", nvec=(7, 8), start=(2, 3)),
            ObservationSpec(
                (3, 2), "int32", "multi_discrete", nvec=(7, 8) * 3, start=(2, 3) * 3
            ),
        ),
    ],
)  # fmt: skip
def test_the_stack_of_a_leaf(leaf, stacked):
    assert leaf_of(leaf) == stacked


@pytest.mark.parametrize(("name", "options"), [("CartPole-v1", {}), ("Taxi-v4", {"limit": 17})])
def test_rows_are_those_of_gymnasiums_wrapper(name, options):
    """The same seeds and actions, played one by one inside FrameStackObservation."""
    steps, first, seed = 60, 3, 11
    limit = options.get("limit")
    mine = EnvOptions(frame_stack=3, max_episode_steps=limit, action_mask="off")
    rows = Group(f"gym:{name}", mine, num_envs=2, first=first, seed=seed).play(steps)
    assert rows.resets.any()
    for e in range(2):
        env = gymnasium.make(name, max_episode_steps=limit)
        env = gymnasium.wrappers.FrameStackObservation(env, 3)  # pads with the first observation
        obs, _ = env.reset(seed=env_seed(seed, first + e))
        np.testing.assert_array_equal(rows.obs[0, e], obs)
        for t in range(steps):
            if rows.resets[t, e]:
                obs, _ = env.reset()
            else:
                obs, *_ = env.step(rows.action[t, e])
            np.testing.assert_array_equal(rows.obs[t + 1, e], np.asarray(obs, rows.obs.dtype))


@pytest.mark.parametrize("env_id", ["py:toys:Nested", "py:toys:nesteds"])
def test_every_leaf_is_the_last_three_of_the_plain_one(env_id):
    """An episode's first observation stands for those before it; a final one has its own."""
    steps = 40
    plain = Group(env_id)
    single = plain.play(steps)
    stacked = Group(env_id, STACKED)
    rows = stacked.play(steps, lambda t, obs: {k: a[t] for k, a in single.actions.items()})
    np.testing.assert_array_equal(rows.reward, single.reward)
    start = np.zeros((steps + 1, 4), int)  # the row in which a row's episode begins
    for t in range(1, steps + 1):
        start[t] = np.where(single.resets[t - 1], t, start[t - 1])
    everyone = np.arange(4)
    for key, leaf in plain.spec.observation.items():
        for t in range(steps + 1):
            last = [
                single.observations[key][np.maximum(t - back, start[t]), everyone]
                for back in (2, 1, 0)
            ]
            joined = np.stack(last, 1) if leaf.kind != "image" else np.concatenate(last, 1)
            np.testing.assert_array_equal(rows.observations[key][t], joined)


def test_what_comes_after_the_random_steps_fills_the_stack(toy):
    group = toy(Ledger, STACKED)
    group.reset(np.array([0, 1, 5, 12]), [env_rng(0, i) for i in range(4)])
    assert (group.obs == group.obs[:, :1]).all()
    assert group.obs[1, 0, 1] == 1
    before = group.obs[:, 0].copy()
    group.step([0] * 4)
    np.testing.assert_array_equal(group.obs[:, :2], np.stack([before, before], 1))
    assert (group.obs[:, 2, 1] != before[:, 1]).all()


class Lives:
    """A group that only counts its rows. A lost life ends an episode for the learner alone."""

    num_envs = 2
    spec = EnvSpec("x:y", {"obs": ObservationSpec((), "float32", "vector")}, {}, 1, None)

    def reset(self, obs, stagger_steps=None, rngs=None, action_mask=None):
        self.row = 0
        obs["obs"][...] = 0
        return np.zeros(2), np.zeros(2, int)

    def step(self, action, out):
        self.row += 1
        out.obs["obs"][...] = self.row
        out.terminated[...] = self.row in (2, 6)
        out.truncated[...] = False
        out.episode_over[...] = self.row == 6
        out.reward[...] = 0


def test_a_lost_life_begins_a_new_stack_too():
    group = FrameStack(Lives(), 3)
    obs = {"obs": np.zeros((2, 3), np.float32)}
    group.reset(obs)
    flags = {name: np.zeros(2, bool) for name in ("terminated", "truncated", "episode_over")}
    rows = [obs["obs"][1].tolist()]
    for _ in range(7):
        group.step({}, StepOut(obs=obs, reward=np.zeros(2, np.float32), **flags))
        rows.append(obs["obs"][1].tolist())
    assert rows == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2],
        [3, 3, 3], [3, 3, 4], [3, 4, 5], [4, 5, 6],
        [7, 7, 7],
    ]  # fmt: skip


def test_it_passes_on_what_the_group_can_and_closes_it(toy):
    closed = []

    class Noted(Toy):
        observation_space = spaces.Discrete(3)

        def close(self):
            closed.append(self)

    group = toy(Noted, STACKED)
    assert group.env.set_progress is None
    assert group.env.num_envs == 4
    group.env.close()
    assert len(closed) == 4


def test_unset_is_no_stack_and_one_neither():
    plain = describe("gym:CartPole-v1", EnvOptions())
    assert describe("gym:CartPole-v1", EnvOptions(frame_stack=1)) == plain
    assert describe("gym:CartPole-v1", STACKED).observation["obs"].shape == (3, 4)
