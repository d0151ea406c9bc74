"""Checkpoints: all or nothing, found by name, read as data."""

from __future__ import annotations

import pickle

import pytest
import torch

from fastrl import checkpoint


def state() -> dict:
    parameter = torch.nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.Adam([parameter], fused=True)
    parameter.grad = torch.ones(4)
    optimizer.step()
    return {
        "model": {"w": parameter.detach().clone()},
        "optimizer": optimizer.state_dict(),
        "seed": 3,
    }


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    saved = state()
    path = checkpoint.save(tmp_path, 1234, saved)
    loaded = checkpoint.load(path)
    assert (loaded["steps"], loaded["seed"]) == (1234, 3)
    assert torch.equal(loaded["model"]["w"], saved["model"]["w"])
    moments, expected = loaded["optimizer"]["state"][0], saved["optimizer"]["state"][0]
    assert torch.equal(moments["exp_avg"], expected["exp_avg"])


def test_the_newest_are_kept_and_found_in_order(tmp_path):
    assert checkpoint.find_checkpoints(tmp_path) == []
    for steps in (5, 40, 300, 2000, 10_000):
        checkpoint.save(tmp_path, steps, state())
    found = [checkpoint.load(path)["steps"] for path in checkpoint.find_checkpoints(tmp_path)]
    assert found == [300, 2000, 10_000]


def test_a_save_that_fails_leaves_nothing_behind(tmp_path):
    checkpoint.save(tmp_path, 1, state())
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        checkpoint.save(tmp_path, 2, {"model": lambda: None})
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000000000001.pt"]


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None, "other"])
def test_what_is_no_checkpoint_is_one_sentence(tmp_path, content):
    path = tmp_path / "step_000000000001.pt"
    if content is None:
        whole = checkpoint.save(tmp_path, 1, state()).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "other":
        torch.save({"format": 999}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a"):
        checkpoint.load(path)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_checkpoint_is_executed(tmp_path, capsys):
    path = tmp_path / "step_000000000001.pt"
    torch.save({"format": checkpoint.FORMAT, "model": Evil()}, path)
    with pytest.raises(ValueError, match="is not a readable checkpoint"):
        checkpoint.load(path)
    assert capsys.readouterr().out == ""
