"""Checkpoints: written atomically, found by name, read as data (`weights_only=True`).

A file holds plain tensors and numbers: ``format``, ``model`` (names to tensors), ``optimizer``,
``steps``, ``updates``, ``version``, ``seed`` and ``seconds``. The configuration lies beside it in
``config.toml``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
FOLDER = "checkpoints"
KEEP = 3
"""Newest checkpoints kept: the last one, and two to fall back on."""

_NAME = re.compile(r"step_(\d{12})\.pt")


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

    Raises OSError where the folder cannot be written.
    """
    path = checkpoint_path(run_dir, steps)
    path.parent.mkdir(exist_ok=True)
    # Outside the search pattern until it is complete and on the disk.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "steps": steps, **state}, file)
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


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in the file is executed.

    Raises ValueError with a sentence where the file is damaged or of another format.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a readable checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of format {FORMAT}.")
    return state
