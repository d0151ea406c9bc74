"""What follows a step, against the same in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from fastrl.kernels import RowFinisher

SLOTS, T, E = 2, 3, 37


class Rows:
    """The arrays of a group, filled at random, and the finisher over them."""

    def __init__(self, scale=1.0, limit=None, sign=False) -> None:
        rng = np.random.default_rng(0)
        self.reward = rng.normal(size=E).astype(np.float32) * 3
        self.reward[:3] = [0.0, -0.0, 100.0]
        self.over = rng.random(E) < 0.2
        self.terminated = rng.random((SLOTS, T, E)) < 0.2
        self.truncated = rng.random((SLOTS, T, E)) < 0.2
        self.ignored = rng.random((SLOTS, T + 1, E)) < 0.2
        self.stored = np.full((SLOTS, T, E), 9, np.float32)
        self.returns = rng.normal(size=E)
        self.lengths = rng.integers(100, size=E)
        self.finisher = RowFinisher(
            self.reward, self.over, self.terminated, self.truncated, self.ignored, self.stored,
            self.returns, self.lengths, scale, limit, sign,
        )  # fmt: skip


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, lambda r: r),
        ({"scale": 0.5}, lambda r: r * np.float32(0.5)),
        ({"sign": True}, np.sign),
        ({"limit": 1.5}, lambda r: np.clip(r, -1.5, 1.5)),
        ({"scale": 2.0, "limit": 1.0}, lambda r: np.clip(r * 2, -1, 1)),
    ],
)
def test_a_row_is_finished_as_numpy_would(options, expected):
    rows = Rows(**options)
    returns, lengths, ignored = rows.returns.copy(), rows.lengths.copy(), rows.ignored.copy()
    slot, row = 1, 2
    found = rows.finisher.finish(slot, row)
    valid = ~ignored[slot, row]
    assert found == (
        valid.sum(), True, rows.terminated[slot, row].any(), rows.over.any()
    )  # fmt: skip
    np.testing.assert_array_equal(rows.stored[slot, row], expected(rows.reward))
    np.testing.assert_array_equal(rows.returns, returns + rows.reward.astype(np.float64))
    np.testing.assert_array_equal(rows.lengths, lengths + valid)
    ignored[slot, row + 1] = rows.terminated[slot, row] | rows.truncated[slot, row]
    np.testing.assert_array_equal(rows.ignored, ignored, "only the next row was written")
    rows.stored[slot, row] = 9
    assert (rows.stored == 9).all(), "only this row's rewards were written"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 20, E - 1])
def test_a_reward_that_is_not_finite_is_seen_wherever_it_is(bad, at):
    rows = Rows()
    rows.reward[at] = bad
    assert rows.finisher.finish(0, 0)[1] is False


def test_what_did_not_happen_is_not_told():
    rows = Rows()
    rows.over[:] = False
    rows.terminated[0, 1] = False
    assert rows.finisher.finish(0, 1)[2:] == (False, False)
    rows.over[E - 1] = rows.terminated[0, 1, 0] = True
    assert rows.finisher.finish(0, 1)[2:] == (True, True)


def test_rows_that_there_are_not_and_arrays_that_do_not_fit_are_refused():
    rows = Rows()
    for slot, row in ((SLOTS, 0), (0, T)):
        with pytest.raises(ValueError, match=f"There is no row {row} of slot {slot}"):
            rows.finisher.finish(slot, row)
    with pytest.raises(ValueError, match="The number of environments is 5, expected 37"):
        RowFinisher(
            rows.reward, rows.over[:5].copy(), rows.terminated, rows.truncated, rows.ignored,
            rows.stored, rows.returns, rows.lengths, 1.0, None, False,
        )  # fmt: skip
    with pytest.raises(ValueError, match="The number of rows is 2, expected 3"):
        RowFinisher(
            rows.reward, rows.over, rows.terminated, rows.truncated, rows.ignored[:, :T].copy(),
            rows.stored, rows.returns, rows.lengths, 1.0, None, False,
        )  # fmt: skip


def test_arrays_that_would_have_to_be_copied_are_refused():
    """A copy would be written, or read, in place of what the caller holds."""
    rows = Rows()
    arrays = [
        rows.reward, rows.over, rows.terminated, rows.truncated, rows.ignored, rows.stored,
        rows.returns, rows.lengths,
    ]  # fmt: skip
    for at, array in enumerate(arrays):
        strided = np.repeat(array, 2, axis=-1)[..., ::2]
        other = array.astype(np.float16)
        for wrong in (strided, other):
            with pytest.raises(TypeError):
                RowFinisher(*arrays[:at], wrong, *arrays[at + 1 :], 1.0, None, False)
