"""The flags of a training run: from a command line to a configuration."""

from __future__ import annotations

import dataclasses
import typing
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from fastrl.config import SECTIONS, TrainConfig, field_names
from fastrl.option_docs import option_docs


def parse_train(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Parse flags into a configuration; a wrong flag exits with 2, naming it and the nearest."""
    fields = []
    for name, section in SECTIONS.items():
        options = described(section)
        fields.append((name, options, dataclasses.field(default=options())))
    groups = dataclasses.make_dataclass("Options", fields, frozen=True)
    with warnings.catch_warnings():
        # Options that the preset decides are None until then, whatever their type.
        warnings.filterwarnings("ignore", message=".*annotated with type.*default value `None`.*")
        warnings.filterwarnings("ignore", message=".*NoneType.* does not match any type in Union.*")
        parsed: Any = tyro.cli(
            groups,
            prog="fastrl-train",
            description="Train a policy with asynchronous PPO on this machine.",
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes,),
        )
    values: dict[str, Any] = {}
    for name in SECTIONS:
        section = getattr(parsed, name)
        values |= {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    return TrainConfig(**values)


def described(section: type) -> type:
    """The section with each field's documentation as one paragraph: tyro would break the lines
    where the source does."""
    docs, types = option_docs(section), typing.get_type_hints(section)
    fields = [
        (
            field.name,
            Annotated[types[field.name], tyro.conf.arg(help=docs[field.name])],
            dataclasses.field(default=field.default),
        )
        for field in dataclasses.fields(section)
    ]
    copy = dataclasses.make_dataclass(section.__name__, fields, frozen=True)
    copy.__doc__ = section.__doc__
    return copy


def given_options(arguments: Sequence[str]) -> set[str]:
    """Names of the options that the command line sets, also those that it sets to their default."""
    flags = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    names = {flag.replace("-", "_") for flag in flags}
    # A switch that is turned off: --no-fire-reset.
    names |= {name.removeprefix("no_") for name in names}
    return names & set(field_names())
