"""What the rows say, checked against the games' own rules."""

import numpy as np
import pytest
from group import Group

from fastrl.envs import EnvOptions


def lengths_of(rows):
    """Per environment the lengths in steps of the episodes that ended, as statistics count."""
    result = []
    for e in range(rows.reward.shape[1]):
        length, ended = 0, []
        for reset, over in zip(rows.resets[:, e], rows.episode_over[:, e], strict=True):
            length += not reset
            if over:
                ended.append(length)
                length = 0
        result.append(ended)
    return result


def test_cartpole_terminates_when_it_falls_and_shows_the_fall():
    rows = Group("envpool:CartPole-v1", num_envs=8).play(300)
    x, theta = np.abs(rows.obs[1:, :, 0]), np.abs(rows.obs[1:, :, 2])
    fallen = (x > 2.4) | (theta > np.deg2rad(12))
    np.testing.assert_array_equal(rows.terminated, fallen)
    assert not rows.truncated.any()
    np.testing.assert_array_equal(rows.episode_over, rows.terminated)
    np.testing.assert_array_equal(rows.reward, np.where(rows.resets, 0.0, 1.0))
    assert rows.resets.any()
    assert (np.abs(rows.obs[1:][rows.resets]) <= 0.05).all()  # a first observation


@pytest.mark.parametrize(("option", "limit"), [(None, 500), (7, 7)])
def test_cartpole_is_truncated_exactly_at_the_limit(option, limit):
    def balance(t, obs):
        return (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).astype(int)

    group = Group("envpool:CartPole-v1", EnvOptions(max_episode_steps=option))
    rows = group.play(limit + 2, balance)
    assert not rows.terminated.any()
    expected = np.zeros_like(rows.truncated)
    expected[limit - 1] = True
    np.testing.assert_array_equal(rows.truncated, expected)
    assert lengths_of(rows) == [[limit]] * 4
    assert (np.abs(rows.obs[limit + 1]) <= 0.05).all()


def test_pendulum_rewards_the_torque_of_that_very_row():
    rows = Group("envpool:Pendulum-v1").play(
        100, lambda t, obs: 5 * np.sin(t + np.arange(4.0))[:, None]
    )
    cos, sin, speed = np.moveaxis(rows.obs[:-1], -1, 0).astype(np.float64)
    torque = 2 * np.clip(rows.action[..., 0], -1, 1)  # of at most 2
    expected = -(np.arctan2(sin, cos) ** 2 + 0.1 * speed**2 + 0.001 * torque**2)
    np.testing.assert_allclose(rows.reward, expected, atol=1e-4)


def test_mountain_car_begins_at_rest_in_the_valley():
    options = EnvOptions(max_episode_steps=20)
    rows = Group("envpool:MountainCar-v0", options).play(50)
    first = rows.obs[1:][rows.resets]
    assert len(first) == 8
    assert (first[:, 1] == 0).all()
    assert ((first[:, 0] >= -0.6) & (first[:, 0] <= -0.4)).all()
    assert (rows.reward[~rows.resets] == -1).all()


@pytest.mark.slow
def test_breakout_counts_five_lives_as_one_episode():
    rows = Group("atari:Breakout", num_envs=4).play(400)
    assert not rows.truncated.any()
    games = 0
    for e in range(4):
        over = rows.episode_over[rows.terminated[:, e], e]
        whole = len(over) // 5 * 5
        np.testing.assert_array_equal(over[:whole], ([False] * 4 + [True]) * (whole // 5))
        games += whole // 5
    assert games >= 2


@pytest.mark.slow
def test_without_episodic_life_only_the_game_ends_an_episode():
    rows = Group("atari:Breakout", EnvOptions(episodic_life=False), num_envs=2).play(400)
    assert rows.terminated.any()
    np.testing.assert_array_equal(rows.terminated, rows.episode_over)


def new_game(rows):
    """bool [N, E]: reset rows that began a new game: all stacked frames are the first one.

    After a lost life the stack goes on with what it held.
    """
    frames = rows.obs[1:]
    return rows.resets & (frames == frames[:, :, :1]).all(axis=(2, 3, 4))


@pytest.mark.slow
def test_the_time_limit_runs_on_over_lost_lives_and_begins_a_new_game():
    limit = 90
    rows = Group("atari:Breakout", EnvOptions(max_episode_steps=limit)).play(200)
    lost_lives = rows.terminated & ~rows.episode_over
    assert lost_lives.any() and rows.truncated.any()
    for ended in lengths_of(rows):
        assert ended and all(length == limit for length in ended)
    np.testing.assert_array_equal(rows.truncated, rows.episode_over)
    after_limit = np.concatenate([np.zeros((1, 4), dtype=bool), rows.truncated[:-1]])
    np.testing.assert_array_equal(new_game(rows), after_limit)


@pytest.mark.slow
def test_a_game_that_ends_in_the_frames_after_a_lost_life_is_counted():
    rows = Group("atari:RoadRunner", num_envs=4, seed=5).play(450)
    hidden = rows.episode_over & rows.resets
    assert hidden.any()
    # The stack of frames is an account of new games that is independent of the count of lives.
    over_before = np.concatenate([np.zeros((1, 4), dtype=bool), rows.episode_over[:-1]])
    np.testing.assert_array_equal(new_game(rows), hidden | (over_before & rows.resets))


def test_channels_last_images_are_stored_channels_first():
    group = Group("envpool:CarRacing-v3", num_envs=1)
    rows = group.play(5)
    assert rows.obs.shape == (6, 1, 3, 96, 96)
    red, green, blue = rows.obs[-1, 0].astype(int)
    grass = (green > red + 40) & (green > blue + 40)
    assert grass.mean() > 0.2


def test_atari_options_change_what_they_say():
    options = EnvOptions(frame_stack=2, full_action_space=True, frame_skip=1)
    group = Group("atari:Breakout", options, num_envs=1)
    group.reset()
    assert group.obs.shape == (1, 2, 84, 84)
    assert group.action_spec.n == 18
    assert group.env.spec.frame_skip == 1
