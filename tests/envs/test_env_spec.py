"""The pure functions: spaces in, stored form out; stored actions in, the environment's out."""

import gymnasium
import numpy as np
import pytest

from fastrl.envs.spec import (
    ActionSpec,
    action_spec,
    map_action,
    observation_spec,
    sample_actions,
)
from fastrl.errors import UnsupportedEnvironment

spaces = gymnasium.spaces


def box(low, high, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "kind"),
    [
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84), "uint8", "image"),
        (spaces.Box(0, 255, (96, 64, 3), np.uint8), (3, 96, 64), "uint8", "image"),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), "uint8", "vector"),
        (spaces.Box(0, 1, (3, 5, 5), np.float32), (3, 5, 5), "float32", "vector"),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32", "vector"),
        (spaces.Box(-9, 9, (3,), np.int64), (3,), "int32", "vector"),
        (spaces.Box(-9, 9, (3,), np.int16), (3,), "int16", "vector"),
        (spaces.Discrete(7), (), "int32", "discrete"),
    ],
)
def test_stored_form_of_observations(space, shape, dtype, kind):
    spec = observation_spec("x:y", space)
    assert (spec.shape, spec.dtype, spec.kind) == (shape, dtype, kind)
    assert spec.n == (7 if kind == "discrete" else None)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Discrete(3, start=1),
    ],
)
def test_other_observations_are_refused(space):
    with pytest.raises(UnsupportedEnvironment, match=r"^x:y cannot be used: its observation space"):
        observation_spec("x:y", space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 2)),
        spaces.Box(-1, 1, ()),
        spaces.Box(-3, 3, (2,), np.int32),
    ],
)
def test_other_actions_are_refused(space):
    with pytest.raises(UnsupportedEnvironment, match=r"^x:y cannot be used: its action space"):
        action_spec("x:y", space)


def test_discrete_actions_are_counted_from_zero():
    spec = action_spec("x:y", spaces.Discrete(3, start=-1))
    stored = np.array([0, 1, 2], dtype=np.int32)
    mapped = map_action(stored, spec)
    np.testing.assert_array_equal(mapped, [-1, 0, 1])
    assert mapped.dtype == np.int64
    np.testing.assert_array_equal(stored, [0, 1, 2])


def test_actions_that_need_no_change_are_not_copied():
    stored = np.array([0, 1], dtype=np.int32)
    spec = ActionSpec("discrete", (), "int32", "int32", n=2)
    assert map_action(stored, spec) is stored


def test_continuous_actions_are_clipped_in_the_environments_type():
    spec = action_spec("x:y", box([-0.1, -np.inf], [0.3, np.inf], np.float64))
    stored = np.array([[5, 5], [-5, -5], [0.25, 0.5]], dtype=np.float32)
    before = stored.copy()
    mapped = map_action(stored, spec)
    assert mapped.dtype == np.float64
    # 0.3 and -0.1 are not float32 numbers: the bounds must not have been through that type.
    np.testing.assert_array_equal(mapped, [[0.3, 5], [-0.1, -5], [0.25, 0.5]])
    np.testing.assert_array_equal(stored, before)


def test_random_actions_fill_their_space():
    rng = np.random.default_rng(0)
    discrete = sample_actions(ActionSpec("discrete", (), "int32", "int32", n=3), 1000, rng)
    assert set(discrete) == {0, 1, 2} and discrete.dtype == np.int32
    spec = action_spec("x:y", box([-2, 0, -np.inf], [1, 10, np.inf]))
    drawn = sample_actions(spec, 4000, rng)
    assert drawn.shape == (4000, 3) and drawn.dtype == np.float32
    # Five standard errors of the mean of a uniform (width/√12) and a standard normal component.
    width = np.array([3 / np.sqrt(12), 10 / np.sqrt(12), 1.0])
    assert (np.abs(drawn.mean(axis=0) - [-0.5, 5, 0]) < 5 * width / np.sqrt(4000)).all()
    assert drawn[:, 0].min() >= -2 and drawn[:, 0].max() <= 1
    assert sample_actions(spec, 0, rng).shape == (0, 3)
