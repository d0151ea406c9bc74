"""Nested values to rows and back: what is taken, what is refused, and in which words."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from toys import Nested

from fastrl.envs import EnvOptions
from fastrl.envs.conversion import Actions, Masks, Observations, given_in, info_numbers
from fastrl.envs.spaces import spaces_spec, with_masks
from fastrl.envs.spec import sample_actions
from fastrl.errors import UnsupportedEnvironment

spaces = gymnasium.spaces
E = 3


def spec_of(observation=spaces.Discrete(2), action=spaces.Discrete(2)):  # noqa: B008
    return spaces_spec("x:y", observation, action, EnvOptions())


def rows_of(spec, count=E):
    return {
        key: np.full((count, *leaf.shape), 77, leaf.dtype) for key, leaf in spec.observation.items()
    }


def written(space, values, batch):
    """Rows of the observations `values`, one by one or all at once."""
    spec = spec_of(space)
    rows = rows_of(spec, len(values))
    if batch:
        joined = create_empty_array(space, len(values))
        concatenate(space, values, joined)
        observations = Observations("x:y", space, spec.observation, batch=len(values))
        observations.write(joined, rows, slice(None))
    else:
        observations = Observations("x:y", space, spec.observation)
        for i, value in enumerate(values):
            observations.write(value, rows, i)
    return rows


@pytest.mark.parametrize("batch", [False, True])
def test_a_nested_observation_is_its_leaves_in_stored_form(batch):
    space = copy.deepcopy(Nested.observation_space)
    space.seed(0)
    values = [space.sample() for _ in range(E)]
    rows = written(space, values, batch)
    for i, value in enumerate(values):
        number, pair, inner = value["clock"]
        expected = {
            "state": value["state"].astype(np.float32),
            "camera": np.moveaxis(value["camera"], 2, 0),
            "clock/0": number - 3,
            "clock/1": pair - [1, -2],
            "clock/2/bits": inner["bits"],
            "e~1cho": value["e/cho"],
        }
        assert rows.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(rows[key][i], array, err_msg=key)


def test_lists_and_other_types_are_taken_where_nothing_is_lost():
    space = spaces.Dict(
        a=spaces.Box(-9, 9, (2,)),
        b=spaces.Box(-9, 9, (2,), np.int64),
        c=spaces.Discrete(4, start=2),
        d=spaces.MultiDiscrete([[3, 3]], dtype=np.uint8),
        e=spaces.MultiBinary(2),
    )
    spec = spec_of(space)
    rows = rows_of(spec, 1)
    value = {
        "a": [1, True],
        "b": np.array([3, -4], np.int8),
        "c": np.array(5, np.uint8),
        "d": [[2, 0]],
        "e": np.array([True, False]),
        "not in the space": object(),
    }
    Observations("x:y", space, spec.observation).write(value, rows, 0)
    assert {key: array[0].tolist() for key, array in rows.items()} == {
        "a": [1, 1],
        "b": [3, -4],
        "c": 3,
        "d": [[2, 0]],
        "e": [1, 0],
    }


TREE = spaces.Dict(
    arm=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1)]),
    grid=spaces.MultiDiscrete([2, 3], start=[0, 5]),
)
GOOD = {"arm": (np.zeros(2), 1), "grid": [0, 5]}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arm": (np.zeros(2),)}, "observation['arm'][1] is missing"),
        ({"arm": None}, "observation['arm'][0] is missing"),
        ({"arm": (np.zeros(3), 1)}, "observation['arm'][0] is of shape (3,) and type float64"),
        ({"arm": (np.zeros((1, 2)), 1)}, "observation['arm'][0] is of shape (1, 2) and type"),
        ({"arm": ([[1, 2], 3], 1)}, "observation['arm'][0] has parts of different lengths"),
        ({"arm": (["a", "b"], 1)}, "observation['arm'][0] is of shape (2,) and type <U1"),
        ({"arm": (np.zeros(2), 0)}, "observation['arm'][1] is 0, which is not in its space"),
        ({"arm": (np.zeros(2), 4)}, "observation['arm'][1] is 4, which is not in its space"),
        ({"arm": (np.zeros(2), 1.0)}, "observation['arm'][1] is of shape () and type float64"),
        ({"grid": [0, 4]}, "observation['grid'] is [0 4], which is not in its space"),
        ({"grid": [2, 5]}, "observation['grid'] is [2 5], which is not in its space"),
        ({"grid": [-1, 5]}, "observation['grid'] is [-1  5], which is not in its space"),
        ({"grid": [0.5, 5]}, "observation['grid'] is of shape (2,) and type float64"),
    ],
)
def test_what_is_not_in_the_space_is_refused_by_its_place(changed, words):
    spec = spec_of(TREE)
    with pytest.raises(UnsupportedEnvironment) as caught:
        Observations("x:y", TREE, spec.observation).write({**GOOD, **changed}, rows_of(spec), 0)
    text = str(caught.value)
    assert text.startswith(f"x:y cannot be used: its {words}")
    assert text.endswith("; correct the one or the other.")


@pytest.mark.parametrize("value", [None, 3, [np.zeros(2)], (GOOD,)])
def test_what_is_no_dict_is_missing_its_parts(value):
    spec = spec_of(TREE)
    with pytest.raises(UnsupportedEnvironment, match=r"its observation\['arm'\]\[0\] is missing"):
        Observations("x:y", TREE, spec.observation).write(value, rows_of(spec), 0)


def test_one_wrong_number_in_a_batch_is_refused():
    space = spaces.MultiDiscrete([2, 3])
    observations = Observations("x:y", space, spec_of(space).observation, batch=E)
    values = np.zeros((E, 2), int)
    values[2, 1] = 3
    with pytest.raises(UnsupportedEnvironment, match="which is not in its space"):
        observations.write(values, rows_of(spec_of(space)), slice(None))
    # Of one environment alone it would be broadcast.
    with pytest.raises(UnsupportedEnvironment, match=r"is of shape \(2,\) .* says \(3, 2\)"):
        observations.write(values[0], rows_of(spec_of(space)), slice(None))


def stored_actions(spec, count=E):
    rng = np.random.default_rng(0)
    return {key: sample_actions(leaf, count, rng) for key, leaf in spec.action.items()}


ACTIONS = {
    "nested": Nested.action_space,
    "discrete": spaces.Discrete(3, start=4),
    "multi_discrete": spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "box": spaces.Box(-2, 6, (2, 2), np.float64),
    "box of rank 0": spaces.Box(-2, 6, (), np.float32),
    "box of integers": spaces.Box(-2, 6, (), np.int16),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(0, 1, (2,))])]),
}


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_actions_are_in_the_space_and_are_the_environments_own(space):
    spec = spec_of(action=space)
    stored = stored_actions(spec)
    before = copy.deepcopy(stored)
    actions = Actions(spec, space)
    each = actions.each(stored, E)
    together = actions.batched(stored, E)
    assert len(each) == E
    assert all(space.contains(action) for action in each)
    assert batch_space(space, E).contains(together)
    for one, action in zip(iterate(batch_space(space, E), together), each, strict=True):
        np.testing.assert_equal(one, action)
    # An environment may change what it is given.
    for action in [*each, together]:
        for array in arrays_of(action):
            assert array.flags.writeable
            array[...] = 0
    for key, array in before.items():
        np.testing.assert_array_equal(stored[key], array)


def arrays_of(value):
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [a for part in parts for a in arrays_of(part)] if isinstance(value, dict | tuple) else []


def test_a_discrete_action_is_a_python_int_also_inside():
    space = ACTIONS["nested"]
    for action in Actions(spec_of(action=space), space).each(
        stored_actions(spec_of(action=space)), E
    ):
        assert type(action["move"]) is int
        assert list(action) == list(space.spaces)


@pytest.mark.parametrize("name", ["box", "box of rank 0", "box of integers"])
def test_any_other_is_an_array(name):
    spec = spec_of(action=ACTIONS[name])
    for action in Actions(spec, ACTIONS[name]).each(stored_actions(spec), E):
        assert type(action) is np.ndarray and action.shape == ACTIONS[name].shape


@pytest.mark.parametrize("form", ["each", "batched"])
def test_actions_of_another_shape_are_refused(form):
    space = ACTIONS["nested"]
    spec = spec_of(action=space)
    stored = stored_actions(spec)
    stored["level"] = stored["level"][:, :1]
    with pytest.raises(ValueError) as caught:
        getattr(Actions(spec, space), form)(stored, E)
    assert str(caught.value) == (
        "The actions have shape (3, 1), but 3 environments of x:y take (3, 2)."
    )


# Masks.
FIVE = spaces.Discrete(5, start=2)
TURN = spaces.MultiDiscrete([2, 3])


def masks_of(space, in_observation=False, batch=0):
    spec = spec_of(action=space)
    spec = replace(spec, action=with_masks(spec.action))
    rows = {key: np.zeros((E, n), bool) for key, n in spec.masks.items()}
    return Masks(spec, "legal", in_observation, batch), rows


@pytest.mark.parametrize(
    ("space", "given", "row"),
    [
        (FIVE, np.array([0, 1, 1, 0, 0], np.int8), [0, 1, 1, 0, 0]),
        (FIVE, [False, True, True, False, False], [0, 1, 1, 0, 0]),
        (FIVE, np.array([[0.0, 1.0, 0.5, 0, 0]]), [0, 1, 1, 0, 0]),
        (TURN, np.array([0, 1, 1, 0, 0]), [0, 1, 1, 0, 0]),
        (TURN, (np.array([0, 1]), np.array([1, 0, 0])), [0, 1, 1, 0, 0]),
        (TURN, ([0, 1], [1, 0, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 2]), np.array([[0, 1], [1, 1]]), [0, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("in_observation", [False, True])
def test_masks_are_taken_in_every_form(space, given, row, in_observation):
    masks, rows = masks_of(space, in_observation)
    holders = ({"legal": given}, {}) if in_observation else ({}, {"legal": given})
    masks.write(*holders, rows, 1)
    expected = np.zeros((E, len(row)), bool)
    expected[1] = row
    np.testing.assert_array_equal(rows["action"], expected)
    masks.allow_all(rows, 2)
    expected[2] = True
    np.testing.assert_array_equal(rows["action"], expected)


@pytest.mark.parametrize(
    "given",
    [
        np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]),
        (np.array([[0, 1], [1, 0], [0, 0]]), np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]])),
    ],
)
def test_masks_of_a_batch_allow_everything_where_it_is_done(given):
    masks, rows = masks_of(TURN, batch=E)
    before = copy.deepcopy(given)
    masks.write(None, {"legal": given}, rows, slice(None), np.array([2]))
    assert rows["action"].astype(int).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [1] * 5]
    np.testing.assert_equal(given, before)
    with pytest.raises(UnsupportedEnvironment, match="allows none of them"):
        masks.write(None, {"legal": given}, rows, slice(None))


def test_leaves_of_an_action_have_masks_of_their_own():
    masks, rows = masks_of(
        spaces.Dict(turn=TURN, go=spaces.Discrete(2), force=spaces.Box(-1, 1, (2,)))
    )
    assert rows.keys() == {"go", "turn"}
    masks.write(None, {"legal": {"turn": [1, 0, 0, 0, 1], "go": [0, 1]}}, rows, 0)
    assert rows["turn"][0].tolist() == [True, False, False, False, True]
    assert rows["go"][0].tolist() == [False, True]
    with pytest.raises(UnsupportedEnvironment, match=r"there is no info\['legal'\]\['turn'\], whi"):
        masks.write(None, {"legal": {"go": [0, 1]}}, rows, 0)


@pytest.mark.parametrize(
    ("space", "info", "words"),
    [
        (FIVE, {}, "there is no info['legal'], which holds the mask of its actions"),
        (FIVE, None, "there is no info['legal'], which holds"),
        (FIVE, {"legal": [1, 1, 1, 1]}, "info['legal'], the mask of its actions, has 4 entries wh"),
        (FIVE, {"legal": None}, "has 1 entries where there are 5 choices"),
        (FIVE, {"legal": [0] * 5}, "info['legal'], the mask of its actions, allows none of them"),
        (TURN, {"legal": [1, 0, 0, 0, 0]}, "allows none of them"),
        (TURN, {"legal": ([0, 0], [1, 1, 1])}, "allows none of them"),
        (TURN, {"legal": [[1, 0], [1, 0, 1]]}, "is not one array"),
    ],
)
def test_masks_that_are_none_are_refused(space, info, words):
    masks, rows = masks_of(space)
    with pytest.raises(UnsupportedEnvironment) as caught:
        masks.write({}, info, rows, 0)
    text = str(caught.value)
    assert text.startswith("x:y cannot be used: ") and words in text
    assert text.endswith(" (--action-mask names another key, or off).")


@pytest.mark.parametrize("legal", [np.ones(5), np.ones((E, 4)), np.ones((E + 1, 5)), np.ones(7)])
def test_masks_of_a_batch_of_another_shape_are_refused(legal):
    masks, rows = masks_of(FIVE, batch=E)
    with pytest.raises(UnsupportedEnvironment, match=r"info\['legal'\], the mask of its actions, "):
        masks.write(None, {"legal": legal}, rows, slice(None))


@pytest.mark.parametrize(
    ("info", "action", "key", "given"),
    [
        ({"legal": 0}, FIVE, "legal", True),
        ({"legal": 0}, spaces.Dict(a=TURN, b=spaces.Box(-1, 1, (2,))), "legal", True),
        ({"legal": 0}, FIVE, "action_mask", False),
        ({"legal": 0}, spaces.Box(-1, 1, (2,)), "legal", False),
        ({"legal": 0}, spaces.MultiBinary(2), "legal", False),
        ({"off": 0}, FIVE, "off", False),
        ("legal", FIVE, "legal", False),
        (None, FIVE, "legal", False),
    ],
)
def test_info_has_a_mask_or_has_none(info, action, key, given):
    assert given_in(info, spec_of(action=action), EnvOptions(action_mask=key)) is given


def test_numbers_of_info_are_found_by_their_keys():
    info = {
        "a": 3,
        "b": {"c": np.float32(0.5), "d": {"e": True}},
        "x.y": 7,
        "x": {"y": 8},
        "name": "end",
        "list": [1, 2],
        "none": None,
        "array": np.array([4.0]),
        "zero": np.array(2),
    }
    keys = ["a", "b.c", "b.d.e", "x.y", "zero", "array"]
    assert info_numbers(info, keys) == [3, 0.5, 1, 7, 2, 4]
    for key in ("b", "b.d", "b.c.d", "a.b", "name", "list", "none", "missing", "b.missing"):
        assert np.isnan(info_numbers(info, [key])).all(), key
    assert info_numbers(info, []) == []
