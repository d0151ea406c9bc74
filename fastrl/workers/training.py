"""Training as a whole: where the run lives, which engine runs it, and how often it is started.

::

    options ─▶ run folder ─▶ Supervisor (processes), or everything in this process (--workers 0)
                  ▲                │ a process has died, and --max-restarts allows
                  └── resume auto ─┘
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection
from typing import Literal

from fastrl.checkpoint import find_checkpoints
from fastrl.config import TrainConfig
from fastrl.config_file import CONFIG_FILE
from fastrl.errors import ConfigError
from fastrl.monitor.console import Console
from fastrl.option_types import as_declared
from fastrl.workers.crew import ProcessDied
from fastrl.workers.run_folder import RunFolder, choose_run_folder
from fastrl.workers.supervisor import Supervisor


def train(config: TrainConfig) -> int:
    """Train with `config` from the main thread; return the exit code (0, 1, 129, 130 or 143).

    A resumed run (`config.resume`) keeps its own options, except those that differ here from their
    defaults. Raises ConfigError where the run is refused before it starts. A failure is told on the
    console, last; with `workers=0`, everything in this process, it is raised.
    """
    given = [
        field.name
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    ]
    return start_training(config, given)


def start_training(config: TrainConfig, given: Collection[str]) -> int:
    """`train` for a caller who knows which options the user has set: those in `given`."""
    folder = choose_run_folder(as_declared(config), given)
    console = Console()
    try:
        if folder.config.workers == 0:
            from fastrl.workers.single import train_in_this_process  # imports torch

            return train_in_this_process(folder, console)
        return _supervise(folder, console, given)
    finally:
        console.close()


def _supervise(folder: RunFolder, console: Console, given: Collection[str]) -> int:
    """Run the engine, and again from its newest checkpoint as often as `--max-restarts` allows."""
    most, restarts, opened = folder.config.max_restarts, 0, False
    while True:
        supervisor = Supervisor(folder, console)
        try:
            return supervisor.run()
        except ProcessDied as death:
            if not death.again or restarts >= most:
                console.say(f"failed: {death}\n{what_is_left(folder)}")
                return 1
            console.say(f"failed: {death}")
        except ConfigError as refusal:
            if restarts == 0:
                raise
            console.say(f"failed: the run could not go on: {refusal}")
            return 1
        restarts += 1
        console.say(f"the engine is started again ({restarts} of at most {most}, --max-restarts)")
        opened = opened or supervisor.opened
        if not opened:  # it did not come as far as its folder: the same once more
            continue
        # Never begun anew where there was something to go on from.
        resume: Literal["auto", "must"] = "auto" if (folder.path / CONFIG_FILE).exists() else "must"
        config = dataclasses.replace(folder.config, run_dir=folder.path, resume=resume)
        try:
            folder = choose_run_folder(config, ())
        except ConfigError as refusal:
            console.say(f"failed: the run could not go on: {refusal}")
            return 1


def what_is_left(folder: RunFolder) -> str:
    """Say after a failure what there is of the run, and how to go on."""
    checkpoints = find_checkpoints(folder.path)
    if not checkpoints:
        return "the run has ended; it has no checkpoint"
    return (
        f"the run has ended; its newest checkpoint is {checkpoints[-1]}: to go on, "
        f"fastrl-train --run-dir {shlex.quote(str(folder.path))} --resume must"
    )
