"""Virtual environments for the peers: made once, reused while their requirements stay the same.

::

    requirements, torch, Python ─▶ the stamp's text ─▶ equal to DIR/<peer>/stamp.txt? ─▶ reuse
                                                        else: remove, make, pip install, stamp
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

STAMP = "stamp.txt"
INSTALL_SECONDS = 1800.0
LAST_LINES = 12


class VenvFailed(RuntimeError):
    """An environment could not be made; the message has pip's last lines."""


def stamp_of(requirements: str, torch: str) -> str:
    """Return what an environment is made from, as text."""
    lines = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    return "\n".join([f"python {platform.python_version()}", torch, *filter(None, lines), ""])


def is_current(folder: Path, stamp: str) -> bool:
    """Whether `folder` has an environment that was made from just that."""
    try:
        return (folder / STAMP).read_text(encoding="utf-8") == stamp
    except OSError:
        return False


def python_of(folder: Path) -> Path:
    """Return the Python of an environment."""
    return folder / "bin" / "python"


def ensure(folder: Path, requirements: Path, torch: str) -> Path:
    """Return the Python of the environment, which is made anew where it is not current.

    Args:
        folder: of this one environment.
        requirements: file for pip.
        torch: what is installed first, so that no requirement brings another build.

    Raises:
        VenvFailed: pip, or the making of the environment, failed.
    """
    stamp = stamp_of(requirements.read_text(encoding="utf-8"), torch)
    if not is_current(folder, stamp):
        print(f"making the environment {folder} ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _do([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python_of(folder)), "-m", "pip", "install", "--quiet"]
        # Packages that torch needs are chosen again in the second step, which knows all limits.
        _do([*pip, torch])
        _do([*pip, torch, "-r", str(requirements)])
        (folder / STAMP).write_text(stamp, encoding="utf-8")
    return python_of(folder)


def _do(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VenvFailed(f"{' '.join(command)} failed: {error}.") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        raise VenvFailed(
            f"{' '.join(command)} ended with code {done.returncode}. Its last lines:\n{tail}"
        )
