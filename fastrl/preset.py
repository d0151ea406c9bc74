"""Presets: option values that learn, by environment; one TOML file each in ``presets/``.

A file begins with ``about``, a sentence on where its values come from, ``environments``, patterns
of the names (``--env``) that it is chosen for, and ``images``, whether these show large ones; its
tables are those of a ``config.toml``, and ``num_envs``.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from fastrl.errors import ConfigError
from fastrl.option_types import shown


@dataclass(frozen=True)
class Preset:
    """One file."""

    name: str
    about: str
    environments: tuple[str, ...]
    """Patterns of shell style, such as gym:CartPole-*; none where nothing but --preset takes it."""
    images: bool
    """Whether it is for environments that show large images."""
    num_envs: int
    """Environments in all that it thinks of."""
    options: Mapping[str, Any]
    """By name of the option."""


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    folder = resources.files("fastrl") / "presets"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


@functools.cache
def load_preset(name: str) -> Preset:
    """Read a shipped preset; ConfigError names those that there are."""
    if name not in preset_names():
        raise ConfigError(
            f"--preset: there is no preset {shown(name)}; there are: {', '.join(preset_names())}."
        )
    file = resources.files("fastrl") / "presets" / f"{name}.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    about, images = tables.pop("about"), tables.pop("images")
    environments = tuple(tables.pop("environments"))
    num_envs: int = tables["rollout"].pop("num_envs")
    options = {
        option: tuple(value) if isinstance(value, list) else value
        for table in tables.values()
        for option, value in table.items()
    }
    return Preset(name, about, environments, images, num_envs, options)


def choose_preset(env_id: str, images: bool) -> Preset:
    """The preset of an environment by its name and by whether it shows large images: the one that
    names it, else `image` or `vector`."""
    for preset in map(load_preset, preset_names()):
        named = any(fnmatchcase(env_id, pattern) for pattern in preset.environments)
        if named and preset.images == images:
            return preset
    return load_preset("image" if images else "vector")
