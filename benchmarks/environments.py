"""Train and evaluate one environment of each kind with the two commands, and write the table of it.

``python benchmarks/environments.py --write docs/environments.md`` replaces what lies between the
two marks in that file. Each row is what `fastrl-train` and `fastrl-eval` did as commands of their
own; the steps are few, since the table shows that they work, not how far one gets.

Exit codes: 0 every row was trained and evaluated, 1 not every one, 2 refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import tyro
from marked_part import read_part, replace_part

from fastrl.bench.records import read_records
from fastrl.bench.report import PACKAGES, machine
from fastrl.config_file import load_config
from fastrl.envs import EnvOptions, describe
from fastrl.envs.check import describe_spec

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    command: str
    """What follows `fastrl-train --env`."""
    shows: str
    steps: int


CASES = (
    Case("atari:Breakout", "Atari through envpool", 20_000),
    Case("ale:pong", "Atari through ale-py's own vector environment", 20_000),
    Case("envpool:HalfCheetah-v4", "MuJoCo", 100_000),
    Case("envpool:Ant-v4", "MuJoCo", 100_000),
    Case("envpool:LunarLander-v2", "Box2D", 100_000),
    Case("envpool:CartpoleBalance-v1", "dm_control: a Dict of float64", 100_000),
    Case("envpool:MiniGrid-Empty-5x5-v0", "a Dict with a 7x7 image and a text of bytes", 50_000),
    Case("envpool:CoinrunEasy-v0", "Procgen: RGB images", 20_000),
    Case("envpool:Basic-v1", "VizDoom: stacked RGB images, unbounded actions", 20_000),
    Case("envpool:Game2048-v1", "a mask in a Dict observation", 50_000),
    Case("envpool:MultiCVRP-v0", "integer Box actions, nested Dict, masked", 20_000),
    Case("gym:CartPole-v1", "one by one in the worker", 50_000),
    Case("gym:CartPole-v1 --vector-entry-point", "Gymnasium's own vector form", 50_000),
    Case("gym:Pendulum-v1", "a bounded continuous action", 50_000),
    Case("gym:Pendulum-v1 --action-bounds squash", "... through tanh", 50_000),
    Case("gym:Acrobot-v1", "", 50_000),
    Case("gym:Blackjack-v1", "a Tuple", 50_000),
    Case("gym:Taxi-v4", "a Discrete observation, a mask in info", 50_000),
    Case("envpool:CarRacing-v2 --frame-stack 2 --action-repeat 4", "stacked, repeated", 5_000),
    Case("py:shapes:Echo", "MultiDiscrete observation and action", 50_000),
    Case("py:shapes:Nested", "nested Dict and Tuple in observation and action", 50_000),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Train and evaluate one environment of each kind."""

    only: str = ""
    """Part of the ids to take; all by default."""
    share: float = 1.0
    """Factor on the number of steps."""
    write: Path | None = None
    """Markdown file whose marked part is replaced by the table."""
    limit: float = 300.0
    """Seconds that a command may take."""


def run(command: list[str], limit: float, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command in `folder`, 124 where it took too long."""
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=limit, text=True, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"it took more than {limit:g} s"
    return done.returncode, done.stdout + done.stderr


def spaces_text(env: str, options: EnvOptions) -> tuple[str, str]:
    """The leaves of observation and action, for the table."""
    rows = describe_spec(describe(env, options))
    sides: dict[str, list[str]] = {"observation": [], "action": []}
    for name, text in rows:
        field = name.partition("[")[0]
        path = name.removeprefix(field)
        sides[field].append((f"`{path}` " if path else "") + text)
    return shortened(sides["observation"]), shortened(sides["action"])


def shortened(leaves: list[str], most: int = 3) -> str:
    """The first leaves, and how many more there are."""
    more = [f"and {len(leaves) - most} more"] if len(leaves) > most else []
    return "; ".join(leaves[:most] + more)


def try_case(case: Case, options: Options, folder: Path) -> tuple[bool, str]:
    """Whether both commands ended well, and the row of the table."""
    words = shlex.split(case.command)
    run_dir = folder / re.sub(r"\W+", "-", case.command)
    steps = max(1, int(case.steps * options.share))
    began = time.monotonic()
    train = ["fastrl-train", "--env", *words, "--total-steps", str(steps), "--seed", "1"]
    code, said = run([*train, "--run-dir", str(run_dir)], options.limit, folder)
    seconds = time.monotonic() - began
    if code:
        return (
            False,
            f"| `{case.command}` | {case.shows} | exit code {code}: {last_line(said)} ||||",
        )
    steps_done = read_records(run_dir)[-1]["steps"]
    code, said = run(
        ["fastrl-eval", str(run_dir), "--episodes", "16", "--seed", "1"], options.limit, folder
    )
    if code:
        return False, f"| `{case.command}` | {case.shows} | evaluation: {last_line(said)} ||||"
    mean = re.search(r"return mean (\S+)", said)
    assert mean is not None, said
    config = load_config(run_dir / "config.toml")
    observation, action = spaces_text(config.env, config.section(EnvOptions))
    return True, (
        f"| `{case.command}` | {case.shows} | {observation} | {action} | "
        f"{steps_done:,} in {seconds:.0f} s | {float(mean[1]):.2f} |"
    )


def last_line(text: str) -> str:
    """The last line that says something."""
    return ([line for line in text.splitlines() if line.strip()] or ["nothing was said"])[-1]


def main() -> int:
    """Run every case; print the table, write it where asked."""
    options = tyro.cli(Options, prog="environments.py")
    cases = [case for case in CASES if options.only in case.command]
    if not cases:
        print(f"environments.py: no case has {options.only!r} in it.", file=sys.stderr)
        return 2
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in (*PACKAGES, "ale-py"))
    lines = [
        f"On {machine()['cpu']}, with {versions}; presets and options at their defaults but for",
        "`--total-steps` and `--seed 1`; times include the start; the return is the mean of 16 raw",
        "episodes of `fastrl-eval`.",
        "",
        "| `--env` | | observation | action | steps | return |",
        "|---|---|---|---|---|---|",
    ]
    failures = 0
    # A part of the cases leaves the rows of the others as they are.
    written = [] if options.write is None else read_part(options.write, "environments.py")
    rows = {row.split("`")[1]: row for row in written if row.startswith("| `")}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(HERE):
        # VizDoom leaves a file in the current folder; the cases py: look for theirs there.
        shutil.copy(HERE / "shapes.py", folder)
        for case in cases:
            good, rows[case.command] = try_case(case, options, Path(folder))
            failures += not good
            print(rows[case.command], flush=True)
    if options.write is not None:
        lines += [rows[case.command] for case in CASES if case.command in rows]
        replace_part(options.write, "environments.py", lines)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
