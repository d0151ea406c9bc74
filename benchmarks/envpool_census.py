"""Which of envpool's ids the engine trains: all of them, each in a process of its own.

``python benchmarks/envpool_census.py --jobs 2 --json census.json``::

    ids ─▶ a forked child each: construct, train ─▶ trained, refused or failed ─▶ tables

A child trains with ``--workers 0`` in a folder of its own, and may crash or hang: that is an
outcome like another. *trained*: the steps were learned from, with finite losses. *refused*: a
ConfigError, which is a sentence. *failed*: anything else; there must be none.

Exit codes: 0 nothing failed, 1 something did, 2 refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import fnmatch
import json
import math
import os
import re
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from marked_part import replace_part

from fastrl.bench.records import read_records
from fastrl.bench.report import machine, versions
from fastrl.config import TrainConfig
from fastrl.envs import envpool_adapter
from fastrl.errors import ConfigError
from fastrl.workers.process import die_with_parent

KINDS = ("trained", "refused", "failed")
LOSSES = ("losses/policy_loss", "losses/value_loss")
"""A record leaves out a metric that is not finite."""
LAST_LINES = 12
"""Of a failed child's output that are kept."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Train every id that envpool lists, and sort what comes of it."""

    only: tuple[str, ...] = ("*",)
    """Ids to take, as shell patterns (envpool:MiniGrid-*)."""
    jobs: int = 1
    """Children at a time."""
    steps: int = 200
    """Steps to train for."""
    limit: float = 120.0
    """Seconds that a child may take."""
    json: Path | None = None
    """File for all outcomes."""
    earlier: Path | None = None
    """JSON of an earlier run: its outcomes are taken over, but for those that failed."""
    write: Path | None = None
    """Markdown file whose part between this program's marks is replaced by the tables."""


class Outcome(NamedTuple):
    """What came of one id."""

    env_id: str
    module: str
    """Of envpool, which has the id."""
    kind: str
    """One of KINDS."""
    text: str
    """The sentence of a refusal, or what happened instead."""
    seconds: float
    """Wall time of the child."""


Work = Callable[[str], None]
"""Trains an id in the current folder; raises ConfigError where it is refused."""


def ids_and_modules(only: Sequence[str] = ("*",)) -> dict[str, str]:
    """Every id that matches one of `only`, and envpool's module of it."""
    specs = envpool_adapter.import_envpool("the census").registration.registry.specs
    modules = {
        f"{family}:{name}": specs[name + "-v5" if family == "atari" else name][0]
        for family in ("atari", "envpool")
        for name in envpool_adapter.names(family)
    }
    return {
        env_id: module
        for env_id, module in modules.items()
        if any(fnmatch.fnmatchcase(env_id, pattern) for pattern in only)
    }


def train_for(steps: int) -> Work:
    """Work that trains an id for `steps` steps, and looks at what was learned from."""

    def work(env_id: str) -> None:
        import torch

        from fastrl.workers.training import train

        torch.set_num_threads(1)
        run = Path("run")
        code = train(
            TrainConfig(
                env=env_id,
                total_steps=steps,
                seed=1,
                run_dir=run,
                workers=0,
                groups_per_worker=1,
                envs_per_worker=2,
                rollout_length=20,
                stagger=4,
                minibatches=1,
                epochs=1,
                log_every="1u",
            )
        )
        records = read_records(run)
        learned = records[-1]["steps"]
        if code != 0 or learned < steps:
            raise RuntimeError(f"train() returned {code} after {learned} of {steps} steps.")
        updates = [record for record in records if "perf/update_ms" in record]
        lost = [name for name in LOSSES if any(name not in record for record in updates)]
        if lost or not updates:
            raise RuntimeError(f"of {len(updates)} updates not all had a finite {LOSSES}.")

    return work


def take(modules: dict[str, str], work: Work, jobs: int, limit: float) -> Iterator[Outcome]:
    """Run `work` for every id of `modules`, `jobs` at a time; yield outcomes as they come.

    Args:
        modules: id -> module.
        work: called in a child forked from this process.
        jobs: children at a time.
        limit: seconds after which a child is killed.
    """
    waiting = list(reversed(modules))
    running: dict[int, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _Child(waiting.pop(), work)
                running[child.pidfd] = child
            now = time.monotonic()
            next_end = min(child.began + limit for child in running.values())
            ended, _, _ = select.select(list(running), [], [], max(0.0, next_end - now))
            late = [fd for fd, child in running.items() if time.monotonic() > child.began + limit]
            for fd in {*ended, *late}:
                child = running.pop(fd)
                kind, text = child.end(f"it took more than {limit:g} s" if fd not in ended else "")
                seconds = time.monotonic() - child.began
                yield Outcome(child.env_id, modules[child.env_id], kind, text, seconds)
    finally:
        for child in running.values():
            child.end("")


class _Child:
    """One forked process with a folder and a session of its own, which it is killed with."""

    def __init__(self, env_id: str, work: Work) -> None:
        self.env_id = env_id
        self.began = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="fastrl-census-"))
        parent = os.getpid()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._be(parent, work)
        self.pidfd = os.pidfd_open(self._pid)

    def _be(self, parent: int, work: Work) -> None:
        """Work, say how it ended, and leave without what the parent would do at its exit."""
        code = 3
        try:
            os.setsid()
            die_with_parent(parent)
            os.chdir(self._folder)
            output = open("output", "w", buffering=1)  # noqa: SIM115 (as long as the process lives)
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            sys.stdout = sys.stderr = output
            faulthandler.enable(output)
            try:
                work(self.env_id)
                answer = ["trained", ""]
            except ConfigError as error:
                answer = ["refused", str(error)]
            except BaseException as error:
                answer = ["failed", f"{type(error).__name__}: {error}"]
            Path("answer").write_text(json.dumps(answer))
            code = 0
        finally:
            os._exit(code)

    def end(self, why: str) -> tuple[str, str]:
        """Kill what is left of it; return its kind and text. `why`: it is killed, else ''."""
        # Also a program that the environment has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # it may not have its session yet
        _, status = os.waitpid(self._pid, 0)
        os.close(self.pidfd)
        try:
            if not why and status == 0:
                kind, text = json.loads((self._folder / "answer").read_text())
                return kind, text
        except (OSError, ValueError):
            pass
        finally:
            tail = self._tail()
            shutil.rmtree(self._folder, ignore_errors=True)
        how = why or f"its process ended with code {os.waitstatus_to_exitcode(status)}"
        return "failed", f"{how}; its output ended: {tail}"

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / "output").read_text(errors="replace").splitlines()
            return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
        return ""


def by_module(outcomes: Sequence[Outcome]) -> list[str]:
    """Aligned lines: how many ids of each module ended how, and the median time of the trained."""
    rows = [("module", "ids", *KINDS, "median s")]
    modules = sorted({outcome.module for outcome in outcomes})
    for module in [*modules, "all"]:
        own = [outcome for outcome in outcomes if module in (outcome.module, "all")]
        count = Counter(outcome.kind for outcome in own)
        times = [outcome.seconds for outcome in own if outcome.kind == "trained"]
        median = f"{statistics.median(times):.1f}" if times else "-"
        numbers = (f"{count[kind]:,}" for kind in KINDS)
        rows.append((module, f"{len(own):,}", *numbers, median))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def by_sentence(outcomes: Sequence[Outcome], kind: str) -> list[str]:
    """Lines: how many ids of a kind were told what (the id taken out), and one of them."""
    examples: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.kind == kind:
            sentence = outcome.text.replace(outcome.env_id, "ID")
            sentence = sentence.replace(outcome.env_id.partition(":")[2], "NAME")
            # Where packages lie is each machine's own affair.
            sentence = re.sub(r"\S*/site-packages/", "", sentence)
            examples.setdefault(sentence, []).append(outcome.env_id)
    ordered = sorted(examples.items(), key=lambda item: -len(item[1]))
    return [f"{len(ids):>5,}  {sentence} (as {ids[0]})" for sentence, ids in ordered]


def report(options: Options, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Everything, for the JSON file."""
    return {
        "machine": machine(),
        "versions": versions(),
        "options": {"only": options.only, "steps": options.steps, "limit": options.limit},
        "seconds": seconds,
        "counts": {kind: sum(o.kind == kind for o in outcomes) for kind in KINDS},
        "outcomes": [outcome._asdict() for outcome in sorted(outcomes)],
    }


def in_markdown(options: Options, outcomes: Sequence[Outcome]) -> list[str]:
    """The tables as lines of Markdown."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        f"{len(outcomes):,} ids on {machine()['cpu']}, {options.jobs} at a time, with {installed}:",
        f"{sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes of processes.",
        "",
        "```",
        *by_module(outcomes),
        "```",
    ]
    for kind in ("refused", "failed"):
        if told := by_sentence(outcomes, kind):
            lines += ["", f"{kind.capitalize()}:", "", *(f"- {line.strip()}" for line in told)]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Train, print, write; return the exit code."""
    options = tyro.cli(Options, prog="envpool_census.py", args=list(arguments))
    modules = ids_and_modules(options.only)
    if not modules or options.jobs < 1 or options.steps < 1 or not 0 < options.limit < math.inf:
        print(
            f"envpool_census.py: {len(modules)} ids match --only {' '.join(options.only)}; it "
            "takes one, and --jobs, --steps and --limit above 0.",
            file=sys.stderr,
        )
        return 2
    total = len(modules)
    outcomes: list[Outcome] = []
    if options.earlier is not None:
        told = json.loads(options.earlier.read_text())["outcomes"]
        outcomes = [o for row in told if (o := Outcome(**row)).kind != "failed"]
        outcomes = [o for o in outcomes if modules.pop(o.env_id, None) is not None]
    # Once, for all children: the optimisers import torch._dynamo, 5 s of a core.
    import torch
    import torch._dynamo

    import fastrl.workers.single  # noqa: F401

    torch.set_num_threads(1)
    began = time.monotonic()
    for outcome in take(modules, train_for(options.steps), options.jobs, options.limit):
        outcomes.append(outcome)
        place = f"{len(outcomes):>5,}/{total:,}"
        print(f"{place}  {outcome.kind:<7}  {outcome.seconds:5.1f} s  {outcome.env_id}", flush=True)
    seconds = time.monotonic() - began
    print()
    print("\n".join(by_module(outcomes)))
    for kind in ("refused", "failed"):
        if lines := by_sentence(outcomes, kind):
            print(f"\n{kind}:")
            print("\n".join(lines))
    if options.json is not None:
        text = json.dumps(report(options, outcomes, seconds), indent=2, ensure_ascii=False)
        options.json.write_text(text + "\n")
    if options.write is not None:
        replace_part(options.write, "envpool_census.py", in_markdown(options, outcomes))
    return 1 if any(outcome.kind == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
