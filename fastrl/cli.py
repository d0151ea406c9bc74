"""The commands: parse, call, print. No logic of the engine is here; torch is not imported to parse.

Exit codes: 0 done, 1 failed, 2 refused before the start, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from fastrl.config import SECTIONS, TrainConfig
from fastrl.errors import ConfigError
from fastrl.monitor.console import discard_stdout


def parse_train(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Parse flags into a configuration; a wrong flag exits with 2, naming it and the nearest."""
    # [run] comes first and has no default: --env is required.
    fields: list[Any] = [
        (name, section) if name == "run" else (name, section, dataclasses.field(default=section()))
        for name, section in SECTIONS.items()
    ]
    groups = dataclasses.make_dataclass("Options", fields, frozen=True)
    with warnings.catch_warnings():
        # Options that the preset decides are None until then, whatever their type.
        warnings.filterwarnings("ignore", message=".*annotated with type.*default value `None`.*")
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


def train_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-train`."""
    try:
        config = parse_train(arguments)
    except BrokenPipeError:  # --help | head
        discard_stdout()
        return 1
    try:
        from fastrl.workers.supervisor import train

        return train(config)
    except ConfigError as error:
        print(f"fastrl-train: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play the newest checkpoint of a run."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    episodes: int = 100
    """Episodes to play, spread evenly over up to 16 environments (the first ones of each)."""
    seed: int | None = None
    """Seed of the environments and the sampled actions; drawn if unset."""
    greedy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take the most probable action instead of sampling."""


def eval_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-eval`."""
    try:
        options = tyro.cli(EvalOptions, prog="fastrl-eval", args=arguments)
        from fastrl.evaluate import evaluate

        result = evaluate(options.run, options.episodes, options.seed, greedy=options.greedy)
        print(result.describe(), flush=True)
    except ConfigError as error:
        print(f"fastrl-eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_stdout()
        return 1
    return 0
