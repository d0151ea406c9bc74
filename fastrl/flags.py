"""The flags of a command: from a command line to its options, or to one sentence.

::

    words ─▶ tyro (flags, --help) ─▶ each word read as its option's type ─▶ as_declared ─▶ options

tyro splits the words and writes the help. What a word means is read here, and what is no number
stays the word it is: then the sentence that refuses it is the one that a file or a script gets.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import sys
import typing
import warnings
from collections.abc import Collection, Sequence
from itertools import zip_longest
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union

import tyro

from fastrl.config import SECTIONS, TrainConfig, field_names
from fastrl.errors import ConfigError
from fastrl.option_docs import option_docs
from fastrl.option_types import Options, as_declared, flag_of, read_word, shown


def parse_train(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Parse flags of fastrl-train into a configuration; raises as `parse`."""
    fields = []
    for name, section in SECTIONS.items():
        options = described(section)
        # Told here, or tyro would look for it in the source of what is made here.
        told = tyro.conf.arg(help=section.__doc__)
        default = dataclasses.field(default=options())
        fields.append((name, Annotated[(options, told)], default))
    groups = dataclasses.make_dataclass("Options", fields, frozen=True)
    parsed = parse(
        groups,
        "fastrl-train",
        arguments,
        [*SECTIONS.values()],
        "Train a policy with asynchronous PPO on this machine.",
    )
    values: dict[str, Any] = {}
    for name in SECTIONS:
        section = getattr(parsed, name)
        values |= {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    return as_declared(TrainConfig(**values))


def parse(
    kind: Any,
    prog: str,
    arguments: Sequence[str] | None,
    options: Collection[type],
    description: str | None = None,
) -> Any:
    """Parse a command line into `kind`, a `described` dataclass or one made of such.

    Values are of their declared types, or the words that could not be read as these, which
    `as_declared` refuses.

    Args:
        kind: what tyro makes.
        prog: the command.
        arguments: its words; those of this process by default.
        options: the dataclasses whose fields are the flags.
        description: the first line of ``--help``; by default the docstring of `kind`.

    Raises:
        ConfigError: there is no such flag (naming the nearest), or it is given too few or too many
            words. tyro itself refuses a missing positional argument, and exits with 2.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    flags = _flags(options)
    _check_completion(arguments)
    _check_given(arguments, flags)
    with warnings.catch_warnings():
        # Options that the preset decides are None until then, whatever their type.
        warnings.filterwarnings("ignore", message=".*annotated with type.*default value `None`.*")
        warnings.filterwarnings("ignore", message=".*NoneType.* does not match any type in Union.*")
        parsed, unknown = tyro.cli(
            kind,
            prog=prog,
            description=description,
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes,),
            return_unknown_args=True,
        )
    if unknown:
        raise ConfigError(_unknown(unknown[0], arguments, flags))
    return parsed


def declared_as(section: type[Options], parsed: Any) -> Options:
    """The options of one section from what was parsed, of their declared types; raises as
    `as_declared`."""
    names = [field.name for field in dataclasses.fields(section)]
    return as_declared(section(**{name: getattr(parsed, name) for name in names}))


@functools.cache
def described(section: type) -> type:
    """The section for tyro: each field with its documentation as one paragraph (tyro would break
    the lines where the source does), and with the way its words are read."""
    hints = typing.get_type_hints(section, include_extras=True)
    declared = typing.get_type_hints(section)
    docs: dict[str, str] = {}
    for base in reversed(section.__mro__[:-1]):
        docs |= option_docs(base)
    fields = []
    for field in dataclasses.fields(section):
        # A switch has no words.
        reader = () if declared[field.name] is bool else (_reader(declared[field.name], field),)
        marks = (tyro.conf.arg(help=docs.get(field.name)), *reader)
        default = dataclasses.field(default=field.default)
        fields.append((field.name, Annotated[(hints[field.name], *marks)], default))
    copy = dataclasses.make_dataclass(section.__name__, fields, frozen=True)
    copy.__doc__ = section.__doc__
    return copy


def _reader(declared: Any, field: dataclasses.Field[Any]) -> Any:
    """How tyro gets an option's value from its words; it never fails, see `read_word`."""
    optional = field.default is None
    item = _item(declared)

    def read(words: list[str]) -> Any:
        if optional and words == ["None"]:
            return None
        if item is not None:
            return tuple(read_word(word, item) for word in words)
        return read_word(words[0], declared)

    def spell(value: Any) -> list[str]:
        return [str(one) for one in (value if isinstance(value, tuple) else (value,))]

    name = _metavar(declared) if item is None else f"[{_metavar(item)} [{_metavar(item)} ...]]"
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1 if item is None else "*",
        metavar=name,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=spell,
    )


def _item(declared: Any) -> Any:
    """The type of a list's items; None of what is no list."""
    members = typing.get_args(declared) if _is_union(declared) else (declared,)
    lists = [member for member in members if typing.get_origin(member) is tuple]
    return typing.get_args(lists[0])[0] if lists else None


def _is_union(declared: Any) -> bool:
    return typing.get_origin(declared) in (Union, UnionType)


def _metavar(declared: Any) -> str:
    """A type in the help, such as INT|{auto}."""
    if _is_union(declared):
        members = [one for one in typing.get_args(declared) if one is not NoneType]
        return "|".join(_metavar(member) for member in members)
    if typing.get_origin(declared) is Literal:
        return "{" + ",".join(typing.get_args(declared)) + "}"
    return "{true,false}" if declared is bool else str(declared.__name__).upper()


def _flags(options: Collection[type]) -> dict[str, Any]:
    """Every flag with its option's declared type; a switch has two."""
    flags: dict[str, Any] = {}
    for section in options:
        hints = typing.get_type_hints(section)
        marked = typing.get_type_hints(section, include_extras=True)
        for field in dataclasses.fields(section):
            marks = getattr(marked[field.name], "__metadata__", ())
            if tyro.conf.Positional in marks or tyro.conf.Suppress in marks:
                continue
            flags[flag_of(field.name)] = hints[field.name]
            if hints[field.name] is bool and tyro.conf.FlagCreatePairsOff not in marks:
                flags[flag_of(f"no_{field.name}")] = bool
    return flags


def _check_completion(arguments: Sequence[str]) -> None:
    """Refuse a shell that tyro's own flags for completion end in a traceback for."""
    if len(arguments) > 1 and arguments[0].replace("_", "-") in (
        "--tyro-print-completion", "--tyro-write-completion",
    ):  # fmt: skip
        shells = ("bash", "zsh", "tcsh", "fish")
        if arguments[1] not in shells:
            raise ConfigError(
                f"{arguments[0]} is {shown(arguments[1])}; it must be one of {', '.join(shells)}."
            )


def _check_given(arguments: Sequence[str], flags: dict[str, Any]) -> None:
    """Refuse a flag without its value, and a switch with one."""
    for word, after in zip_longest(arguments, arguments[1:]):
        flag, equals, value = _split(word)
        if flag not in flags:
            continue
        if flags[flag] is bool:
            if equals:
                raise ConfigError(f"{_switch(flag, flags)}, and {shown(value)} is given.")
        elif equals or _item(flags[flag]) is not None:
            continue
        elif after is None or _split(after)[0] in flags:
            raise ConfigError(f"{flag} is given no value; write it after the flag.")


def _split(word: str) -> tuple[str, str, str]:
    flag, equals, value = word.partition("=")
    return (flag.replace("_", "-"), equals, value) if word.startswith("--") else (word, "", "")


def _switch(flag: str, flags: Collection[str]) -> str:
    on = flag.removeprefix("--no-").removeprefix("--")
    off = f", --no-{on} off" if f"--no-{on}" in flags else ""
    return f"{flag} takes no value (--{on} turns it on{off})"


def _unknown(word: str, arguments: Sequence[str], flags: dict[str, Any]) -> str:
    """Say what is wrong with a word that is no flag and no flag's value."""
    flag = _split(word)[0]
    if not flag.startswith("-"):
        before = [_split(one)[0] for one in arguments[: arguments.index(word)]]
        last = next((one for one in reversed(before) if one in flags), None)
        if last is None:
            return f"{shown(word)} is the value of no option; write it after its flag."
        if flags[last] is bool:
            return f"{_switch(last, flags)}, and {shown(word)} follows it."
        return f"{last} takes one value, and {shown(word)} follows it."
    close = difflib.get_close_matches(flag, flags, n=1, cutoff=0.5)
    nearest = f"perhaps you meant {close[0]}" if close else "--help lists those there are"
    return f"There is no option {shown(flag)}; {nearest}."


def given_options(arguments: Sequence[str]) -> set[str]:
    """Names of the options that the command line sets, also those that it sets to their default."""
    flags = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    names = {flag.replace("-", "_") for flag in flags}
    # A switch that is turned off: --no-fire-reset.
    names |= {name.removeprefix("no_") for name in names}
    return names & set(field_names())
