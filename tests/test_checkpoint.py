"""Checkpoints: all or nothing, found by name, read as data."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys

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


def in_a_process(body: str, run_dir) -> subprocess.CompletedProcess[str]:
    """Run statements after the imports they need; `run_dir` is a name for the folder."""
    head = f"""
import os, resource, signal
from pathlib import Path
import torch
from fastrl import checkpoint
run_dir = Path({str(run_dir)!r})
"""
    call = [sys.executable, "-c", head + body]
    return subprocess.run(call, capture_output=True, text=True, timeout=120)


def test_a_disk_that_is_full_is_an_os_error_and_the_older_ones_stay(tmp_path):
    older = checkpoint.save(tmp_path, 1, state())
    child = in_a_process(
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    checkpoint.save(run_dir, 2, {"model": {"w": torch.zeros(2**20)}})
except OSError as error:
    print(error.errno)
checkpoint.save(run_dir, 3, {"model": {"w": torch.zeros(2**10)}})
""",
        tmp_path,
    )
    assert (child.returncode, child.stdout) == (0, f"{errno.EFBIG}\n"), child.stderr
    newer = checkpoint.checkpoint_path(tmp_path, 3)
    assert sorted(older.parent.iterdir()) == [older, newer]
    assert checkpoint.load(older)["seed"] == 3
    assert checkpoint.load(newer)["steps"] == 3


def test_what_a_killed_save_has_left_goes_with_the_next(tmp_path):
    child = in_a_process(
        """
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save(run_dir, 2, {"model": {"w": torch.zeros(4)}})
""",
        tmp_path,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left.name.startswith(".step_000000000002.pt.") and left.stat().st_size > 0
    assert checkpoint.find_checkpoints(tmp_path) == []
    of_the_living = left.with_name(f".step_000000000002.pt.{os.getppid()}.partial")
    of_the_living.touch()
    of_our_number = left.with_name(f".step_000000000001.pt.{os.getpid()}.partial")
    of_our_number.touch()
    path = checkpoint.save(tmp_path, 3, state())
    assert sorted(path.parent.iterdir()) == [of_the_living, path]


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
