"""`fastrl-bench learn`: presets by what they are for: steps and wall time to a good policy.

::

    task x seed ─▶ fastrl-train [--stop-at-return] ─▶ curve, time to the threshold
                   fastrl-eval of its last checkpoint ─▶ mean of 100 fresh episodes
    ─▶ a table per task │ FOLDER/TASK.json, FOLDER/TASK.png │ a section of a page

With ``--redraw`` the runs come from FOLDER/TASK.json, and nothing is trained; ``--add`` puts those
of other seeds beside them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastrl.bench.command import given
from fastrl.bench.curves import Curve, together
from fastrl.bench.engine_run import EngineFailed
from fastrl.bench.learn_run import (
    EVALUATION_EPISODES,
    Trained,
    command_of,
    train_task,
    training_of,
)
from fastrl.bench.options import LearnOptions
from fastrl.bench.pages import check_page, replace_section, section_of
from fastrl.bench.report import Report, Table, machine
from fastrl.bench.tasks import TASKS, Task
from fastrl.config import INT32_MAX
from fastrl.errors import ConfigError
from fastrl.option_types import shown

HERE_ALONE = ("lengths", "checkpoint")
"""Of an evaluation: what says nothing elsewhere, and is not kept."""

UNITS = {
    "return": "mean raw return of the last 100 episodes while training",
    "time": "seconds from the command's start, imports included",
    "evaluation": f"mean return of {EVALUATION_EPISODES} fresh episodes of the last checkpoint, "
    "actions sampled, with its 95 % interval",
}


def run(options: LearnOptions) -> int:
    """Train all, report; return 0, or 1 where something was not kept. Raises ConfigError."""
    tasks = _tasks(options)
    beside = [_read_beside(path) for path in options.beside]
    check_page(options.write)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    stored = {task: _read_stored(task, options.folder) for task in tasks if options.redraw}
    added = _added(tasks, options, {task: runs for task, (runs, *_) in stored.items()})
    kept = True
    for task in tasks:
        others = [other for other in beside if other["env"] == task.env]
        if options.redraw:
            trained, made, before = stored[task]
            names = {other["trainer"] for other in others}
            others = [*others, *(other for other in before if other["trainer"] not in names)]
        else:
            trained, made = _train(task, options)
            kept = kept and len(trained) == len(options.seeds)
        trained = sorted([*trained, *added[task]], key=lambda one: one.seed)
        if not trained:
            continue
        report = _report(task, trained, others, made)
        json_path, plot_path = None, None
        if options.folder is not None:
            json_path = options.folder / f"{task.name}.json"
            plot_path = options.folder / f"{task.name}.png"
        report.deliver(json_path, plot_path)
        if options.write is not None:
            picture = ""
            if plot_path is not None:
                at = os.path.relpath(plot_path, options.write.parent)
                picture = f"![learning curves of {task.name}]({at})\n\n"
            words = shlex.join(["fastrl-bench", "learn", *given(options)])
            notes = _made_elsewhere(trained)
            notes += [f"drawn anew by `{words}`"] if options.redraw else []
            section = picture + section_of(report, notes)
            replace_section(options.write, f"fastrl-bench learn --tasks {task.name}", section)
        kept = kept and all(one.reaches(task) for one in trained)
    return 0 if kept else 1


Made = dict[str, Any]
"""How runs were made, as fields of a Report: flags, machine, and where they are read versions and
date."""


def _train(task: Task, options: LearnOptions) -> tuple[list[Trained], Made]:
    """Train every seed; those that fail are named and left out."""
    words = given(dataclasses.replace(options, tasks=(task.name,)))
    made: Made = {"flags": words, "machine": machine()}
    trained = []
    for seed in options.seeds:
        print(f"{task.name}, seed {seed} ...", flush=True)
        try:
            trained.append(train_task(task, seed, options.patience, options.flags))
        except EngineFailed as failure:
            print(f"fastrl-bench: {failure}", flush=True)
            continue
        print(f"  {_sentence(task, trained[-1])}", flush=True)
    return trained, made


def _read_stored(
    task: Task, folder: Path | None
) -> tuple[list[Trained], Made, Sequence[dict[str, Any]]]:
    """The runs of a task's JSON file, for another drawing, and what stood beside them.

    Raises ConfigError.
    """
    if folder is None:
        raise ConfigError("--redraw needs --folder, whose JSON files have the runs.")
    path = folder / f"{task.name}.json"
    runs, found = _read_runs(path, "--redraw")
    made = {name: found[name] for name in ("machine", "versions", "date")}
    return runs, {"flags": shlex.split(found["command"])[2:], **made}, found["beside"]


def _read_runs(path: Path, flag: str) -> tuple[list[Trained], dict[str, Any]]:
    """The runs of a file that `learn` wrote, and all of it; ConfigError where it is another."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = ("seed", "command", "goal_seconds", "steps", "stopped_by", "evaluation")
        runs = [
            Trained(curve=_curve(run), made=run.get("made"), **{name: run[name] for name in names})
            for run in found["runs"]
        ]
        # All of it is read now: after the trainings it would cost them.
        for made in (found, *(one.made for one in runs if one.made is not None)):
            _made_by(made)
        for name in ("task", "beside"):
            found[name]
        return runs, found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{flag}: {path} is no file of runs: {error}.") from error


def _made_by(found: dict[str, Any]) -> dict[str, Any]:
    """Of a file of runs: how they were made."""
    made = {name: found[name] for name in ("command", "date", "machine", "versions")}
    _sentence_of(made)
    return made


def _sentence_of(made: dict[str, Any]) -> str:
    where = made["machine"]
    return (
        f"`{made['command']}`, {made['date']}, {where['cpu']}, {where['cores']} cores usable, load "
        f"{where['load']:.1f} before; "
        + ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    )


def _made_elsewhere(trained: Sequence[Trained]) -> list[str]:
    """Which seeds are of other commands."""
    seeds: dict[str, list[str]] = {}
    for one in trained:
        if one.made is not None:
            seeds.setdefault(_sentence_of(one.made), []).append(str(one.seed))
    return [
        f"{'seed' if len(of) == 1 else 'seeds'} {', '.join(of)}: {made}"
        for made, of in seeds.items()
    ]


def _added(
    tasks: Sequence[Task], options: LearnOptions, stored: dict[Task, list[Trained]]
) -> dict[Task, list[Trained]]:
    """The runs of --add, by task. Raises ConfigError where they cannot stand beside the others."""
    added: dict[Task, list[Trained]] = {task: [] for task in tasks}
    for path in options.add:
        runs, found = _read_runs(path, "--add")
        task = TASKS.get(str(found["task"]))
        if task is None or task not in added:
            raise ConfigError(
                f"--add: {path} has runs of {shown(found['task'])}, which --tasks does not name."
            )
        before = stored.get(task, [])
        seeds = {one.seed for one in [*before, *added[task]]}
        seeds |= set(() if options.redraw else options.seeds)
        for one in runs:
            if one.seed in seeds:
                raise ConfigError(f"--add: {path} has seed {one.seed}, which is there already.")
            expected = command_of(training_of(task, one.seed, options.flags))
            if before:
                expected = _with_seed(before[0], one.seed)
            if one.command != expected:
                raise ConfigError(
                    f"--add: {path} has another training, {one.command}, than {expected}."
                )
        added[task] += [
            one if one.made is not None else dataclasses.replace(one, made=_made_by(found))
            for one in runs
        ]
    return added


def _with_seed(one: Trained, seed: int) -> str:
    """The command of a run as it would be with another seed."""
    return one.command.replace(f"--seed {one.seed} ", f"--seed {seed} ", 1)


def _tasks(options: LearnOptions) -> list[Task]:
    for name in options.tasks:
        if name not in TASKS:
            raise ConfigError(
                f"--tasks: there is no task {shown(name)}; there are: {', '.join(TASKS)}."
            )
    if not options.seeds or not all(0 <= seed <= INT32_MAX for seed in options.seeds):
        raise ConfigError(
            f"--seeds is {shown(options.seeds)}; it must name one or more numbers, each at least 0 "
            f"and at most {INT32_MAX:,}."
        )
    if not 0 < options.patience < math.inf:
        raise ConfigError(f"--patience is {options.patience}; it must be more than 0.")
    if options.redraw and (options.seeds, options.patience, options.flags) != (
        LearnOptions.seeds,
        LearnOptions.patience,
        (),
    ):
        raise ConfigError(
            "--redraw trains nothing; leave out --seeds, --patience and flags of fastrl-train."
        )
    return [TASKS[name] for name in options.tasks]


def _read_beside(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = ("trainer", "env", "command", "runs")
        more = {"made": found["made"]} if "made" in found else {}
        # All of it is read now: after the trainings it would cost them.
        _when_and_where(found)
        if not all("seed" in run and _curve(run) for run in found["runs"]):
            raise KeyError("seed")
        return {name: found[name] for name in names} | more
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--beside {path} is no file of curves: {error}.") from error


def _sentence(task: Task, one: Trained) -> str:
    said = ""
    if task.stop_at is not None:
        reached = "did not reach" if one.goal_seconds is None else f"{one.goal_seconds:.1f} s to"
        said = f"{reached} {task.stop_at:g}, "
    return (
        f"{said}{one.steps:,} steps; evaluation "
        f"{one.evaluation['mean']:.2f} ± {one.evaluation['margin_95']:.2f}"
    )


def _report(
    task: Task,
    trained: Sequence[Trained],
    others: Sequence[dict[str, Any]],
    made: Made,
) -> Report:
    levels = list(task.marks)
    asked = f"{task.max_steps:,} steps"
    if task.threshold is not None and task.stop_at is not None:
        levels.append(task.stop_at)
        beyond = "" if task.goal is None else f" (trained on to {task.goal:g})"
        asked = f"{task.threshold:g}{beyond} within {task.seconds:g} s, evaluation "
        asked += f"{task.least_evaluation:g} or more"
    tables = [
        Table(
            f"{task.name}: {task.env}, {asked}",
            ("seed", "time, s", "steps", "evaluation", ""),
            [_row(task, one) for one in trained],
        ),
    ]
    if levels:
        marks = Table(
            f"{task.name}: time in s and steps to a return",
            ("run", *(f"{level:g}" for level in levels)),
            [
                *((f"seed {one.seed}", *_marks(one.curve, levels)) for one in trained),
                *(
                    (f"{other['trainer']}, seed {one['seed']}", *_marks(_curve(one), levels))
                    for other in others
                    for one in other["runs"]
                ),
            ],
        )
        tables.append(marks)
        tables += [_shares(task, trained, other, levels) for other in others]
    commands = [
        ("fastrl", trained[0].command, "as above"),
        *((other["trainer"], other["command"], _when_and_where(other)) for other in others),
    ]
    tables.append(Table(f"{task.name}: commands", ("of", "command", "made"), commands))
    if task.published:
        tables.append(_beside_published(task, trained))
    values = {
        "task": task.name,
        "env": task.env,
        "threshold": task.threshold,
        "goal": task.stop_at,
        "limit_seconds": task.seconds,
        "runs": [
            {
                "seed": one.seed,
                "command": one.command,
                "goal_seconds": one.goal_seconds,
                "steps": one.steps,
                "stopped_by": one.stopped_by,
                "evaluation": {k: v for k, v in one.evaluation.items() if k not in HERE_ALONE},
                "kept": one.reaches(task),
                "curve": one.curve.as_json(),
                **({} if one.made is None else {"made": one.made}),
            }
            for one in trained
        ],
        "beside": list(others),
    }

    def draw(axes: Any) -> None:
        _draw(axes, task, trained, others)

    return Report("learn", units=UNITS, tables=tables, values=values, draw=draw, **made)


def _when_and_where(other: dict[str, Any]) -> str:
    """When another trainer's curves were made; files of before that do not tell."""
    if (made := other.get("made")) is None:
        return "-"
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{made['date']}, {made['cpu']}, {made['cores']} cores; {versions}"


def _shares(
    task: Task, trained: Sequence[Trained], other: dict[str, Any], levels: Sequence[float]
) -> Table:
    """Our time to each return as a share of another trainer's, the median of its seeds."""

    def cell(curve: Curve, level: float) -> str:
        ours = curve.first_at(level)
        theirs = [(one, one.first_at(level)) for one in map(_curve, other["runs"])]
        times = sorted(math.inf if at is None else float(one.seconds[at]) for one, at in theirs)
        median = times[len(times) // 2]
        if ours is None:
            return "-"
        return f"{curve.seconds[ours] / median:.2f}" if median < math.inf else "it never did"

    seeds = len(other["runs"])
    of = "" if seeds == 1 else f", the median of its {seeds} seeds"
    return Table(
        f"{task.name}: time to a return as a share of that of {other['trainer']}{of}",
        ("run", *(f"{level:g}" for level in levels)),
        [(f"seed {one.seed}", *(cell(one.curve, level) for level in levels)) for one in trained],
    )


def _beside_published(task: Task, trained: Sequence[Trained]) -> Table:
    """Returns of others at some numbers of steps, and ours there."""
    rows = [
        (
            f"{point.steps:,}",
            f"{point.value:g}",
            *(_return_at(one.curve, point.steps) for one in trained),
            point.source,
        )
        for point in task.published
    ]
    ours = (f"seed {one.seed}" for one in trained)
    return Table(f"{task.name}: published", ("steps", "return", *ours, "source"), rows)


def _return_at(curve: Curve, steps: int) -> str:
    """The last return of a curve by then; none for a curve that ended before, by more than a
    hundredth."""
    by_then = np.flatnonzero(curve.steps <= steps)
    if not len(by_then) or curve.steps[-1] < 0.99 * steps:
        return "-"
    return f"{curve.returns[by_then[-1]]:.1f}"


def _row(task: Task, one: Trained) -> tuple[str, ...]:
    seconds = one.goal_seconds
    if task.threshold is None and len(one.curve.seconds):
        seconds = float(one.curve.seconds[-1])
    return (
        str(one.seed),
        "-" if seconds is None else f"{seconds:.1f}",
        f"{one.steps:,}",
        f"{one.evaluation['mean']:.2f} ± {one.evaluation['margin_95']:.2f}",
        "kept" if one.reaches(task) else "NOT KEPT",
    )


def _marks(curve: Curve, levels: Sequence[float]) -> list[str]:
    cells = []
    for level in levels:
        at = curve.first_at(level)
        cells.append("-" if at is None else f"{curve.seconds[at]:,.1f} s, {int(curve.steps[at]):,}")
    return cells


def _curve(one: dict[str, Any]) -> Curve:
    return Curve(*(np.array(one["curve"][name]) for name in ("steps", "seconds", "returns")))


def _draw(
    axes: Any, task: Task, trained: Sequence[Trained], others: Sequence[dict[str, Any]]
) -> None:
    """Returns against wall time, or against steps where published ones are the measure: each seed
    thin, all together thick, with the interval."""
    along = "steps" if task.threshold is None else "seconds"
    families = [("fastrl", [one.curve for one in trained])]
    families += [(other["trainer"], [_curve(one) for one in other["runs"]]) for other in others]
    for number, (name, curves) in enumerate(families):
        curves = [curve for curve in curves if len(curve.steps)]
        color, alpha = f"C{number}", 0.35 if len(curves) > 1 else 1.0
        for curve in curves:
            places = getattr(curve, along)
            axes.plot(places, curve.returns, color=color, alpha=alpha, linewidth=0.8)
        if len(curves) > 1:
            places, mean, (low, high) = together(curves, along)
            axes.plot(places, mean, color=color, label=f"{name}, interquartile mean")
            axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
        elif curves:
            axes.plot([], [], color=color, label=name)
    if along == "steps":
        points = [point for point in task.published if point.steps <= task.max_steps]
        axes.plot([p.steps for p in points], [p.value for p in points], "kx", label="published")
    if task.threshold is not None:
        axes.axhline(task.threshold, color="0.5", linestyle="--", linewidth=0.8)
    axes.set_xlabel("wall time from the command's start, s" if along == "seconds" else along)
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.legend(loc="lower right", fontsize=8)
