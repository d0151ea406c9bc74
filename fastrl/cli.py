"""The commands: parse, call, print. No logic of the engine is here; torch is not imported to parse.

Exit codes: 0 done, 1 failed, 2 refused before the start; interrupted 130, terminated 143 or 129.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import tyro

from fastrl.bench.options import parse_bench, run
from fastrl.config import INT32_MAX
from fastrl.envs.options import EnvOptions, check_ranges
from fastrl.errors import ConfigError
from fastrl.flags import declared_as, described, given_options, parse, parse_train
from fastrl.monitor.console import discard_stdout, table
from fastrl.option_types import shown


def train_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-train`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        config = parse_train(arguments)
    except BrokenPipeError:  # --help | head
        discard_stdout()
        return 1
    except ConfigError as error:
        print(f"fastrl-train: {error}", file=sys.stderr)
        return 2
    try:
        from fastrl.workers.training import start_training

        return start_training(config, given_options(arguments))
    except ConfigError as error:
        print(f"fastrl-train: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play a checkpoint of a run."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    episodes: int = 100
    """Episodes to play, spread evenly over up to 128 environments (the first ones of each, so that
    short ones are not preferred)."""
    seed: int | None = None
    """Seed of the environments and the sampled actions; drawn if unset."""
    greedy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take the most probable action instead of sampling."""
    checkpoint: str = "newest"
    """newest (that can be read), best (the highest mean return of 100 episodes in training, or with
    --eval-every the one that was evaluated best), or the path of a file."""
    json: Path | None = None
    """Write the result there as well, with the return of each episode."""


def eval_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-eval`."""
    try:
        parsed = parse(described(EvalOptions), "fastrl-eval", arguments, [EvalOptions])
        options = declared_as(EvalOptions, parsed)
        from fastrl.bench.report import check_outputs, write_text
        from fastrl.evaluate import evaluate

        check_outputs(options.json, None)
        result = evaluate(
            options.run, options.episodes, options.seed, options.greedy, options.checkpoint
        )
        print(result.describe(), flush=True)
        if options.json is not None:
            write_text(options.json, json.dumps(result.as_json(), indent=1) + "\n")
    except ConfigError as error:
        print(f"fastrl-eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_stdout()
        return 1
    return 0


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """Check that an environment keeps Gymnasium's rules and the engine's."""

    env: tyro.conf.Positional[str]
    """The environment, as for fastrl-train --env."""
    rows: int = 2000
    """Random steps to play in each of three environments, four times."""
    seed: int = 0
    """Of the environments and the actions."""


def check_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-check`: 0 without faults, 1 with some, 2 where it cannot be used at all."""
    options_of_env = described(EnvOptions)
    environment = ("environment", options_of_env, dataclasses.field(default=options_of_env()))
    groups = dataclasses.make_dataclass(
        "Check", [("what", described(CheckOptions)), environment], frozen=True
    )
    try:
        sections = [CheckOptions, EnvOptions]
        parsed = parse(groups, "fastrl-check", arguments, sections, CheckOptions.__doc__)
        from fastrl.envs.check import check, describe_spec

        what = declared_as(CheckOptions, parsed.what)
        options = declared_as(EnvOptions, parsed.environment)
        check_ranges(options)
        for name, value, least in (("rows", what.rows, 1), ("seed", what.seed, 0)):
            if not least <= value <= INT32_MAX:
                raise ConfigError(
                    f"--{name} is {shown(value)}; it must be at least {least} and at most "
                    f"{INT32_MAX:,}."
                )
        report = check(what.env, options, what.rows, what.seed)
        print(table(describe_spec(report.spec)))
        if report.seconds_per_step is not None:
            print(
                f"played {report.steps:,} steps, {report.episodes:,} episodes ended; a step takes "
                f"{report.seconds_per_step * 1e6:,.1f} µs"
            )
        for kind, text in report.findings:
            print(f"{kind}: {text}")
        count = len(report.faults)
        print("no fault found" if not count else f"{count} fault{'s' if count > 1 else ''} found")
        return 1 if count else 0
    except ConfigError as error:
        print(f"fastrl-check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_stdout()
        return 1


def _leave(number: int, frame: FrameType | None) -> None:
    """End as an exception does: a bench has runs of its own, which it ends on its way out.

    Once: timeout(1) sends it to a process and to its group, and nothing may end the way out.
    """
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def bench_main(arguments: Sequence[str] | None = None) -> int:
    """`fastrl-bench`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _leave) if here else None
    try:
        options = parse_bench(arguments[:at])
        more = tuple(arguments[at + 1 :])
        if more and not hasattr(options, "flags"):
            raise ConfigError(
                f"{arguments[0]} takes no flags of fastrl-train; leave out {shown(' '.join(more))}."
            )
        if more:
            options = dataclasses.replace(options, flags=more)
        return run(options)
    except ConfigError as error:
        print(f"fastrl-bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_stdout()
        return 1
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)
