"""The random first steps, of environments that are nothing but counters."""

import numpy as np
import pytest

from fastrl.envs.seeding import env_rng
from fastrl.envs.spec import ActionSpec
from fastrl.envs.stagger import play_stagger

MOVE = ActionSpec("discrete", (), "int32", "int32", n=4)
TURN = ActionSpec("multi_discrete", (2,), "int32", "int32", nvec=(2, 3), masked=True)
LENGTH = 5


class Counters:
    """E environments, whose episodes have 5 steps. A step pays its number in the episode, and one
    that only resets 1000. Environment i allows, after a step, a single choice that depends on i and
    the number of steps."""

    def __init__(self, num_envs):
        self.step = np.zeros(num_envs, int)
        self.actions = [[] for _ in range(num_envs)]
        self.resets = np.zeros(num_envs, int)
        self.mask = {"turn": np.zeros((num_envs, 5), bool)}
        for i in range(num_envs):
            self.allow(i)

    def allow(self, i):
        self.mask["turn"][i] = False
        self.mask["turn"][i, [self.step[i] % 2, 2 + (self.step[i] + i) % 3]] = True

    def __call__(self, stored, ids):
        reward, done = np.zeros(len(ids), np.float32), np.zeros(len(ids), bool)
        for k, i in enumerate(ids):
            if self.step[i] == LENGTH:
                self.step[i], reward[k] = 0, 1000
                self.resets[i] += 1
            else:
                if "turn" in stored:
                    a, b = stored["turn"][k]
                    assert self.mask["turn"][i, [a, 2 + b]].all(), "not allowed"
                self.actions[i].append({key: array[k].copy() for key, array in stored.items()})
                self.step[i] += 1
                reward[k], done[k] = self.step[i], self.step[i] == LENGTH
            self.allow(i)
        return reward, done, done


@pytest.mark.parametrize(
    ("leaves", "masked"), [({"move": MOVE}, False), ({"move": MOVE, "turn": TURN}, True)]
)
def test_each_plays_its_number_of_steps_and_none_is_left_done(leaves, masked):
    steps = np.array([0, 3, LENGTH, LENGTH + 1, 3 * LENGTH + 2, 40])
    counters = Counters(6)
    masks = counters.mask if masked else None
    rngs = [env_rng(0, i) for i in range(6)]
    returns, lengths = play_stagger(counters, leaves, steps, rngs, masks)
    assert [len(actions) for actions in counters.actions] == steps.tolist()
    np.testing.assert_array_equal(counters.resets, steps // LENGTH)
    # What is returned is of the episodes that run now; what a reset pays is not counted.
    np.testing.assert_array_equal(counters.step, steps % LENGTH)
    np.testing.assert_array_equal(lengths, steps % LENGTH)
    np.testing.assert_array_equal(returns, lengths * (lengths + 1) / 2)
    assert (returns.dtype, lengths.dtype) == (np.float64, np.int64)


@pytest.mark.parametrize(
    ("leaves", "masked"), [({"move": MOVE}, False), ({"move": MOVE, "turn": TURN}, True)]
)
def test_what_is_drawn_depends_on_no_neighbour(leaves, masked):
    together = Counters(3)
    masks = together.mask if masked else None
    play_stagger(together, leaves, np.array([4, 30, 9]), [env_rng(0, i) for i in range(3)], masks)
    # In another place and company, but with what environment 1 allows.
    other = Counters(2)
    masks = other.mask if masked else None
    play_stagger(other, leaves, np.array([2, 30]), [env_rng(5, 7), env_rng(0, 1)], masks)
    np.testing.assert_equal(other.actions[1], together.actions[1])


def test_choices_are_uniform():
    counters = Counters(1)
    play_stagger(counters, {"move": MOVE}, np.array([4000]), [env_rng(0, 0)])
    counts = np.bincount([int(action["move"]) for action in counters.actions[0]], minlength=4)
    assert (abs(counts - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75)).all()


@pytest.mark.parametrize("steps", [[1, 2], [1, -1, 2], [[1, 2, 3]]])
def test_a_wrong_number_of_steps_is_refused(steps):
    with pytest.raises(ValueError, match=r"The stagger is .* steps for 3 generators"):
        play_stagger(
            Counters(3), {"move": MOVE}, np.array(steps), [env_rng(0, i) for i in range(3)]
        )
