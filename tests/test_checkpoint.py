"""Checkpoints: all or nothing, checked, found by name, read as data; which are due, and kept."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fastrl import TrainConfig, checkpoint
from fastrl.algo.optimizers import Adam
from fastrl.errors import ConfigError
from fastrl.workers.plan import Start
from fastrl.workers.reports import NoticeReport, SavedReport
from fastrl.workers.saver import Saver


def state() -> dict:
    parameter = torch.arange(4.0)
    optimizer = Adam(parameter, 1e-5)
    optimizer.step(torch.ones(4), torch.tensor(0.1), torch.tensor(False))
    return {
        "model": {"w": parameter},
        "optimizer": optimizer.state(),
        "seed": 3,
    }


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    saved = state()
    path = checkpoint.save(tmp_path, 1234, saved)
    loaded = checkpoint.load(path)
    assert (loaded["steps"], loaded["seed"]) == (1234, 3)
    assert torch.equal(loaded["model"]["w"], saved["model"]["w"])
    assert torch.equal(loaded["optimizer"]["exp_avg"], saved["optimizer"]["exp_avg"])
    assert loaded["optimizer"]["exp_avg"].all()


def test_plain_torch_reads_one_as_well(tmp_path):
    path = checkpoint.save(tmp_path, 7, state())
    for mmap in (False, True):
        loaded = torch.load(path, weights_only=True, mmap=mmap)
        assert loaded["steps"] == 7 and torch.equal(loaded["model"]["w"], state()["model"]["w"])


def test_the_newest_are_kept_and_found_in_order(tmp_path):
    assert checkpoint.find_checkpoints(tmp_path) == []
    for steps in (5, 40, 300, 2000, 10_000):
        checkpoint.save(tmp_path, steps, state(), keep=3)
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


def test_a_single_bit_is_missed_nowhere(tmp_path):
    whole = checkpoint.save(tmp_path, 1, state()).read_bytes()
    rng = random.Random(seed := random.randrange(10**6))
    path = tmp_path / "flipped.pt"
    for place in [*rng.sample(range(len(whole)), 300), *range(len(whole) - 40, len(whole))]:
        content = bytearray(whole)
        content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a readable checkpoint: it is damaged"):
            pytest.fail(f"byte {place}, seed {seed}: {checkpoint.load(path)}")


def test_a_file_that_is_cut_short_or_grows_is_damaged(tmp_path):
    whole = checkpoint.save(tmp_path, 1, state()).read_bytes()
    path = tmp_path / "cut.pt"
    rng = random.Random(seed := random.randrange(10**6))
    for end in [0, 1, *rng.sample(range(len(whole)), 300), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="is not a readable checkpoint: it is damaged"):
            pytest.fail(f"cut after {end} bytes, seed {seed}: {checkpoint.load(path)}")
    for more in (b"\0", whole):
        path.write_bytes(whole + more)
        with pytest.raises(ValueError, match="is not a readable checkpoint: it is damaged"):
            checkpoint.load(path)


def sealed(content: object) -> bytes:
    """A file with the checksum that belongs to it."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue() + checkpoint.trailer(file.getvalue())


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None, "other", "list"])
def test_what_is_no_checkpoint_is_one_sentence(tmp_path, content):
    path = tmp_path / "step_000000000001.pt"
    if content is None:
        whole = checkpoint.save(tmp_path, 1, state()).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "other":
        path.write_bytes(sealed({"format": 999}))
    elif content == "list":
        path.write_bytes(sealed([checkpoint.FORMAT]))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a"):
        checkpoint.load(path)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_checkpoint_is_executed(tmp_path, capsys):
    path = tmp_path / "step_000000000001.pt"
    path.write_bytes(sealed({"format": checkpoint.FORMAT, "model": Evil()}))
    with pytest.raises(ValueError, match="it holds more than tensors and numbers"):
        checkpoint.load(path)
    assert capsys.readouterr().out == ""


def damage(path: Path) -> Path:
    """Flip a bit in the middle, in place: whatever else has this file as well sees it."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return path


def saved(run: Path, steps: int, score: float | None = None) -> Path:
    return checkpoint.save(run, steps, {**state(), "score": score})


def test_a_second_name_is_the_same_file_or_a_copy(tmp_path, monkeypatch):
    first, second = saved(tmp_path, 1, 1.0), saved(tmp_path, 2, 2.0)
    best = checkpoint.best_path(tmp_path)
    for _ in range(2):  # the second time both are one already
        checkpoint.link(first, best)
        assert best.samefile(first)
    checkpoint.link(second, best)
    assert best.samefile(second)

    def no_links(*_):
        raise PermissionError(errno.EPERM, "this file system has no hard links")

    monkeypatch.setattr(os, "link", no_links)
    checkpoint.link(first, best)
    assert checkpoint.load(best)["score"] == 1.0 and not best.samefile(first)
    with pytest.raises(OSError, match="No such file"):
        checkpoint.link(tmp_path / "checkpoints" / "gone", best)
    assert sorted(best.parent.iterdir()) == [best, first, second], "nothing half made is left"
    assert checkpoint.load(best)["score"] == 1.0


def test_milestones_and_the_best_are_not_removed_and_older_than_their_equals(tmp_path):
    first = saved(tmp_path, 10, 1.0)
    checkpoint.link(first, checkpoint.best_path(tmp_path))
    checkpoint.link(first, checkpoint.milestone_path(tmp_path, 10))
    for steps in (20, 30):
        newest = checkpoint.save(tmp_path, steps, state(), keep=1)
    checkpoint.link(newest, checkpoint.milestone_path(tmp_path, 30))
    (newest.parent / "step_1.pt").touch()
    (newest.parent / "step_000000000099.pt.unusable").touch()
    assert [path.name for path in checkpoint.find_checkpoints(tmp_path)] == [
        "best.pt", "milestone_000000000010.pt", "milestone_000000000030.pt",
        "step_000000000030.pt",
    ]  # fmt: skip


def newest(run: Path) -> checkpoint.Loaded:
    return checkpoint.load_newest(run, "some:env", lambda state: None)


def test_a_damaged_one_gives_way_to_the_one_before_and_then_to_a_milestone(tmp_path):
    oldest, middle, last = (saved(tmp_path, steps) for steps in (1, 2, 3))
    assert (newest(tmp_path).path, newest(tmp_path).warnings) == (last, [])
    damage(last)
    loaded = newest(tmp_path)
    assert loaded.path == middle and loaded.state["steps"] == 2
    (warning,) = loaded.warnings
    assert warning.startswith(f"{last} is not a readable checkpoint: it is damaged")
    assert warning.endswith(f" {middle} is used instead.")
    milestone = checkpoint.milestone_path(tmp_path, 1)
    milestone.write_bytes(oldest.read_bytes())
    damage(middle), damage(oldest)
    assert newest(tmp_path).path == milestone
    damage(milestone)
    with pytest.raises(ConfigError, match=r"damaged.* There is no older checkpoint that can be"):
        newest(tmp_path)


def test_what_is_newer_than_the_one_loaded_is_put_aside(tmp_path):
    paths = [saved(tmp_path, steps, score=float(steps)) for steps in (1, 2, 3)]
    best = checkpoint.best_path(tmp_path)
    checkpoint.link(damage(paths[2]), checkpoint.milestone_path(tmp_path, 3))
    checkpoint.link(paths[1], best)
    checkpoint.put_newer_aside(tmp_path, paths[1])
    assert checkpoint.find_checkpoints(tmp_path) == [best, *paths[:2]]
    assert len(list(best.parent.glob("*.unusable"))) == 2
    assert checkpoint.best_score(tmp_path) == (2.0, [])
    damage(best)
    score, (warning,) = checkpoint.best_score(tmp_path)
    assert score is None and "damaged" in warning and not best.exists()
    assert checkpoint.best_score(tmp_path) == (None, [])


def test_a_run_whose_checkpoints_are_there_and_unusable_is_not_begun_once_more(tmp_path):
    checkpoint.refuse_unreadable(tmp_path)
    folder = tmp_path / "checkpoints"
    folder.touch()
    assert checkpoint.find_checkpoints(tmp_path) == []
    with pytest.raises(ConfigError, match="cannot be read"):
        checkpoint.refuse_unreadable(tmp_path)
    folder.unlink()
    folder.mkdir()
    (folder / ".step_000000000001.pt.77.partial").touch()  # its first save was cut off
    checkpoint.refuse_unreadable(tmp_path)
    (folder / "step_000000000001.unusable").touch()
    with pytest.raises(ConfigError, match=r"holds only checkpoints that could not be used"):
        checkpoint.refuse_unreadable(tmp_path)


def test_one_is_chosen_by_word_or_by_path(tmp_path):
    first, last = saved(tmp_path, 1), saved(tmp_path, 2)

    def steps(which) -> int:
        loaded = checkpoint.load_chosen(tmp_path, which, "some:env", lambda state: None)
        return loaded.state["steps"]

    with pytest.raises(ConfigError, match="has no best checkpoint"):
        steps("best")
    checkpoint.link(first, checkpoint.best_path(tmp_path))
    assert [steps(which) for which in ("newest", "best", first, str(last))] == [2, 1, 1, 2]
    damage(first)
    for which in ("best", first):
        with pytest.raises(ConfigError, match="is damaged"):
            steps(which)


class Saving:
    """A saver of a made-up learner, and what it tells."""

    def __init__(self, run: Path, start: Start | None = None, **options) -> None:
        self.run, self.score, self.told = run, None, []
        config = TrainConfig(env="some:env", **options)
        make_state = lambda: {**state(), "score": self.score}  # noqa: E731
        self.saver = Saver(run, config, start or Start(), make_state, self.told.append)

    def save(self, steps: int, score: float | None = None) -> None:
        self.score = score
        assert self.saver.save(steps) is None

    @property
    def names(self) -> list[str]:
        return [path.name for path in checkpoint.find_checkpoints(self.run)]


def test_updates_fall_on_the_same_numbers_before_and_after_a_resume(tmp_path):
    for begin in (0, 7):
        run = tmp_path / str(begin)
        run.mkdir()
        saving = Saving(run, Start(updates=begin), save_every="5u", keep=100)
        for update in range(begin + 1, 22):
            saving.saver.save_if_due(update * 10, update)
        assert [int(name[5:17]) for name in saving.names] == [
            update * 10 for update in (5, 10, 15, 20) if update > begin
        ]


def test_seconds_are_counted_from_the_last_one(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    saving = Saving(tmp_path, save_every="10s", keep=100)
    for second in range(36):
        now[0] = 100.0 + second
        saving.saver.save_if_due(second, second)
    assert [int(name[5:17]) for name in saving.names] == [10, 20, 30]


def test_the_best_is_the_highest_score_over_all_resumes(tmp_path):
    best = checkpoint.best_path(tmp_path)
    saving = Saving(tmp_path, keep=1)
    saving.save(1)
    assert not best.exists(), "no score, no best"
    for steps, score, expected in [(2, -5.0, 2), (3, -7.0, 2), (4, None, 2), (5, 0.0, 5)]:
        saving.save(steps, score)
        loaded = checkpoint.load(best)
        assert (loaded["steps"], loaded["score"]) == (expected, loaded["best_score"])
    assert saving.names == ["best.pt", "step_000000000005.pt"]
    state_of = checkpoint.load(checkpoint.checkpoint_path(tmp_path, 5))
    resumed = Saving(tmp_path, Start(steps=5, best_score=state_of["best_score"]))
    resumed.save(6, -1.0)
    assert checkpoint.load(best)["steps"] == 5
    assert checkpoint.load(checkpoint.checkpoint_path(tmp_path, 6))["best_score"] == 0.0
    resumed.save(7, 0.5)
    assert checkpoint.load(best)["steps"] == 7
    best.unlink()
    resumed.save(8, 0.25)
    assert checkpoint.load(best)["steps"] == 8, "the best of those that are there"


def test_no_best_is_kept_where_none_is_wanted(tmp_path):
    saving = Saving(tmp_path, keep_best=False)
    saving.save(1, 3.0)
    assert saving.names == ["step_000000000001.pt"]
    assert checkpoint.load(checkpoint.checkpoint_path(tmp_path, 1))["best_score"] == 3.0


def test_milestones_are_the_first_at_or_after_each_multiple(tmp_path):
    saving = Saving(tmp_path, Start(steps=150), keep=1, milestone_every=100)
    for steps in (160, 199, 200, 250, 299, 310, 399, 730, 799):
        saving.save(steps)
    milestones = [int(name[10:22]) for name in saving.names if name.startswith("milestone")]
    # That of 100 is not there (a kill may have come between): the first one now makes up for it.
    assert milestones == [160, 200, 310, 730]
    assert saving.names[-1] == "step_000000000799.pt" and len(saving.names) == 5


def test_what_cannot_be_written_is_told_and_the_next_is_tried(tmp_path, monkeypatch):
    saving = Saving(tmp_path, milestone_every=100)
    folder = tmp_path / "checkpoints"
    folder.touch()
    saving.score = 1.0
    assert "exists" in saving.saver.save(100)
    (told,) = saving.told
    assert told.error is not None and "no checkpoint could be written" in told.describe()
    folder.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "link", no_space)
        saving.save(110, 1.0)
    assert [type(report) for report in saving.told[1:]] == [SavedReport, NoticeReport, NoticeReport]
    assert "best.pt could not be written: [Errno 28]" in saving.told[2].text
    saving.save(120, 0.5)
    assert saving.names == [
        "best.pt", "step_000000000110.pt", "milestone_000000000120.pt", "step_000000000120.pt",
    ]  # fmt: skip
    assert checkpoint.load(checkpoint.best_path(tmp_path))["steps"] == 120


def no_space(*_) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
