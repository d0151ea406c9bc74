"""Images in one native pass, against the same in several passes of torch."""

from __future__ import annotations

import pytest
import torch

from fastrl.kernels import MOST_CHANNELS, images_to_bf16, images_to_f32
from fastrl.models.pixels import CLIP, PickedImages, PixelStatistics, to_channels_last

SHAPES = [(4, 84, 84), (1, 36, 36), (3, 61, 47), (4, 5, 5), (7, 8, 8), (MOST_CHANNELS, 9, 3)]


def images(count: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (count, *shape), generator=generator).byte()


def statistics(shape: tuple[int, ...]) -> PixelStatistics:
    generator = torch.Generator().manual_seed(4)
    scale = torch.rand(shape, generator=generator) * 0.2
    return PixelStatistics(torch.rand(shape, generator=generator) * 255, scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
def test_all_rows_are_what_torch_makes_of_them_bit_by_bit(shape, dtype, normalised):
    rows, stats = images(5, shape), statistics(shape) if normalised else None
    found = to_channels_last(rows, dtype, stats)
    expected = rows.float()
    if stats is not None:
        expected = ((expected - stats.mean) * stats.scale).clamp(-CLIP, CLIP)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_squares_of_pixels_become_channels(shape, side, dtype):
    rows, stats = images(3, shape), statistics(shape)
    whole = to_channels_last(rows, dtype, stats)
    C, H, W = shape
    found = to_channels_last(rows, dtype, stats, side)
    assert found.shape == (3, side * side * C, H // side, W // side)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for dy in range(side):
        for dx in range(side):
            first = (dy * side + dx) * C
            cut = whole[:, :, dy::side, dx::side][:, :, : H // side, : W // side]
            assert torch.equal(found[:, first : first + C], cut)
    # As what is not native does it: pixels of another type.
    assert torch.equal(to_channels_last(rows.short(), dtype, stats, side), found)


def test_both_ends_of_the_clamp_are_reached():
    rows = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 4, 70, 2)
    stats = PixelStatistics(torch.full((4, 70, 2), 128.0), torch.ones(4, 70, 2))
    for dtype in (torch.float32, torch.bfloat16):
        found = to_channels_last(rows, dtype, stats)
        assert found[..., 0].unique().tolist() == [-CLIP]
        assert found[..., 1].unique().tolist() == [CLIP]


@pytest.mark.parametrize("into, dtype", [(images_to_f32, torch.float32), (images_to_bf16, None)])
def test_rows_are_taken_in_the_order_of_the_index_more_than_once_if_asked(into, dtype):
    rows, index = images(6, (4, 9, 10)), torch.tensor([5, 0, 0, 3])
    out = torch.zeros((4, 9, 10, 4), dtype=dtype or torch.uint16)
    into(rows, index, None, None, CLIP, out)
    values = out if dtype else out.view(torch.bfloat16).float()
    assert torch.equal(values.permute(0, 3, 1, 2), rows[index].float())


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"index": torch.tensor([0, 2])}, "Row 2 was asked for, but there are 2."),
        ({"index": torch.tensor([0, -1])}, "Row -1 was asked for, but there are 2."),
        ({"index": torch.arange(3)}, "The number of rows to write is 2, expected 3."),
        ({"out": torch.zeros(2, 5, 6, 3)}, "The size of a row is 90, expected 120."),
        ({"mean": None}, "The number of scales is 0, expected 1."),
        ({"mean": torch.zeros(4, 5, 5)}, "The size of the means is 100, expected 120."),
        ({"scale": torch.zeros(4, 5, 5)}, "The size of the scales is 100, expected 120."),
        ({"side": 2}, "The size of a row is 120, expected 96."),
        ({"side": 6}, "Squares of 6 pixels do not fit into the images."),
        ({"side": 0}, "Squares of 0 pixels do not fit into the images."),
        ({"rows": images(2, (65, 1, 1)), "out": torch.zeros(2, 1, 1, 65)}, "have 65 channels"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_is_written(change, sentence):
    shape = (4, 5, 6)
    given = {
        "rows": images(2, shape), "index": torch.arange(2), "mean": torch.zeros(shape),
        "scale": torch.zeros(shape), "clip": CLIP, "out": torch.full((2, 5, 6, 4), 7.0),
    } | change  # fmt: skip
    before = given["out"].clone()
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        images_to_f32(**given)
    assert torch.equal(given["out"], before)


def test_picked_images_are_read_where_they_lie_and_cut_in_parts():
    rows, stats = images(6, (4, 9, 10)), statistics((4, 9, 10))
    picked = PickedImages(rows, torch.tensor([4, 1, 1, 0, 5]))
    whole = to_channels_last(rows[picked.rows], torch.float32, stats)
    assert torch.equal(picked.copied(), rows[picked.rows])
    assert torch.equal(to_channels_last(picked, torch.float32, stats), whole)
    assert torch.equal(to_channels_last(picked.part(1, 3), torch.float32, stats), whole[1:3])
    assert torch.equal(to_channels_last(picked, torch.float16, stats), whole.half())
