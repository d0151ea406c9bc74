"""Stored actions in, the environment's own out; and random ones."""

import itertools

import numpy as np
import pytest

from fastrl.envs.spec import ActionSpec, map_action, sample_actions

inf = float("inf")


def continuous(low, high, dtype="float32", squash=False):
    """A leaf with these bounds, which may be nested lists."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    return ActionSpec(
        "continuous",
        low.shape,
        "float32",
        dtype,
        low=tuple(low.ravel().tolist()),
        high=tuple(high.ravel().tolist()),
        squash=squash,
    )


@pytest.mark.parametrize(
    ("spec", "stored", "taken"),
    [
        (ActionSpec("discrete", (), "int32", "int64", n=3, start=-1), [0, 1, 2], [-1, 0, 1]),
        (ActionSpec("discrete", (), "int32", "int8", n=3), [0, 2], [0, 2]),
        (
            ActionSpec(
                "multi_discrete", (2,), "int32", "int64", nvec=(2, 3), starts=(-1, 4)
            ),
            [[0, 0], [1, 2]],
            [[-1, 4], [0, 6]],
        ),
        (
            ActionSpec(
                "multi_discrete", (2,), "int32", "int8", nvec=(2, 3), starts=(0, 1),
                env_shape=(2, 1),
            ),
            [[0, 0], [1, 2]],
            [[[0], [1]], [[1], [3]]],
        ),
        (
            ActionSpec(
                "multi_discrete", (1,), "int32", "uint8", nvec=(256,), starts=(0,), env_shape=()
            ),
            [[0], [255]],
            [0, 255],
        ),
        (
            ActionSpec("multi_binary", (4,), "int32", "int8", env_shape=(2, 2)),
            [[0, 1, 1, 0]],
            [[[0, 1], [1, 0]]],
        ),
    ],
)  # fmt: skip
def test_integers_are_counted_from_the_environments_start(spec, stored, taken):
    stored = np.array(stored, np.int32)
    before = stored.copy()
    mapped = map_action(stored, spec)
    np.testing.assert_array_equal(mapped, taken)
    assert mapped.dtype == spec.env_dtype and mapped.shape == np.shape(taken)
    assert mapped.flags.c_contiguous
    np.testing.assert_array_equal(stored, before)


def test_actions_that_need_no_change_are_not_copied():
    stored = np.array([0, 1], dtype=np.int32)
    spec = ActionSpec("discrete", (), "int32", "int32", n=2)
    assert map_action(stored, spec) is stored


def test_minus_one_to_one_is_stretched_to_the_bounds_and_others_are_clipped():
    # 0.3 and -0.1 are no float32 numbers: the bounds must not have been through that type.
    spec = continuous(
        [-0.1, -inf, -inf, 1.0, -4], [0.3, inf, 2.5, inf, 4], dtype="float64"
    )  # fmt: skip
    stored = np.array(
        [[5, 5, 5, 5, 5], [-5, -5, -5, -5, -5], [0.5, 0.5, 0.5, 0.5, 0.5]], dtype=np.float32
    )
    before = stored.copy()
    mapped = map_action(stored, spec)
    assert mapped.dtype == np.float64
    np.testing.assert_array_equal(mapped[0], [0.3, 5, 2.5, 5, 4])
    np.testing.assert_array_equal(mapped[1], [-0.1, -5, -5, 1, -4])
    np.testing.assert_allclose(mapped[2], [0.2, 0.5, 0.5, 1, 2], rtol=1e-15)
    np.testing.assert_array_equal(stored, before)


SHAPES = {"rank 0": (), "rank 1": (5,), "rank 2": (2, 3)}
BOUNDS = {
    "bounded": [(-0.1, 0.3), (2e38, 3e38), (-3e38, 3e38), (7.0, 7.0), (-1e-30, 0.0)],
    "mixed": [(-0.1, 0.3), (-inf, inf), (-inf, 2.0), (-1.0, inf), (5.0, 6.0)],
    "free": [(-inf, inf), (-2.0, inf), (-inf, 0.5)],
}
LEAVES = [
    continuous(
        *(
            np.resize([pair[end] for pair in BOUNDS[bounds]], SHAPES[rank])
            for end in (0, 1)
        ),
        dtype=dtype,
        squash=squash,
    )
    for bounds, rank, dtype, squash in itertools.product(
        BOUNDS, SHAPES, ("float32", "float64"), (False, True)
    )
]  # fmt: skip


@pytest.mark.parametrize("spec", LEAVES, ids=lambda s: f"{s.low}-{s.env_dtype}-{s.squash}")
def test_what_every_continuous_leaf_promises(spec):
    low = np.array(spec.low, spec.env_dtype).reshape(spec.shape)
    high = np.array(spec.high, spec.env_dtype).reshape(spec.shape)
    both = np.isfinite(low) & np.isfinite(high)
    # One sorted column per element.
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.normal(size=400) * 3, np.linspace(-1.25, 1.25, 101), [-3e38, -1, 0, 1, 3e38]]
    )
    stored = np.broadcast_to(np.sort(x).reshape(-1, *[1] * low.ndim), (len(x), *low.shape))
    stored = stored.astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        mapped = map_action(stored, spec)
    assert mapped.shape == stored.shape and mapped.dtype == spec.env_dtype
    assert mapped.flags.c_contiguous and not np.may_share_memory(mapped, stored)
    assert np.isfinite(mapped).all()
    # In the environment's own type, to the bit.
    assert (mapped >= low).all() and (mapped <= high).all()
    assert (np.diff(mapped, axis=0) >= 0).all()
    # An element without two bounds is what was drawn, as far as the bound it has.
    clipped = np.clip(stored, low, high)
    np.testing.assert_array_equal(mapped[:, ~both], clipped[:, ~both].astype(spec.env_dtype))
    # The formula, in more than the environment's precision.
    wide = stored.astype(np.longdouble)
    unit = np.tanh(wide) if spec.squash else np.clip(wide, -1, 1)
    lo, hi = low.astype(np.longdouble), high.astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        expected = np.where(both, lo + (unit + 1) / 2 * (hi - lo), np.clip(wide, lo, hi))
    eps = np.finfo(spec.env_dtype).eps
    scale = np.where(both, np.maximum(abs(lo), abs(hi)), abs(expected))
    assert (abs(mapped - expected) <= 8 * eps * scale).all()
    # One environment's action does not depend on the others'.
    np.testing.assert_array_equal(map_action(stored[7:8], spec), mapped[7:8])


@pytest.mark.parametrize("squash", [False, True])
def test_random_actions_are_uniform_between_two_bounds_and_normal_elsewhere(squash):
    rng = np.random.default_rng(0)
    low, high = [[-2, 0], [-inf, -inf]], [[1, 10], [inf, 0]]
    spec = continuous(low, high, squash=squash)
    drawn = sample_actions(spec, 8000, rng)
    assert drawn.shape == (8000, 2, 2) and drawn.dtype == np.float32
    taken = map_action(drawn, spec)
    # Each tenth of a uniform and of a normal distribution holds a tenth, to five standard errors.
    normal = [-1.2815516, -0.8416212, -0.5244005, -0.2533471, 0.0]
    normal += [-edge for edge in normal[3::-1]]
    for values, edges in (
        (taken[:, 0, 0], np.linspace(-2, 1, 11)[1:-1]),
        (taken[:, 0, 1], np.linspace(0, 10, 11)[1:-1]),
        (taken[:, 1, 0], normal),
        (drawn[:, 1, 1], normal),
    ):
        counts = np.bincount(np.digitize(values, edges), minlength=10)
        assert len(counts) == 10
        assert (abs(counts - 800) < 5 * np.sqrt(8000 * 0.1 * 0.9)).all()
    assert taken[:, 0, 0].min() >= -2 and taken[:, 0, 0].max() <= 1
    assert (taken[:, 1, 1] <= 0).all()
    assert sample_actions(spec, 0, rng).shape == (0, 2, 2)


TURNS = ActionSpec(
    "multi_discrete", (2,), "int32", "int64", nvec=(2, 4), starts=(1, 5), masked=True
)
FIVE = ActionSpec("discrete", (), "int32", "int64", n=5, start=-2, masked=True)
BITS = ActionSpec("multi_binary", (3,), "int32", "int8")


@pytest.mark.parametrize(
    ("spec", "mask"),
    [
        (FIVE, None),
        (FIVE, [0, 1, 0, 1, 1]),
        (FIVE, [1, 0, 0, 0, 0]),
        (FIVE, [0, 0, 0, 0, 1]),
        (TURNS, None),
        (TURNS, [1, 1, 1, 0, 0, 1]),
        (TURNS, [0, 1, 0, 1, 0, 1]),
        (BITS, None),
    ],
)
def test_random_choices_are_uniform_over_what_is_allowed(spec, mask):
    count = 6000
    rng = np.random.default_rng(1)
    masks = None if mask is None else np.tile(np.array(mask, bool), (count, 1))
    drawn = sample_actions(spec, count, rng, masks)
    assert drawn.shape == (count, *spec.shape) and drawn.dtype == np.int32
    sizes = [2] * 3 if spec is BITS else spec.nvec or (spec.n,)
    allowed = np.split(np.array(mask or [1] * sum(sizes)), np.cumsum(sizes)[:-1])
    whole = [range(size) for size in sizes]
    # The joint distribution: elements are independent of each other.
    counts = dict.fromkeys(itertools.product(*whole), 0)
    for row in drawn.reshape(count, -1):
        counts[tuple(row)] += 1
    p = 1 / np.prod([part.sum() for part in allowed])
    for choice, times in counts.items():
        if all(part[k] for part, k in zip(allowed, choice, strict=True)):
            assert abs(times - count * p) <= 5 * np.sqrt(count * p * (1 - p))
        else:
            assert times == 0


@pytest.mark.parametrize("spec", [FIVE, TURNS], ids=["discrete", "multi_discrete"])
def test_masks_are_those_of_each_row_and_use_as_many_numbers(spec):
    masks = np.random.default_rng(2).integers(2, size=(500, spec.mask_size)).astype(bool)
    sizes = spec.nvec or (spec.n,)
    for first, size in zip(np.cumsum((0, *sizes)), sizes, strict=False):
        masks[np.arange(500), first + np.random.default_rng(3).integers(size, size=500)] = True
    rngs = [np.random.default_rng(4) for _ in range(3)]
    masked = sample_actions(spec, 500, rngs[0], masks).reshape(500, -1)
    for k, first in enumerate(np.cumsum((0, *sizes))[:-1]):
        assert masks[np.arange(500), first + masked[:, k]].all()
    # A mask that allows all changes nothing, and none changes how many numbers are used.
    free = sample_actions(spec, 500, rngs[1])
    np.testing.assert_array_equal(free, sample_actions(spec, 500, rngs[2], np.ones_like(masks)))
    assert len({rng.random() for rng in rngs}) == 1


def test_a_mask_is_as_wide_as_the_choices():
    assert (FIVE.mask_size, TURNS.mask_size) == (5, 6)
    with pytest.raises(AssertionError, match="only discrete"):
        _ = BITS.mask_size
