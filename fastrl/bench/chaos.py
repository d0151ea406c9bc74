"""`fastrl-bench chaos`: short trainings whose processes are killed and stopped at random moments.

::

    seed + n ─▶ draw: flags, faults ─▶ run_plan: fastrl-train, signals ─▶ judge ─▶ table, page
                  (chaos_plan)              (chaos_run)               (chaos_judge)

Run n of a bench with seed S is run 0 of one with seed S + n, so that a single one can be seen
again; the command is printed with each run that broke a promise.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl.bench import report
from fastrl.bench.chaos_judge import judge, reactions
from fastrl.bench.chaos_plan import SIGNALS, TARGETS, RunPlan, draw
from fastrl.bench.chaos_run import Delivered, Outcome, run_plan
from fastrl.bench.command import check_numbers, given
from fastrl.bench.options import ChaosOptions
from fastrl.bench.pages import check_page, replace_section, section_of
from fastrl.bench.report import Report, Table
from fastrl.config import draw_seed

EVERY = 10
"""Runs between two lines of progress."""
FRUITLESS = 20
"""Runs in a row in which no signal found its process, after which there is no point in more."""


@dataclass(frozen=True)
class Run:
    """One run and the verdict on it."""

    plan: RunPlan
    outcome: Outcome
    faults: list[str]
    """Promises that it broke, as sentences."""


def run(options: ChaosOptions) -> int:
    """Attack and report; return the exit code: 1 where a promise was broken. Raises ConfigError."""
    check_numbers(options)
    report.check_outputs(options.json, None)
    check_page(options.write)
    machine = report.machine()
    if options.seed is None:
        options = dataclasses.replace(options, seed=1 + draw_seed() // 2)
    print(f"seed {options.seed}", flush=True)
    runs = attack_all(options)
    result = report_of(options, runs, machine)
    result.deliver(options.json, None)
    if options.write is not None:
        replace_section(options.write, "fastrl-bench chaos", section_of(result, notes(runs)))
    return exit_code(runs)


def exit_code(runs: Sequence[Run]) -> int:
    """0 where every run kept every promise, and at least one signal found its process."""
    reached = any(run.outcome.delivered for run in runs)
    return 1 if not reached or any(run.faults for run in runs) else 0


def attack_all(options: ChaosOptions) -> list[Run]:
    """Carry out one run after the other until all signals were sent, or the time is over."""
    assert options.seed is not None
    deadline = time.monotonic() + 60 * options.minutes
    runs: list[Run] = []
    sent, fruitless = 0, 0
    while sent < options.kills and fruitless < FRUITLESS and time.monotonic() < deadline:
        plan = draw(options.seed + len(runs), options.kills - sent)
        folder = Path(tempfile.mkdtemp(prefix="fastrl-chaos-"))
        try:
            outcome = run_plan(plan, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        runs.append(Run(plan, outcome, judge(outcome)))
        reached = len(outcome.delivered)
        sent, fruitless = sent + reached, 0 if reached else fruitless + 1
        if runs[-1].faults:
            print("\n".join(story(runs[-1])), flush=True)
        if len(runs) % EVERY == 0:
            failed = sum(1 for run in runs if run.faults)
            print(
                f"{len(runs)} runs, {sent} of {options.kills} signals, {failed} failed", flush=True
            )
    return runs


def story(run: Run) -> list[str]:
    """All that one needs to see a failed run again."""
    lines = [f"run with seed {run.plan.seed}: {shlex.join(run.outcome.command)}"]
    again = f"fastrl-bench chaos --kills {len(run.plan.faults)} --seed {run.plan.seed}"
    lines.append(f"  again   {again}")
    lines += [f"  sent    {one}" for one in map(sent_text, run.outcome.delivered)]
    lines += [f"  broken  {fault}" for fault in run.faults]
    shown = run.outcome if run.outcome.resumed is None else run.outcome.resumed
    return lines + [f"  | {text}" for text in shown.tail()]


def sent_text(one: Delivered) -> str:
    """What was sent, and when it was."""
    when = "in training" if one.training else "before training"
    return f"{one.at:.3f} s, {when}: {one.fault}"


def notes(runs: Sequence[Run]) -> list[str]:
    """What the page says of the runs as a whole."""
    failed = [run.plan.seed for run in runs if run.faults]
    if not failed:
        return ["every run was as promised"]
    return [f"{len(failed)} runs were not: those with seeds {', '.join(map(str, failed))}"]


def report_of(options: ChaosOptions, runs: Sequence[Run], machine: dict[str, Any]) -> Report:
    """The table by role and signal, the totals, and every run for a program."""
    return Report(
        bench="chaos",
        flags=given(options),
        units={
            "as expected": "signals in runs that kept every promise",
            "reaction": "seconds from the signal (of a pause, from SIGCONT) to the line that says "
            "who was replaced or that the engine is started again, else to the end of the run; of "
            "a pause to the next learned step",
        },
        tables=[_table(runs), _totals(runs)],
        values={
            "seed": options.seed,
            "signals": sum(len(run.outcome.delivered) for run in runs),
            "failed_runs": sum(1 for run in runs if run.faults),
            "runs": [_as_json(run) for run in runs],
        },
        draw=lambda axes: None,
        machine=machine,
    )


def _table(runs: Sequence[Run]) -> Table:
    rows = []
    for role in TARGETS:
        for signal in SIGNALS:
            found = [
                (run, one, seconds)
                for run in runs
                for one, seconds in zip(run.outcome.delivered, reactions(run.outcome), strict=True)
                if (one.fault.role, one.fault.signal) == (role, signal)
            ]
            if not found:
                continue
            times = [seconds for _, _, seconds in found if seconds is not None]
            rows.append(
                (
                    f"{role} {signal}",
                    str(len(found)),
                    str(sum(1 for _, one, _ in found if not one.training)),
                    str(sum(1 for run, _, _ in found if not run.faults)),
                    f"{max(times):.2f}" if times else "-",
                )
            )
    columns = ("who and what", "sent", "before training", "as expected", "slowest reaction, s")
    return Table("What was sent, and how it was answered", columns, rows)


def _totals(runs: Sequence[Run]) -> Table:
    sent = [one for run in runs for one in run.outcome.delivered]
    resumed = [run.outcome.resumed for run in runs if run.outcome.resumed is not None]
    rows = [
        ("runs", str(len(runs))),
        ("of them in sync mode", str(sum(1 for run in runs if run.plan.mode == "sync"))),
        ("with --max-restarts", str(sum(1 for run in runs if run.plan.restarts))),
        ("signals", str(len(sent))),
        ("runs gone on with by --resume must", str(len(resumed))),
        ("checkpoints loaded", str(sum(run.outcome.checkpoints for run in runs))),
        ("runs as promised", str(sum(1 for run in runs if not run.faults))),
        ("runs that broke a promise", str(sum(1 for run in runs if run.faults))),
    ]
    return Table("Together", ("figure", "value"), rows)


def _as_json(run: Run) -> dict[str, Any]:
    outcome = run.outcome
    plain: dict[str, Any] = {
        "seed": run.plan.seed,
        "command": shlex.join(outcome.command),
        "exit_code": outcome.code,
        "seconds": outcome.ended,
        "sent": [
            {
                **dataclasses.asdict(one.fault),
                "at": one.at,
                "in_training": one.training,
                "reaction_seconds": seconds,
            }
            for one, seconds in zip(outcome.delivered, reactions(outcome), strict=True)
        ],
        "resumed": outcome.resumed is not None,
        "broken": run.faults,
    }
    if run.faults:
        plain["output"] = [f"{line.at:.3f} {line.text}" for line in outcome.lines]
        if outcome.resumed is not None:
            plain["output_resumed"] = [line.text for line in outcome.resumed.lines]
    return plain
