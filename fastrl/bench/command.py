"""The command line of a bench: what was given, what is refused, and the run that its flags mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastrl.bench.engine_run import COMMON_FLAGS
from fastrl.config import TrainConfig
from fastrl.envs import EnvSpec, describe
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError
from fastrl.flags import parse_train
from fastrl.option_types import flag_of, shown
from fastrl.resolve import resolve
from fastrl.workers.machine import available_cores, has_bf16

MOST = 10**18
"""Of any number: nobody waits for more."""
AT_LEAST_ZERO = ("warm_up",)
"""Options that may be 0; all other numbers must be more."""


class Planned(NamedTuple):
    """The run that flags of fastrl-train mean on this machine."""

    config: TrainConfig
    """Resolved, as the engine will resolve it."""
    spec: EnvSpec
    cores: int


def given(options: Any) -> list[str]:
    """The command line that `options`, a bench's dataclass, came from: all that is not default."""
    words: list[str] = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name == "flags" or value == field.default:
            continue
        if isinstance(value, bool):
            words.append(flag_of(field.name if value else f"no_{field.name}"))
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [flag_of(field.name), *map(str, values)]
    flags = getattr(options, "flags", ())
    return [*words, "--", *flags] if flags else words


def check_numbers(options: Any) -> None:
    """Refuse numbers of which nothing can be measured; ConfigError names the flag."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        values = value if isinstance(value, tuple) else (value,)
        if not values and field.default:
            raise ConfigError(f"{flag_of(field.name)} is empty; name at least one.")
        for number in values:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            least = 0 if field.name in AT_LEAST_ZERO else 1 if isinstance(number, int) else None
            if number > MOST:
                bound = f"at most {MOST:,}"
            elif least is None and not number > 0:
                bound = "more than 0"
            elif least is not None and not number >= least:
                bound = f"at least {least}"
            else:
                continue
            found = f"{number:g}" if isinstance(number, float) else shown(number)
            raise ConfigError(f"{flag_of(field.name)} is {found}; it must be {bound}.")


def engine_flags(first: Sequence[str], more: Sequence[str]) -> list[str]:
    """Flags of a measured run: the bench's own, what all measured runs have, and the user's."""
    return [*first, *COMMON_FLAGS, *more]


def plan(flags: Sequence[str]) -> Planned:
    """Resolve flags as the engine will, without starting it.

    Raises ConfigError where such a run cannot be measured.
    """
    config = parse_train(flags)
    if config.run_dir is not None:
        raise ConfigError("--run-dir cannot be given: the measured run is a temporary one.")
    if config.device != "cpu":
        raise ConfigError(
            f"--device is {config.device}; costs are those of cores, so it must be cpu."
        )
    spec, cores = describe(config.env, config.section(EnvOptions)), available_cores()
    return Planned(resolve(config, spec, cores, has_bf16()), spec, cores)


def dtypes() -> tuple[str, ...]:
    """Compute formats that this processor has instructions for."""
    return ("f32", "bf16") if has_bf16() else ("f32",)
