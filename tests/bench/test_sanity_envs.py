"""That the answers of the sanity suite are right: each is found once more by another way."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from fastrl.bench import sanity_envs as envs
from fastrl.bench.sanity_checks import CHECKS

HORIZON = 400  # γ^400 is nothing for every γ < 0.95


def play(env: gymnasium.Env, actions, seed: int = 0) -> tuple[list, list[float], list[bool]]:
    """Play one episode; returns what was seen, the rewards, and whether it terminated."""
    observation, _ = env.reset(seed=seed)
    seen, rewards = [observation], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            return seen, rewards, terminated
    return seen, rewards, False


def discounted(rewards: list[float], gamma: float) -> float:
    return sum(reward * gamma**t for t, reward in enumerate(rewards))


@pytest.mark.parametrize("env", sorted({check.env for check in CHECKS}, key=lambda c: c.__name__))
def test_they_are_environments_as_gymnasium_has_them(env):
    check_env(env(), skip_render_check=True)


def test_a_constant_reward_is_worth_its_sum():
    _, rewards, ended = play(envs.ConstantReward(), [0, 1] * (HORIZON // 2))
    assert not ended and discounted(rewards, 0.9) == pytest.approx(1 / (1 - 0.9))


def test_an_observed_reward_is_the_observation_and_the_end_shows_the_other():
    starts = set()
    for seed in range(20):
        seen, rewards, ended = play(envs.ObservedReward(), [0], seed)
        assert ended and rewards == [seen[0][0]] and seen[1][0] == -seen[0][0]
        starts.add(rewards[0])
    assert starts == {-1.0, 1.0}


def test_two_steps_are_worth_the_discount():
    seen, rewards, ended = play(envs.TwoSteps(), [0, 0, 0])
    assert ended and [row[0] for row in seen] == [0, 1, 0]
    assert discounted(rewards, 0.5) == 0.5 and discounted(rewards[1:], 0.5) == 1.0


def test_a_match_pays_for_the_action_that_is_shown():
    for seed, action in itertools.product(range(10), (0, 1)):
        seen, rewards, ended = play(envs.Match(), [action], seed)
        assert ended and rewards == [1.0 if seen[0][0] == 2 * action - 1 else -1.0]


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_no_policy_of_the_bandit_is_better_with_the_entropy_bonus(weight):
    means = np.array(envs.Bandit.means())

    def objective(policy: np.ndarray) -> float:
        return float(policy @ means - weight * (policy * np.log(policy)).sum())

    best = np.array(envs.Bandit.best_policy(weight))
    assert best.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(200):
            other = best * np.exp(scale * rng.normal(size=5))
            assert objective(other / other.sum()) < objective(best)


def test_an_arm_of_the_bandit_pays_its_mean():
    env = envs.Bandit()
    env.reset(seed=0)
    for arm, (pay, mean) in enumerate(zip(env.PAYS, env.means(), strict=True)):
        paid = [env.step(arm)[1] for _ in range(4000)]
        assert set(paid) == {0.0, pay} and np.mean(paid) == pytest.approx(mean, abs=0.1)


def test_the_best_policy_of_must_mix_mixes():
    def by_enumeration(p: float) -> float:
        chance = (p, 1 - p)
        return sum(
            chance[a] * chance[b] * sum(play(envs.MustMix(), [a, b])[1])
            for a, b in itertools.product((0, 1), repeat=2)
        )

    grid = np.linspace(0, 1, 301)
    returns = [by_enumeration(p) for p in grid]
    assert returns == pytest.approx([envs.MustMix.expected_return(p) for p in grid])
    assert grid[np.argmax(returns)] == pytest.approx(2 / 3)
    assert max(returns) == pytest.approx(2 / 3) and max(returns[0], returns[-1]) == 0.5
    seen, _, ended = play(envs.MustMix(), [0, 1])
    assert ended and all((row == seen[0]).all() for row in seen)


def test_places_of_the_ring_are_worth_what_the_walk_without_cuts_is():
    places, gamma = envs.Ring.PLACES, 0.8
    reward = np.zeros(places)
    step = np.zeros((places, places))
    env = envs.Ring()
    for place in range(places):
        env.reset(seed=0)
        env.place = place
        step[place, env.step(0)[0]] = 1
        env.place = place
        reward[place] = env.step(0)[1]
    values = np.linalg.solve(np.eye(places) - gamma * step, reward)
    assert values == pytest.approx([envs.Ring.value(place, gamma) for place in range(places)])
    starts = set()
    for seed in range(30):
        env.reset(seed=seed)
        starts.add(env.place)
        flags = [env.step(0)[2:4] for _ in range(envs.Ring.PIECE)]
        assert flags == [(False, False), (False, True)]
    assert starts == set(range(places))


def test_the_best_policy_under_the_mask_is_worth_three_quarters():
    worth = {True: [], False: []}
    for seed in range(40):
        env = envs.Forbidden()
        seen, info = env.reset(seed=seed)
        mask = info["action_mask"].astype(bool)
        assert mask[:2].all() and not seen.any()
        pays = []
        for action in range(3):
            env.reset(seed=seed)
            pays.append(env.step(action)[1])
        assert np.argmax(pays) == 2  # the tempting one
        worth[bool(mask[2])].append(max(np.array(pays)[mask]))
    assert set(worth[True]) == {1.0} and set(worth[False]) == {0.5}
    assert len(worth[True]) == pytest.approx(20, abs=8)


def test_every_part_of_the_nested_observation_tells_of_one_part_of_the_action():
    def answer(seen) -> dict:
        """What is right for what is seen, part by part."""
        left, right = seen["pair"]
        return {
            "turn": seen["turn"] - 4,
            "pair": (left.astype(np.float32), right),
            "lamps": seen["lamps"],
            "doors": seen["doors"],
        }

    env = envs.Nested()
    bits = []
    for seed in range(64):
        seen, _ = env.reset(seed=seed)
        action = answer(seen)
        assert env.observation_space.contains(seen) and env.action_space.contains(action)
        assert env.step(action)[1] == 1.0
        bits.append(env.bits.copy())
        # The bits of another episode: as many parts are right as are equal by chance.
        env.bits = 1 - env.bits
        assert env.step(action)[1] == 0.0
    correlation = np.corrcoef(np.array(bits).T)
    assert np.abs(correlation - np.eye(5)).max() < 0.4  # no part tells of another


def test_a_number_is_an_environments_own_and_changes_only_its_sign():
    env = envs.OwnNumber()
    seen, rewards, ended = play(env, [0] * 100, seed=3)
    assert len(rewards) == envs.OwnNumber.PIECE and not ended
    number = pytest.approx(float(seen[0][0]))
    assert [float(row[0]) for row in seen] == [number] * len(seen)
    assert rewards == [number] * len(rewards)
    assert -env.reset()[0][0] == number and -env.step(1)[1] == number
    assert envs.OwnNumber().reset(seed=4)[0] != seen[0]


def test_the_right_action_flips_with_the_progress_of_training():
    env = envs.Flip()
    env.reset(seed=0)
    sides = []
    for steps in range(0, 1001, 100):
        env.set_training_progress(steps, 1000)
        rewards = [env.step(action)[1] for action in (0, 1)]
        assert sorted(rewards) == [-1.0, 1.0]
        sides.append(int(np.argmax(rewards)))
    assert sides == [0] * 4 + [1] * 3 + [0] * 4
    # π(right) of the best policy: no other has more reward and entropy together.
    grid = np.linspace(0.001, 0.999, 9981)
    gain = 2 * grid - 1 - 0.7 * (grid * np.log(grid) + (1 - grid) * np.log(1 - grid))
    assert grid[np.argmax(gain)] == pytest.approx(envs.Flip.best_policy(0.7), abs=2e-4)


def test_one_environment_is_the_slow_one():
    slow, other = envs.SlowOne(slow_seed=5, step=0), envs.SlowOne(slow_seed=5, step=0)
    seen, rewards, _ = play(slow, [0] * 8, seed=5)
    assert seen[0] == 1 and rewards == [2.0] * 8
    assert slow.reset()[0] == 1  # in its later episodes as well
    seen, rewards, ended = play(other, [0] * 9, seed=6)
    assert seen[0] == 0 and rewards == [1.0] * 8 and not ended
