"""Checkpoints: written atomically, found by name, checked, read as data (`weights_only=True`).

A file holds plain tensors and numbers: ``format``, ``model`` (names to tensors), ``optimizer``,
``moments`` (the normalisers' running statistics), ``steps``, ``updates``, ``episodes``, ``rows``
(that each environment has played), ``seed``, ``seconds``, ``score`` and ``best_score``. The
configuration lies beside it in ``config.toml``. There is no state of random generators: all that is
drawn at random is keyed by the seed and by these counts.

::

    torch's zip file ─ MAGIC (8 bytes) ─ SHA-256 of the zip file (32 bytes)

torch finds its directory before the trailer, so plain `torch.load` reads a file as well; alone it
would not see a flipped bit in a tensor.

torch is imported by those who write or read one: main only looks for names.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl.errors import ConfigError

FORMAT = 4
FOLDER = "checkpoints"
BEST = "best.pt"
"""Another name of the checkpoint with the highest score so far."""

MAGIC = b"\x89FASTRL\n"
_TRAILER_BYTES = len(MAGIC) + hashlib.sha256().digest_size

_NAME = re.compile(r"step_(\d{12})\.pt")
_MILESTONE = re.compile(r"milestone_(\d{12})\.pt")
# Outside the patterns above until it is complete and on the disk; the number is its writer's pid.
_PARTIAL = re.compile(
    r"\.(?:step_\d{12}|milestone_\d{12}|evaluate_\d{12}|best)\.pt\.(\d{1,9})\.partial"
)


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Path of the checkpoint taken after so many steps."""
    return run_dir / FOLDER / f"step_{steps:012d}.pt"


def best_path(run_dir: Path) -> Path:
    """Path of the checkpoint with the highest score."""
    return run_dir / FOLDER / BEST


def evaluation_path(run_dir: Path, steps: int) -> Path:
    """Path of a policy that waits to be evaluated: none of the run's checkpoints."""
    return run_dir / FOLDER / f"evaluate_{steps:012d}.pt"


def remove_evaluations(run_dir: Path) -> None:
    """Remove the policies that nobody came to evaluate before the run was ended."""
    folder = run_dir / FOLDER
    with contextlib.suppress(OSError):
        for path in folder.glob("evaluate_*.pt"):
            path.unlink(missing_ok=True)


def milestone_path(run_dir: Path, steps: int) -> Path:
    """Path under which the checkpoint taken after so many steps is kept for ever."""
    return run_dir / FOLDER / f"milestone_{steps:012d}.pt"


def find_checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first; none where there is no folder to look into.

    A milestone comes before the checkpoint of the same steps, and best.pt, whose name tells no
    steps, before all.
    """
    folder = run_dir / FOLDER
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(filter(_age, names), key=_age)]


def _age(name: str) -> tuple[int, ...]:
    """What checkpoints are sorted by; () for a file that is none."""
    if match := _NAME.fullmatch(name):
        return int(match[1]), 1
    if match := _MILESTONE.fullmatch(name):
        return int(match[1]), 0
    return (-1,) if name == BEST else ()


def refuse_unreadable(run_dir: Path) -> None:
    """Raise ConfigError where a run without a checkpoint must not be begun once more for that.

    So it is where the folder of checkpoints cannot be read, and where all that it holds has been
    put aside as unusable.
    """
    folder = run_dir / FOLDER
    try:
        unusable = [name for name in os.listdir(folder) if name.endswith(".unusable")]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read ({error}), so it is not known whether the run has a "
            "checkpoint; make it readable, or remove it to begin the run once more."
        ) from error
    if unusable:
        raise ConfigError(
            f"{folder} holds only checkpoints that could not be used, such as {min(unusable)}; "
            "remove it to begin the run once more."
        )


def save(run_dir: Path, steps: int, state: dict[str, Any], keep: int | None = None) -> Path:
    """Write a checkpoint so that a reader sees all of it or nothing, and drop the oldest ones.

    What a process that was killed while it saved has left is removed first.

    Args:
        run_dir: the run's folder.
        steps: the number in its name.
        state: what it holds: tensors, numbers and texts in dictionaries and lists.
        keep: how many of the newest stay, milestones and the best aside; None: all.

    Raises OSError where it cannot be written (a full disk, a folder that is gone); then nothing is
    left of it, and the older ones are as they were.
    """
    path = checkpoint_path(run_dir, steps)
    path.parent.mkdir(exist_ok=True)
    _remove_partial(path.parent)
    write(path, steps, state)
    if keep is not None:
        for old in [p for p in find_checkpoints(run_dir) if _NAME.fullmatch(p.name)][:-keep]:
            if old != path:
                # The new one is written; that an old one is left over is no failure to save.
                with contextlib.suppress(OSError):
                    old.unlink()
    return path


def write(path: Path, steps: int, state: dict[str, Any]) -> None:
    """Write what `load` reads, so that a reader sees all of it or nothing; raises as `save`."""
    import torch

    # In memory first: torch's own writer covers the OSError of a full disk with a RuntimeError.
    content = io.BytesIO()
    torch.save({**state, "format": FORMAT, "steps": steps}, content)
    path.parent.mkdir(exist_ok=True)
    with _replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content.getbuffer())
        file.write(trailer(content.getbuffer()))
        file.flush()
        os.fsync(file.fileno())


def trailer(content: bytes | memoryview) -> bytes:
    """What follows the zip file `content`: MAGIC and its SHA-256."""
    return MAGIC + hashlib.sha256(content).digest()


def link(path: Path, target: Path) -> None:
    """Let `target`, in the same folder, be the checkpoint `path` as well, at once and whole.

    A hard link, or a copy where the file system has none. Raises OSError where neither can be;
    what had the name before then still has it.
    """
    with _replacing(target) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give the temporary name under which `path` is to be made; put it in its place at the end.

    The caller syncs the file, this the folder: after a power cut it is there whole or not at all.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        # Still there after an error, or where both were links to one file already.
        with contextlib.suppress(OSError):
            temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_partial(folder: Path) -> None:
    """Remove the unfinished files of processes that have died; one that cannot be is left."""
    for path in folder.iterdir():
        name = _PARTIAL.fullmatch(path.name)
        if name and not _is_another_alive(int(name[1])):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_another_alive(pid: int) -> bool:
    if pid == os.getpid():  # of an earlier process with our number: we are not saving yet
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's
        pass
    return True


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint whose checksum is right; nothing in the file is executed.

    Raises ValueError with a sentence where the file is damaged or of another format.
    """
    import torch

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} is not a readable checkpoint: {error}.") from error
    end = content[-_TRAILER_BYTES:]
    if not end.startswith(MAGIC):
        raise ValueError(
            f"{path} is not a readable checkpoint: it is damaged or of another format, for no "
            "checksum is at its end."
        )
    if end != trailer(memoryview(content)[:-_TRAILER_BYTES]):
        raise ValueError(
            f"{path} is not a readable checkpoint: it is damaged, for its checksum is not that of "
            "its content."
        )
    try:
        # The very bytes that were checked.
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own words are a page of advice, some of it to turn `weights_only` off.
        raise ValueError(
            f"{path} is not a readable checkpoint: it holds more than tensors and numbers."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of format {FORMAT}.")
    return state


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that could be used."""

    path: Path
    state: dict[str, Any]
    warnings: list[str]
    """A sentence for each newer one that could not."""


def load_newest(run_dir: Path, env_id: str, accept: Callable[[dict[str, Any]], None]) -> Loaded:
    """Load the newest checkpoint of a run that can be read and that `accept` takes.

    Args:
        run_dir: the run's folder.
        env_id: names the network in sentences.
        accept: raises KeyError, TypeError, ValueError or RuntimeError for one that does not fit.

    Raises:
        ConfigError: the run has no checkpoint that can be used.
    """
    failures: list[str] = []
    for path in reversed(find_checkpoints(run_dir)):
        try:
            state = _load_fitting(path, env_id, accept)
        except ValueError as error:
            failures.append(str(error))
        else:
            return Loaded(path, state, [f"{text} {path} is used instead." for text in failures])
    if not failures:
        raise ConfigError(f"{run_dir} has no checkpoint yet.")
    raise ConfigError(f"{failures[0]} There is no older checkpoint that can be used.")


def load_chosen(
    run_dir: Path, which: str | Path, env_id: str, accept: Callable[[dict[str, Any]], None]
) -> Loaded:
    """Load the checkpoint of a run that `which` names: newest, best, or the path of a file.

    Arguments and errors are those of `load_newest`; for the other two no other one is taken.
    """
    if which == "newest":
        return load_newest(run_dir, env_id, accept)
    path = best_path(run_dir) if which == "best" else Path(which)
    if which == "best" and not path.exists():
        raise ConfigError(
            f"{run_dir} has no best checkpoint: none was saved with --keep-best once every "
            "environment, and a hundred in all, had finished episodes; take the newest one."
        )
    try:
        return Loaded(path, _load_fitting(path, env_id, accept), [])
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _load_fitting(
    path: Path, env_id: str, accept: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Load a checkpoint that `accept` takes; raises ValueError with a sentence where it is none."""
    state = load(path)
    try:
        accept(state)
    except KeyError as error:
        raise ValueError(f"{path} has no {error}.") from error
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if len(reason) > 200:  # torch lists every parameter
            reason = reason[:200] + " ..."
        raise ValueError(f"{path} does not fit the network of {env_id}: {reason}.") from error
    return state


def best_score(run_dir: Path, evaluated: bool = False) -> tuple[float | None, list[str]]:
    """Score of best.pt, None where there is none; also a sentence where it cannot be used.

    A score of an evaluation (`evaluated`) is not compared with one of training, which is the
    highest of many means: to whom asks for the other kind there is none.

    In that case it is put aside, and the next checkpoint with a score takes its place.
    """
    path = best_path(run_dir)
    if not path.exists():
        return None, []
    try:
        state = load(path)
        same_kind = bool(state.get("evaluated", False)) == evaluated
        return (state.get("score") if same_kind else None), []
    except ValueError as error:
        _put_aside(path)
        return None, [f"{error} The next checkpoint with a score takes its place."]


def newest_milestone(run_dir: Path) -> int:
    """Steps of the newest milestone of a run; 0 where there is none."""
    folder = run_dir / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name[1]) for n in names if (name := _MILESTONE.fullmatch(n))), default=0)


def put_newer_aside(run_dir: Path, loaded: Path) -> None:
    """Rename the checkpoints that are newer than the one loaded: none of them could be used.

    Their numbers are higher than those of the next ones, which would be taken for the old ones.
    """
    for path in find_checkpoints(run_dir):
        if _age(path.name) > _age(loaded.name):
            _put_aside(path)


def _put_aside(path: Path) -> None:
    # In a folder that cannot be written the run goes on as far as it can.
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(".unusable"))
