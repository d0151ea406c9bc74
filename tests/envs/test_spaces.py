"""From spaces to leaves: every kind, their names and paths, which have a mask, and what is
refused."""

import gymnasium
import numpy as np
import pytest
from toys import Nested

from fastrl.envs import EnvOptions
from fastrl.envs.spaces import leaf_name, leaf_text, leaf_value, spaces_spec
from fastrl.envs.spec import ActionSpec, ObservationSpec
from fastrl.errors import UnsupportedEnvironment

spaces = gymnasium.spaces
ANY = spaces.Discrete(2)
inf = float("inf")


def spec_of(observation=ANY, action=ANY, **options):
    return spaces_spec("x:y", observation, action, EnvOptions(**options))


def observed(space):
    (leaf,) = spec_of(observation=space).observation.values()
    return leaf


def acted(space, **options):
    (leaf,) = spec_of(action=space, **options).action.values()
    return leaf


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "kind"),
    [
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84), "uint8", "image"),
        (spaces.Box(0, 255, (96, 64, 3), np.uint8), (3, 96, 64), "uint8", "image"),
        (spaces.Box(0, 255, (96, 64, 1), np.uint8), (1, 96, 64), "uint8", "image"),
        (spaces.Box(0, 255, (3, 64, 4), np.uint8), (3, 64, 4), "uint8", "image"),
        (spaces.Box(0, 255, (7, 64, 5), np.uint8), (7, 64, 5), "uint8", "image"),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), "uint8", "vector"),
        (spaces.Box(0, 255, (2, 5, 5, 3), np.uint8), (2, 5, 5, 3), "uint8", "vector"),
        (spaces.Box(0, 1, (3, 5, 5), np.float32), (3, 5, 5), "float32", "vector"),
        (spaces.Box(0, 1, (6, 5, 3), np.float32), (6, 5, 3), "float32", "vector"),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32", "vector"),
        (spaces.Box(-1, 1, (), np.float16), (), "float32", "vector"),
        (spaces.Box(-9, 9, (3,), np.int64), (3,), "int32", "vector"),
        (spaces.Box(-(2**31), 2**31 - 1, (3,), np.int64), (3,), "int32", "vector"),
        (spaces.Box(-(2**31) - 1, 9, (3,), np.int64), (3,), "float32", "vector"),
        (spaces.Box(0, 2**31, (3,), np.int64), (3,), "float32", "vector"),
        (spaces.Box(0, 9, (3,), np.uint32), (3,), "int32", "vector"),
        (spaces.Box(-9, 9, (3,), np.int16), (3,), "int16", "vector"),
        (spaces.MultiBinary(5), (5,), "int8", "vector"),
        (spaces.MultiBinary([2, 3]), (2, 3), "int8", "vector"),
    ],
)
def test_stored_form_of_observations(space, shape, dtype, kind):
    assert observed(space) == ObservationSpec(shape, dtype, kind)


@pytest.mark.parametrize(
    ("space", "leaf"),
    [
        (spaces.Discrete(7), ObservationSpec((), "int32", "discrete", n=7)),
        (spaces.Discrete(7, start=-3), ObservationSpec((), "int32", "discrete", 7, start=(-3,))),
        (
            spaces.MultiDiscrete([4, 5], start=[1, -2]),
            ObservationSpec((2,), "int32", "multi_discrete", nvec=(4, 5), start=(1, -2)),
        ),
        (
            spaces.MultiDiscrete([[4, 5, 6], [1, 2, 3]]),
            ObservationSpec(
                (2, 3), "int32", "multi_discrete", nvec=(4, 5, 6, 1, 2, 3), start=(0,) * 6
            ),
        ),
    ],
)
def test_observations_that_are_categories_are_counted_from_zero(space, leaf):
    assert observed(space) == leaf


def box(low, high, dtype):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("space", "leaf"),
    [
        (spaces.Discrete(3, start=5), ActionSpec("discrete", (), "int32", "int64", n=3, start=5)),
        (spaces.Discrete(3, dtype=np.int8), ActionSpec("discrete", (), "int32", "int8", n=3)),
        (
            spaces.MultiDiscrete([2, 3], start=[-1, 4]),
            ActionSpec("multi_discrete", (2,), "int32", "int64", nvec=(2, 3), starts=(-1, 4)),
        ),
        (
            spaces.MultiDiscrete([[2, 3]]),
            ActionSpec(
                "multi_discrete", (2,), "int32", "int64", nvec=(2, 3), starts=(0, 0),
                env_shape=(1, 2),
            ),
        ),
        (spaces.MultiBinary(3), ActionSpec("multi_binary", (3,), "int32", "int8")),
        (
            spaces.MultiBinary((2, 2)),
            ActionSpec("multi_binary", (4,), "int32", "int8", env_shape=(2, 2)),
        ),
        (
            box([-1, 3], [2, 3], np.int64),
            ActionSpec("multi_discrete", (2,), "int32", "int64", nvec=(4, 1), starts=(-1, 3)),
        ),
        (
            box(0, 255, np.uint8),
            ActionSpec(
                "multi_discrete", (1,), "int32", "uint8", nvec=(256,), starts=(0,), env_shape=()
            ),
        ),
        (
            box([[-1.0, 0.5], [-inf, -1e10]], [[inf, 1.5], [inf, 2e6]], np.float64),
            ActionSpec(
                "continuous", (2, 2), "float32", "float64",
                low=(-1, 0.5, -inf, -inf), high=(inf, 1.5, inf, inf),
            ),
        ),
        (
            box(-0.5, 2, np.float32),
            ActionSpec("continuous", (), "float32", "float32", low=(-0.5,), high=(2.0,)),
        ),
    ],
)  # fmt: skip
def test_stored_form_of_actions(space, leaf):
    assert acted(space) == leaf


def test_squash_is_for_the_option_to_say():
    assert acted(spaces.Box(-1, 1, (2,)), action_bounds="squash").squash
    assert not acted(spaces.Box(-1, 1, (2,)), action_bounds="clip").squash


def test_an_adapter_may_know_the_type_that_is_taken_better():
    spec = spaces_spec("x:y", ANY, ANY, EnvOptions(), env_dtype=np.dtype(np.int32))
    assert spec.action["action"].env_dtype == "int32"


def test_a_nested_space_is_its_leaves_by_name_and_path():
    spec = spec_of(Nested.observation_space, Nested.action_space)
    observation = {key: (leaf.path, leaf.kind) for key, leaf in spec.observation.items()}
    assert observation == {
        "state": (("state",), "vector"),
        "camera": (("camera",), "image"),
        "clock/0": (("clock", 0), "discrete"),
        "clock/1": (("clock", 1), "multi_discrete"),
        "clock/2/bits": (("clock", 2, "bits"), "vector"),
        "e~1cho": (("e/cho",), "vector"),
    }
    action = {key: (leaf.path, leaf.kind) for key, leaf in spec.action.items()}
    assert action == {
        "move": (("move",), "discrete"),
        "grip/0": (("grip", 0), "multi_discrete"),
        "grip/1": (("grip", 1), "multi_binary"),
        "force": (("force",), "continuous"),
        "level": (("level",), "multi_discrete"),
    }
    value = Nested().reset(seed=0)[0]
    assert leaf_value(value, ("clock", 1)) is value["clock"][1]
    assert leaf_value(value, ()) is value


def test_names_of_leaves_are_told_apart():
    paths = [("a", "b"), ("a/b",), ("a~1b",), ("a~b",), ("a", 0), ("a0",), (0, "a")]
    names = [leaf_name(path, "obs") for path in paths]
    assert names == ["a/b", "a~1b", "a~01b", "a~0b", "a/0", "a0", "0/a"]
    assert (leaf_name((), "obs"), leaf_name((), "action")) == ("obs", "action")
    assert leaf_text("observation", ("arm", 0)) == "observation['arm'][0]"


def test_parts_that_hold_nothing_are_left_out():
    spec = spec_of(spaces.Dict(a=spaces.Box(-1, 1, (0, 3)), b=ANY, c=spaces.Tuple([])))
    assert list(spec.observation) == ["b"]


@pytest.mark.parametrize(
    ("spaces_given", "field"),
    [
        ({"observation": spaces.Dict({})}, "observation space"),
        ({"observation": spaces.Box(-1, 1, (0,))}, "observation space"),
        ({"action": spaces.Tuple([])}, "action space"),
        ({"action": spaces.Box(-1, 1, (0,))}, "action space"),
        ({"action": spaces.Dict(a=ANY, b=spaces.Box(-1, 1, (2, 0)))}, "action space['b']"),
    ],
)
def test_spaces_that_hold_nothing_are_refused(spaces_given, field):
    with pytest.raises(UnsupportedEnvironment) as caught:
        spec_of(**spaces_given)
    assert str(caught.value) == (
        f"x:y cannot be used: its {field} holds nothing; choose another environment."
    )


REFUSED = [
    (spaces.Text(5), "Text("),
    (spaces.Sequence(spaces.Discrete(2)), "Sequence("),
    (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "OneOf("),
    (spaces.Graph(spaces.Box(-1, 1, (2,)), None), "Graph("),
]


@pytest.mark.parametrize(("space", "name"), REFUSED)
@pytest.mark.parametrize(
    ("around", "path"),
    [
        (lambda space: space, ""),
        (lambda space: spaces.Dict(arm=spaces.Tuple([ANY, space])), "['arm'][1]"),
    ],
)
@pytest.mark.parametrize("field", ["observation", "action"])
def test_other_spaces_are_refused_by_their_place_and_name(space, name, around, path, field):
    with pytest.raises(UnsupportedEnvironment) as caught:
        spec_of(**{field: around(space)})
    text = str(caught.value)
    assert text.startswith(f"x:y cannot be used: its {field} space{path} is {name}")
    assert "MultiBinary" in text and "(--wrap)" in text and "\n" not in text


@pytest.mark.parametrize("field", ["observation", "action"])
def test_keys_that_are_no_strings_are_refused(field):
    with pytest.raises(UnsupportedEnvironment, match=r"takes a Dict with keys that are strings"):
        spec_of(**{field: spaces.Dict({0: ANY})})


@pytest.mark.parametrize(
    ("field", "space"),
    [
        ("observation", spaces.Discrete(65_537)),
        ("observation", spaces.MultiDiscrete([65_000, 537])),
        ("action", spaces.MultiDiscrete([65_000, 537])),
        ("action", spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64)),
        ("action", spaces.Discrete(65_537)),
    ],
)
def test_more_choices_than_can_be_one_hot_are_refused(field, space):
    with pytest.raises(UnsupportedEnvironment) as caught:
        spec_of(**{field: space})
    assert " choices, and at most 65,536 are taken; give it as a Box of floats." in str(
        caught.value
    )


def test_as_many_as_can_be_are_taken():
    assert observed(spaces.Discrete(65_536)).n == 65_536
    assert acted(spaces.MultiDiscrete([65_000, 536])).nvec == (65_000, 536)


# What is a mask.
PAIR = spaces.MultiDiscrete([2, 3])
TREE = spaces.Dict(turn=PAIR, go=spaces.Discrete(2), force=spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (spaces.MultiBinary(4), spaces.Discrete(4)),
        (spaces.MultiBinary([2, 2]), spaces.Discrete(4)),
        (spaces.Tuple([spaces.MultiBinary(4)]), spaces.Discrete(4)),
        (spaces.Box(0, 1, (4,), np.int8), spaces.Discrete(4, start=3)),
        (spaces.MultiBinary(5), PAIR),
        (spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)]), PAIR),
        (spaces.MultiBinary([2, 4]), spaces.MultiDiscrete([4, 4])),
        (spaces.MultiBinary(4), spaces.Box(0, 3, (1,), np.int32)),
        (
            spaces.Dict(turn=spaces.MultiBinary(5), go=spaces.Box(0, 1, (2,))),
            TREE,
        ),
    ],
)
def test_a_part_of_the_observation_of_the_right_size_is_a_mask(mask, action):
    spec = spec_of(spaces.Dict(action_mask=mask, state=ANY), action)
    assert list(spec.observation) == ["state"]
    discrete = ("discrete", "multi_discrete")
    assert [leaf.masked for leaf in spec.action.values()] == [
        leaf.kind in discrete for leaf in spec.action.values()
    ]
    assert spec.masks == {
        key: leaf.n or sum(leaf.nvec) for key, leaf in spec.action.items() if leaf.masked
    }
    # The option has the say.
    space = spaces.Dict(legal=mask, state=ANY)
    assert spec_of(space, action).masks == {}
    assert list(spec_of(space, action, action_mask="legal").observation) == ["state"]
    assert list(spec_of(space, action, action_mask="legal").masks) == list(spec.masks)
    assert spec_of(spaces.Dict(off=mask, state=ANY), action, action_mask="off").masks == {}


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (spaces.MultiBinary(3), spaces.Discrete(4)),
        (spaces.MultiBinary(6), PAIR),  # of pairs of choices
        (spaces.MultiBinary([3, 2]), PAIR),
        (spaces.MultiBinary([4, 2]), spaces.MultiDiscrete([4, 4])),
        (spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2)]), PAIR),
        (spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(2), ANY]), PAIR),
        (spaces.Tuple([spaces.MultiBinary(2), spaces.Text(3)]), PAIR),
        (spaces.Dict(a=spaces.MultiBinary(2), b=spaces.MultiBinary(3)), PAIR),
        (spaces.MultiBinary([3, 2]), spaces.MultiDiscrete([2, 1, 3])),
        (spaces.MultiBinary(2), spaces.MultiBinary(2)),
        (spaces.MultiBinary(2), spaces.Box(-1, 1, (2,))),
        (spaces.Dict(turn=spaces.MultiBinary(5)), TREE),
        (spaces.MultiBinary(7), TREE),
    ],
)
def test_any_other_is_an_observation(mask, action):
    observation = spaces.Dict(action_mask=mask, state=ANY)
    try:
        spec = spec_of(observation, action)
    except UnsupportedEnvironment as error:
        assert "['action_mask'][1] is Text(" in str(error)
    else:
        assert spec.masks == {}
        assert {name.partition("/")[0] for name in spec.observation} == {"action_mask", "state"}


def test_a_mask_alone_is_no_observation():
    with pytest.raises(UnsupportedEnvironment, match="its observation space holds nothing"):
        spec_of(spaces.Dict(action_mask=spaces.MultiBinary(4)), spaces.Discrete(4))
