"""The part of a Markdown file that a program writes: what lies between its two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

END = "<!-- end -->"


def begin_mark(program: str) -> str:
    """The mark before the part that `program` writes."""
    return f"<!-- made by benchmarks/{program} -->"


def read_part(path: Path, program: str) -> list[str]:
    """The lines that `program` has written to `path` before; none where it has not."""
    _, _, rest = path.read_text(encoding="utf-8").partition(begin_mark(program))
    return rest.partition(END)[0].splitlines()


def replace_part(path: Path, program: str, lines: Sequence[str]) -> None:
    """Put `lines` in place of what `program` has written to `path` before.

    Raises ValueError where the file has no such part.
    """
    begin = begin_mark(program)
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{path} has no part between {begin} and {END}.")
    path.write_text("\n".join([before + begin, "", *lines, "", END + after]), encoding="utf-8")
