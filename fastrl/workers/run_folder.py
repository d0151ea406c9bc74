"""The folder of a run: a new one, or one whose run goes on; what a run begins with.

::

    options ─┬─ --run-dir is new ──────────────────▶ a new run, perhaps --init-from another
             └─ it exists, --resume auto or must ──▶ its config.toml, changed by what was given
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fastrl.checkpoint import find_checkpoints, refuse_unreadable
from fastrl.config import TrainConfig, check, draw_seed, is_sync
from fastrl.config_file import CONFIG_FILE, has_config, load_config, reason, write_config
from fastrl.envs.options import EnvOptions
from fastrl.envs.registry import check_name
from fastrl.errors import ConfigError
from fastrl.models.config import ModelConfig
from fastrl.option_types import flag_of, shown
from fastrl.preset import load_preset
from fastrl.resolve import FALLS, LAG_IN_BATCHES, default_groups, versions_per_batch
from fastrl.workers.machine import available_cores

NAME_MAX = 255
"""Bytes of a file's name, in all file systems that Linux has."""


@dataclass(frozen=True)
class Origin:
    """The run whose newest checkpoint a run begins with."""

    run_dir: Path
    resume: bool
    """Go on from all of it; else take weights and normalisers alone."""


@dataclass(frozen=True)
class RunFolder:
    """What is decided before any process starts; nothing has been written yet."""

    config: TrainConfig
    path: Path
    origin: Origin | None
    exists: bool
    note: str | None = None
    """Something worth telling before the plan."""


def choose_run_folder(config: TrainConfig, given: Collection[str]) -> RunFolder:
    """Decide where the run of a configuration lives, and what it begins with.

    Args:
        config: the options, of their declared types.
        given: names of the options that the user has set; a resumed run keeps all others.

    Raises:
        ConfigError: the folder is there and must not be, or the other way round; it holds no run
            that can go on; an option is given that a resumed run cannot change.
    """
    path = config.run_dir
    if path is None:
        if config.resume != "never":
            raise ConfigError(
                f"--resume {config.resume} needs --run-dir, the folder of the run that is to go on."
            )
    elif _exists(path) and not (config.resume == "auto" and _is_empty(path)):
        if config.resume == "never":
            raise ConfigError(
                f"--run-dir {path} exists already; name another folder, or go on with the run in "
                "it by --resume must."
            )
        return _existing(config, path, given)
    elif config.resume == "must":
        raise ConfigError(
            f"--run-dir {path} does not exist, so there is no run to resume; --resume auto would "
            "begin one."
        )
    config = check(config)
    _check_env(config.env)
    if config.seed is None:
        config = dataclasses.replace(config, seed=draw_seed())
    path = path or _can_be_made(default_run_dir(config))
    origin = None
    if config.init_from is not None:
        if not has_config(config.init_from, "--init-from"):
            raise ConfigError(
                f"--init-from {config.init_from} is not a run's folder: it has no {CONFIG_FILE}."
            )
        if not find_checkpoints(config.init_from):
            raise ConfigError(f"--init-from {config.init_from} has no checkpoint yet.")
        origin = Origin(config.init_from, resume=False)
    return RunFolder(dataclasses.replace(config, run_dir=path), path, origin, _exists(path))


def _is_empty(path: Path) -> bool:
    """Whether it is a folder without a file, as a job makes it before its command runs."""
    try:
        return path.is_dir() and not any(path.iterdir())
    except OSError as error:  # it may not be read
        raise ConfigError(
            f"--run-dir {shown(str(path))} cannot be used: {reason(error)}."
        ) from error


def _exists(path: Path) -> bool:
    try:
        if path.exists():
            return True
    except OSError as error:
        raise ConfigError(
            f"--run-dir {shown(str(path))} cannot be used: {reason(error)}."
        ) from error
    _can_be_made(path)
    return False


def _can_be_made(path: Path) -> Path:
    """Return `path`, where nothing is, if a folder can be made there; before any process starts."""
    name = shown(str(path))
    if "\0" in str(path) or any(len(os.fsencode(part)) > NAME_MAX for part in path.parts):
        raise ConfigError(
            f"--run-dir {name} cannot be made: a name has at most {NAME_MAX} bytes, none of them 0."
        )
    if os.path.lexists(path):
        raise ConfigError(f"--run-dir {name} is a link that leads nowhere; name another folder.")
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise ConfigError(f"--run-dir {name} cannot be made: {shown(str(folder))} is no folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--run-dir {name} cannot be made: this user may not write to {shown(str(folder))}."
        )
    return path


def _check_env(env_id: str) -> None:
    try:
        check_name(env_id)
    except ConfigError as error:
        raise ConfigError(f"--env: {error}") from None


def _existing(config: TrainConfig, path: Path, given: Collection[str]) -> RunFolder:
    if not has_config(path, "--run-dir"):
        raise ConfigError(
            f"--run-dir {path} holds no run that could be resumed: it has no {CONFIG_FILE}."
        )
    stored = load_config(path / CONFIG_FILE)
    _check_resolved(stored, path / CONFIG_FILE)
    config = _go_on(stored, config, path, given)
    _check_env(config.env)
    if find_checkpoints(path):
        return RunFolder(config, path, Origin(path, resume=True), exists=True)
    refuse_unreadable(path)
    if config.resume == "must":
        raise ConfigError(
            f"The run in {path} has no checkpoint yet; --resume auto begins it once more."
        )
    note = f"the run in {path} has no checkpoint yet: it begins once more"
    origin = None if config.init_from is None else Origin(config.init_from, resume=False)
    return RunFolder(config, path, origin, exists=True, note=note)


# What every run has decided by the time it writes its file, and a resumed one computes with.
_DECIDED = (
    "seed", "mode", "preset", "workers", "groups_per_worker", "envs_per_worker", "rollout_length",
    "batch_size", "batches_ahead", "minibatches", "epochs", "targets", "publish",
)  # fmt: skip


def _check_resolved(stored: TrainConfig, source: Path) -> None:
    """Refuse the file of a run in which a person left something to be decided."""
    for name in _DECIDED:
        value = getattr(stored, name)
        if value is None or value == "auto":
            found = "nothing" if value is None else repr(value)
            raise ConfigError(
                f"{source} has {found} for `{name}`, where a run's own has what the run decided; "
                "write it there."
            )


# What the weights, the optimiser and the random numbers of a run hang on.
_FIXED = (
    "env", "seed", "init_from", "preset", "optimizer",
    *(field.name for field in dataclasses.fields(ModelConfig)),
    *(field.name for field in dataclasses.fields(EnvOptions)),
)  # fmt: skip


def _go_on(
    stored: TrainConfig, config: TrainConfig, path: Path, given: Collection[str]
) -> TrainConfig:
    """The stored options with those that were given anew."""
    changed = {
        name: getattr(config, name)
        for name in given
        if getattr(config, name) != getattr(stored, name) and name not in ("resume", "run_dir")
    }
    for name in _FIXED:
        if name in changed:
            raise ConfigError(
                f"{flag_of(name)} is {changed[name]}, but the run in {path} has "
                f"{getattr(stored, name)}, which a resumed run keeps; leave it out, or begin "
                "another run (with --init-from, where the network stays the same)."
            )
    if changed.keys() & {"workers", "envs_per_worker", "mode"} and "groups_per_worker" not in given:
        changed |= _groups_anew(stored, changed)
    if changed.keys() & {"workers", "groups_per_worker"} and "envs_per_worker" not in given:
        changed |= _spread_anew(stored, changed)
    alone = changed.get("workers") == 0 or changed.get("algorithm") == "ppo"
    if alone and "mode" not in given:
        changed["mode"] = "sync"
    # What was derived from an option that is another now is derived again.
    if "algorithm" in changed:
        changed.setdefault("targets", None)
    changed |= _falls_anew(stored, config, given)
    every_env = max(1, int(stored.workers)) * stored.envs_per_worker
    sizes = {"mode", "workers", "groups_per_worker", "envs_per_worker", "rollout_length"}
    if changed.keys() & sizes and stored.batch_size == every_env * stored.rollout_length:
        changed.setdefault("batch_size", None)
    if changed.keys() & {"publish", "minibatches", "epochs"} and (
        stored.max_policy_lag == LAG_IN_BATCHES * versions_per_batch(stored)
    ):
        changed.setdefault("max_policy_lag", None)
    if changed.get("mode", stored.mode) != stored.mode:
        changed.setdefault("log_every", None)
        # In sync nothing is chosen by measurement, which the stored one may have been.
        changed.setdefault("dtype", None)
    return check(dataclasses.replace(stored, **changed, run_dir=path, resume=config.resume))


def _falls_anew(stored: TrainConfig, config: TrainConfig, given: Collection[str]) -> dict[str, Any]:
    """What falls to a value of the preset's stays where it is named, as at a first start."""
    finals = {
        name: getattr(config, name) if name in given else getattr(stored, name)
        for name in FALLS.values()
    }
    of_preset = load_preset(stored.preset).options
    aside = {
        final: None
        for start, final in FALLS.items()
        if start in given and final not in given and finals[final] == of_preset.get(final)
    }
    none_left = all(value is None for value in (finals | aside).values())
    if aside and none_left and "anneal_steps" not in given:
        return {**aside, "anneal_steps": None}
    return aside


def _groups_anew(stored: TrainConfig, changed: dict[str, Any]) -> dict[str, Any]:
    """The default number of groups, where the stored one was the default of what was stored."""
    cores, before = available_cores(), max(1, int(stored.workers))
    default = default_groups(before, stored.envs_per_worker, is_sync(stored), cores)
    if stored.groups_per_worker != default:
        return {}
    workers = changed.get("workers", stored.workers)
    workers = cores if workers == "auto" else max(1, workers)
    total = before * stored.envs_per_worker
    if "envs_per_worker" not in changed and total % workers:
        return {}  # which is refused, and by the stored number
    share = changed.get("envs_per_worker", total // workers)
    sync = changed.get("mode", stored.mode) == "sync" or changed.get("workers") == 0
    groups = default_groups(workers, share, sync, cores)
    return {} if groups == stored.groups_per_worker else {"groups_per_worker": groups}


def _spread_anew(stored: TrainConfig, changed: dict[str, Any]) -> dict[str, Any]:
    """The run's environments over other workers or groups."""
    total = max(1, int(stored.workers)) * stored.envs_per_worker
    groups = changed.get("groups_per_worker", stored.groups_per_worker)
    workers = changed.get("workers", stored.workers)
    if workers == "auto":
        fitting = [n for n in range(1, available_cores() + 1) if total % (n * groups) == 0]
        workers = max(fitting, default=1)
    if total % (max(1, workers) * groups):
        raise ConfigError(
            f"--workers {workers} x --groups-per-worker {groups} do not divide the {total} "
            "environments of the run; name --envs-per-worker."
        )
    return {"workers": workers, "envs_per_worker": total // max(1, workers)}


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep other processes from going on with the same run; the lock of a folder that exists.

    To be held before a checkpoint is read: the process that has it may be about to save. Raises
    ConfigError where another one has it.
    """
    if not folder.exists:
        yield
        return
    try:
        descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"--run-dir {folder.path} cannot be used: {error}.") from error
    with _lock(descriptor, folder.path):
        yield


@contextlib.contextmanager
def _lock(descriptor: int, path: Path) -> Iterator[None]:
    """Hold the lock of an open folder, then close it. The kernel drops the lock when the process
    ends, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(f"The run in {path} is going on in another process.") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_run_folder(folder: RunFolder, config: TrainConfig) -> Iterator[None]:
    """Create the folder, locked, or take over one that is, and write the resolved configuration
    into it.

    Raises ConfigError where it cannot be written.
    """
    path = folder.path
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=folder.exists)
            if not folder.exists:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                stack.enter_context(_lock(descriptor, path))
            # A run that is resumed later is asked for again.
            write_config(path / CONFIG_FILE, dataclasses.replace(config, resume="never"))
        except FileExistsError as error:
            raise ConfigError(f"--run-dir {path} exists already; name another folder.") from error
        except OSError as error:
            raise ConfigError(f"--run-dir {path} cannot be written: {error}.") from error
        yield


def default_run_dir(config: TrainConfig) -> Path:
    """Name of a run's folder where none was given: runs/<env>/<date-time>-<seed>."""
    # Cut, since a name may be only so long.
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env).strip("-.")[:100] or "env"
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{config.seed}"
    path = Path("runs") / folder / name
    tries = 1
    while path.exists():  # the same seed twice in a second, as a sweep may start it
        tries += 1
        path = Path("runs") / folder / f"{name}-{tries}"
    return path
