"""A run's ``config.toml``: one table per section of options, UTF-8, written and read back."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from fastrl.config import SECTIONS, TrainConfig, check
from fastrl.errors import ConfigError
from fastrl.option_types import shown

CONFIG_FILE = "config.toml"
MAX_BYTES = 2**20
"""Of a file that is read; one of many megabytes is no configuration, and takes minutes."""


def write_config(path: Path, config: TrainConfig) -> None:
    """Write a checked configuration to `path`, which :func:`load_config` reads back as it was."""
    # Whole or not at all: a run without it is lost.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(dump_config(config), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_config(path: Path) -> TrainConfig:
    """Read a run's ``config.toml``; ConfigError says what is wrong with it."""
    text = _read(path)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as a configuration: {_what_is_wrong(text, error)}."
        ) from error
    values = flatten_toml(tables, source=str(path))
    if "env" not in values:
        raise ConfigError(f"{path} has no `env` in its section [run].")
    try:
        return check(TrainConfig(**values))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def has_config(run_dir: Path, flag: str) -> bool:
    """Whether a folder has a file ``config.toml``; ConfigError names the flag that gave the folder
    where that cannot be told."""
    try:
        return (run_dir / CONFIG_FILE).is_file()
    except OSError as error:
        raise ConfigError(
            f"{flag} {shown(str(run_dir))} cannot be used: {reason(error)}."
        ) from error


def reason(error: OSError) -> str:
    """Why a path cannot be used, without the path: it may be a screen long."""
    return error.strerror or str(error)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path} has more than {MAX_BYTES:,} bytes, and a run's has some 3,000; name the "
                "folder of a run."
            )
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}.") from error


def _what_is_wrong(text: str, error: Exception) -> str:
    """What is no TOML, with the line it is in."""
    lines = text.split("\n")
    if not isinstance(error, tomllib.TOMLDecodeError):
        what = "too many brackets" if isinstance(error, RecursionError) else "too many digits"
        return f"it has {what}, probably in the line {shown(max(lines, key=len))}"
    place = re.search(r"at line (\d+)", str(error))
    return f"{error}, the line {shown(lines[int(place[1]) - 1])}" if place else str(error)


def flatten_toml(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Turn a TOML document's sections into flat option values, of whatever type they are there.

    Raises ConfigError naming the first section or key that does not exist, with the nearest that
    does.
    """
    values: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            raise ConfigError(
                f"{source}: there is no section [{_key(section)}]"
                f"{_belongs(section) or _nearest(section, list(SECTIONS))}."
            )
        if not isinstance(table, dict):
            raise ConfigError(
                f"{source}: there is no section [{section}], which {section} = {shown(table)} is "
                f"not; write its options below a line [{section}]."
            )
        known = _names(SECTIONS[section])
        for key in table:
            if key not in known:
                raise ConfigError(
                    f"{source}: section [{section}] has no option {shown(key)}"
                    f"{_belongs(key) or _nearest(key, known)}."
                )
        values |= table
    return values


def _names(section: type) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _belongs(key: str) -> str:
    """Where an option is that was looked for elsewhere."""
    sections = [name for name, section in SECTIONS.items() if key in _names(section)]
    return f", it belongs to section [{sections[0]}]" if sections else ""


def _key(name: str) -> str:
    """Spell a key as in the file, but as `shown` does where it is no plain word."""
    return name if re.fullmatch(r"[\w-]{1,60}", name) else shown(name)


def _nearest(word: str, candidates: list[str]) -> str:
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.5)
    return f", perhaps you meant {close[0]!r}" if close else ""


def dump_config(config: TrainConfig) -> str:
    """Write a configuration as TOML, one table per section; options that are None are left out."""
    lines: list[str] = []
    for name, section in SECTIONS.items():
        lines.append(f"[{name}]")
        for field in dataclasses.fields(section):
            value = getattr(config, field.name)
            if value is not None:
                lines.append(f"{field.name} = {_toml_value(value)}")
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if " " <= c != "\x7f" else f"\\u{ord(c):04x}" for c in text) + '"'
