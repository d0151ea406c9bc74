"""What an option's declared type means for a value that a file, a flag or a script gave."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

import numpy as np

from fastrl.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def flag_of(name: str) -> str:
    """Spell an option as on the command line: ``noop_max`` is ``--noop-max``."""
    return "--" + name.replace("_", "-")


def shown(value: Any) -> str:
    """Spell a value for the sentence that refuses it, cut where it would fill the screen."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"


def read_word(word: str, declared: Any) -> Any:
    """Return what a word of a command line means as the type `declared`; the word itself where it
    means nothing there, which `as_declared` then refuses by the option's name."""
    with contextlib.suppress(ValueError):
        return _read(word, declared)
    return word


def _read(word: str, declared: Any) -> Any:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, UnionType):
        for member in arguments:
            with contextlib.suppress(ValueError):
                return _read(word, member)
    elif declared is NoneType:
        if word == "None":
            return None
    elif declared is bool:
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
    elif origin is Literal:
        if word in arguments:
            return word
    elif declared in (int, float, str, Path):
        return declared(word)
    raise ValueError


def as_declared(options: Options) -> Options:
    """Return `options`, a dataclass instance, with every value of its field's declared type.

    Strings become paths, lists tuples, whole numbers floats, numpy scalars Python's own. None stays
    where it is the default. Raises ConfigError, one sentence naming the option, for all else that
    is of another type, and for text that no UTF-8 file can hold.
    """
    declared = typing.get_type_hints(type(options))
    values = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None and field.default is None:
            continue
        try:
            value = _convert(value, declared[field.name])
        except TypeError:
            raise ConfigError(
                f"{flag_of(field.name)} is {shown(value)}; it must be "
                f"{_name(declared[field.name])}."
            ) from None
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str | Path) and not _is_utf8(str(item)):
                raise ConfigError(
                    f"{flag_of(field.name)} is {shown(str(item))}, which is no valid text (UTF-8); "
                    "use another name."
                )
        values[field.name] = value
    return dataclasses.replace(options, **values)


def _convert(value: Any, declared: Any) -> Any:
    """Return `value` as the type `declared`; TypeError where it is none."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if isinstance(value, np.generic):
        value = value.item()
    if origin in (Union, UnionType):
        for member in arguments:
            with contextlib.suppress(TypeError):
                return _convert(value, member)
    elif origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(item, arguments[0]) for item in value)
    elif declared is float and type(value) is int:
        with contextlib.suppress(OverflowError):
            return float(value)
    elif declared is Path and isinstance(value, str | Path):
        return Path(value)
    elif type(value) is declared:
        return value
    raise TypeError


def _name(declared: Any) -> str:
    """Say what is expected: "a whole number or 'auto'"."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (Union, UnionType):
        return " or ".join(_name(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        return f"a list, each item {_name(arguments[0])}"
    return _NAMES[declared]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
