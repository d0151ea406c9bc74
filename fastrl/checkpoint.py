"""Checkpoints: written atomically, found by name, read as data (`weights_only=True`).

A file holds plain tensors and numbers: ``format``, ``model`` (names to tensors), ``optimizer``,
``moments`` (the normalisers' running statistics), ``steps``, ``updates``, ``rows`` (that each
environment has played), ``seed`` and ``seconds``. The configuration lies beside it in
``config.toml``. There is no state of random generators: all that is drawn at random is keyed by the
seed and by these counts.

torch is imported by those who write or read one: main only looks for names.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl.errors import ConfigError

FORMAT = 2
FOLDER = "checkpoints"
KEEP = 3
"""Newest checkpoints kept: the last one, and two to fall back on."""

_NAME = re.compile(r"step_(\d{12})\.pt")
# Outside the pattern above until it is complete and on the disk; the number is its writer's pid.
_PARTIAL = re.compile(r"\.step_\d{12}\.pt\.(\d{1,9})\.partial")


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Path of the checkpoint taken after so many steps."""
    return run_dir / FOLDER / f"step_{steps:012d}.pt"


def find_checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def save(run_dir: Path, steps: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint so that a reader sees all of it or nothing, and drop the oldest ones.

    What a process that was killed while it saved has left is removed first.

    Raises OSError where it cannot be written (a full disk, a folder that is gone); then nothing is
    left of it, and the older ones are as they were.
    """
    import torch

    # In memory first: torch's own writer covers the OSError of a full disk with a RuntimeError.
    content = io.BytesIO()
    torch.save({"format": FORMAT, "steps": steps, **state}, content)
    path = checkpoint_path(run_dir, steps)
    path.parent.mkdir(exist_ok=True)
    _remove_partial(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    for old in find_checkpoints(run_dir)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


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
    """Read a checkpoint; nothing in the file is executed.

    Raises ValueError with a sentence where the file is damaged or of another format.
    """
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own words are a page of advice, some of it to turn `weights_only` off.
        reason = (
            str(error)
            if isinstance(error, OSError)
            else "it is cut short, damaged, or holds more than tensors and numbers"
        )
        raise ValueError(f"{path} is not a readable checkpoint: {reason}.") from error
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
            state = load(path)
        except ValueError as error:
            failures.append(str(error))
            continue
        try:
            accept(state)
        except KeyError as error:
            failures.append(f"{path} has no {error}.")
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            if len(reason) > 200:  # torch lists every parameter
                reason = reason[:200] + " ..."
            failures.append(f"{path} does not fit the network of {env_id}: {reason}.")
        else:
            return Loaded(path, state, [f"{text} {path} is used instead." for text in failures])
    if not failures:
        raise ConfigError(f"{run_dir} has no checkpoint yet.")
    raise ConfigError(f"{failures[0]} There is no older checkpoint that can be used.")
