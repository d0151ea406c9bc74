"""Pages of which programs write a part each: a section between two marks is replaced as a whole.

::

    text by hand
    <!-- begin: NAME -->
    what the program wrote last
    <!-- end: NAME -->
    text by hand
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastrl.bench.report import Report, Table
from fastrl.errors import ConfigError


def marks(name: str) -> tuple[str, str]:
    """What a section begins and ends with."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def replace_section(path: Path, name: str, markdown: str) -> None:
    """Put `markdown` in place of the section `name` of a page, or at its end where it has none.

    A reader sees the old page or the new one, and nothing of it changes where that fails. Raises
    ConfigError where the page has one mark without the other, or cannot be read or written.
    """
    begin, end = marks(name)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--write {path} cannot be read: {error}.") from error
    section = f"{begin}\n\n{markdown.strip()}\n\n{end}"
    if text.count(begin) == text.count(end) == 0:
        before, after = (f"{text.rstrip()}\n\n" if text.strip() else ""), "\n"
    else:
        before, _, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if text.count(begin) != 1 or text.count(end) != 1 or not closed:
            raise ConfigError(
                f"--write {path} must have the marks {begin} and {end} once each, in this order, "
                "or neither of them."
            )
    _write_whole(path, before + section + after)


def check_page(path: Path | None) -> None:
    """Refuse now, rather than after minutes, a page that cannot be written; raises ConfigError."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--write {path} cannot be written: name a file in a folder of yours.")


def section_of(report: Report, notes: Sequence[str] = ()) -> str:
    """A report as Markdown: how it was made, when and where, `notes`, and its tables."""
    where = report.machine
    facts = [
        f"`{report.command}`",
        f"{report.date}, {where['cpu']}, {where['cores']} cores usable, load "
        f"{where['load']:.1f} before",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        *(f"{name}: {meaning}" for name, meaning in report.units.items()),
        *notes,
    ]
    parts = ["\n".join(f"- {fact}" for fact in facts), *map(_markdown, report.tables)]
    return "\n\n".join(parts)


def _markdown(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|".join(["", "---", *["--:"] * (len(table.columns) - 1), ""])
    return "\n".join([f"**{table.title}**", "", row(table.columns), rule, *map(row, table.rows)])


def _write_whole(path: Path, text: str) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        partial = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            # mkstemp's files are for their owner alone.
            partial.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--write {path} cannot be written: {error.strerror}.") from error
