"""A run's ``config.toml``: one table per section of options, UTF-8, written and read back."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from pathlib import Path
from typing import Any

from fastrl.config import SECTIONS, TrainConfig, check
from fastrl.errors import ConfigError


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
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no UTF-8, no TOML, a number of 5,000 digits
        raise ConfigError(f"{path} cannot be read as a configuration: {error}.") from error
    values = flatten_toml(tables, source=str(path))
    if "env" not in values:
        raise ConfigError(f"{path} has no `env` in its section [run].")
    return check(TrainConfig(**values))


def flatten_toml(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Turn a TOML document's sections into flat option values, of whatever type they are there.

    Raises ConfigError naming the first section or key that does not exist, with the nearest that
    does.
    """
    values: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise ConfigError(
                f"{source}: there is no section [{section}]{_nearest(section, list(SECTIONS))}."
            )
        known = [field.name for field in dataclasses.fields(SECTIONS[section])]
        for key in table:
            if key not in known:
                raise ConfigError(
                    f"{source}: section [{section}] has no option {key!r}{_nearest(key, known)}."
                )
        values |= table
    return values


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
