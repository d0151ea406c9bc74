"""`fastrl-bench soak`: the engine for long; does it keep its size and its efficiency?

::

    0 %          20 %  30 %                                          80 %            100 %
    │ warming up │ rate │                                             │ rate         │ SIGINT
                  ^ ^ ^ work                                           ^ ^ ^ ^ ^ ^ ^ work
                 │ files, threads                                     files, threads │
                 │ memory: slope of a line through the smallest of each part ......  │

Memory is judged by role: resident memory that belongs to no file (RssAnon), of all its processes.
Efficiency is the rate times the work of a step over the cores (docs/design.md), by what that work
costs alone in short pauses within the same time: a machine that others share is now faster, now
slower, and within seconds.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastrl.bench import report
from fastrl.bench.command import check_numbers, dtypes, engine_flags, given, plan
from fastrl.bench.costs import Meter, arrangements, cheapest, efficiency, work_per_step
from fastrl.bench.engine_run import INTERRUPTED, EngineFailed
from fastrl.bench.options import SoakOptions
from fastrl.bench.pages import check_page, replace_section, section_of
from fastrl.bench.processes import ROLES, Held
from fastrl.bench.records import NoRate, learned_rate
from fastrl.bench.report import Report, Table
from fastrl.bench.soak_run import Look, Soaked, soak_engine
from fastrl.errors import ConfigError
from fastrl.workers.heap import CARE_SECONDS

PROFILES = {
    "pong": (
        *("--env", "atari:Pong", "--workers", "16", "--envs-per-worker", "8"),
        *("--preset", "atari-throughput"),
    ),
    "cartpole": (
        *("--env", "envpool:CartPole-v1", "--workers", "4", "--envs-per-worker", "1024"),
        *("--rollout-length", "32", "--epochs", "1", "--minibatches", "4"),
    ),
}
SETTLED = 0.2
"""Share of the time after which nothing may grow any more."""
EARLY, LATE = (0.2, 0.3), (0.8, 1.0)
"""Shares of the time whose efficiencies are compared."""
PAUSE_EVERY = 10.0
"""Seconds between two pauses within these times."""
MIN_PAUSE_EVERY = 3.0
"""Of a short soak."""
MEASURED_SHARE = 1 / 20
"""Of the time between two pauses: what each kind of work is measured for in one."""
ROWS = {"pong": (256, 1024), "cartpole": (4096, 32768)}
"""Rows of a pass whose cost is tried; before the run the cheapest is chosen, by its dtype too."""
REPEATS = 3
"""Measurements of each arrangement for that."""
AROUND = 5
"""Looks of which the least counts for open files and threads: main opens one for a moment to look
at memory, the learner to save."""
FULL_SECONDS = 600.0
"""Time for which the bounds below are meant."""
SLOPE_PERCENT = 0.5
"""Of its mean, per minute: what the memory of a role may grow by."""
EFFICIENCY_PERCENT = 10.0
"""What the late efficiency may be lower than the early one by."""
MB = 1e6


@dataclass(frozen=True)
class Verdict:
    """One promise, and what was seen of it."""

    name: str
    found: str
    bound: str
    kept: bool


def run(options: SoakOptions) -> int:
    """Soak and report; return the exit code: 1 where a promise was broken. Raises ConfigError."""
    check_numbers(options)
    report.check_outputs(options.json, options.plot)
    check_page(options.write)
    machine = report.machine()
    flags = engine_flags(PROFILES[options.profile], options.flags)
    config, spec, cores = plan(flags)
    if config.workers == 0:
        raise ConfigError("--workers 0 is one process for all; this bench tells them apart.")
    group_size = config.envs_per_worker // config.groups_per_worker
    tried = arrangements([group_size], ROWS[options.profile], dtypes())
    print(f"fastrl-train {shlex.join(flags)} ...", flush=True)
    with Meter(config, spec, tried, cores, MEASURED_SHARE * pause_every(options.seconds)) as meter:
        chosen = {cost.arrangement for cost in cheapest(meter.measure(REPEATS)).values()}

        def work() -> float:
            return work_per_step(cheapest(meter.measure(1, chosen)), config.epochs)

        try:
            soaked = soak_engine(flags, options.seconds, work, pause_times(options.seconds))
        except EngineFailed as error:
            print(f"fastrl-bench: {error}", file=sys.stderr)
            return 1
    verdicts = judge(soaked, cores)
    result = report_of(options, flags, soaked, verdicts, machine)
    result.deliver(options.json, options.plot)
    broken = [one.name for one in verdicts if not one.kept]
    if options.write is not None:
        note = "not kept: " + ", ".join(broken) if broken else "every promise was kept"
        name = f"fastrl-bench soak --profile {options.profile}"
        replace_section(options.write, name, section_of(result, [note]))
    if broken:
        print(f"not kept: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def pause_every(seconds: float) -> float:
    """Seconds between two pauses of a soak of so many seconds."""
    return max(MIN_PAUSE_EVERY, min(PAUSE_EVERY, PAUSE_EVERY * seconds / FULL_SECONDS))


def pause_times(seconds: float) -> list[float]:
    """When the engine stands still, in seconds: in the middle of each part of EARLY and LATE."""
    every = pause_every(seconds)
    times: list[float] = []
    for begin, end in (EARLY, LATE):
        parts = max(1, int((end - begin) * seconds / every + 1e-6))
        length = (end - begin) * seconds / parts
        times += [begin * seconds + (part + 0.5) * length for part in range(parts)]
    return times


def slope_bound(seconds: float) -> float:
    """Growth of memory that is allowed, in percent per minute.

    A heap takes a last step up now and then, an arena of malloc or a longer list, and then stays.
    Over ten minutes such a step is a small slope, over one minute ten times as large. So what is
    bounded in a shorter soak is the same growth in all.
    """
    return SLOPE_PERCENT * max(1.0, FULL_SECONDS / seconds)


def efficiency_bound(seconds: float) -> float:
    """How much lower the efficiency may be at the end, in percent: means of shorter parts scatter
    more, by the root of their length."""
    return EFFICIENCY_PERCENT * float(np.sqrt(max(1.0, FULL_SECONDS / seconds)))


def judge(soaked: Soaked, cores: int) -> list[Verdict]:
    """Every promise of a soak on so many cores."""
    verdicts = [
        judge_memory(soaked, role)
        for role in ROLES
        if any(one.role == role for one in soaked.looks[0].held.values())
    ]
    verdicts += judge_held(soaked)
    verdicts.append(judge_efficiency(soaked, cores))
    told = "it did not end" if soaked.code is None else f"exit code {soaked.code}"
    verdicts.append(
        Verdict("end by SIGINT", told, f"exit code {INTERRUPTED}", soaked.code == INTERRUPTED)
    )
    left = "; ".join(soaked.left) or "none"
    verdicts.append(Verdict("processes left", left, "none", not soaked.left))
    return verdicts


def judge_memory(soaked: Soaked, role: str) -> Verdict:
    """The slope of a line through a role's memory, once the engine has settled."""
    looks = [look for look in soaked.looks if look.at >= SETTLED * soaked.seconds]
    bound = slope_bound(soaked.seconds)
    sizes = [memory_of(look, role) for look in looks]
    if len(looks) < 10 or min(sizes) == 0:
        return Verdict(f"memory of {role}", "it was not there all the time", "it is there", False)
    minutes, floors = _floors(looks, sizes)
    slope, _ = np.polyfit(minutes, floors, 1)
    percent = float(100 * slope / statistics.fmean(floors))
    return Verdict(
        f"memory of {role}",
        f"{floors[0] / MB:,.1f} to {floors[-1] / MB:,.1f} MB, {percent:+.2f} % per minute; "
        f"at most {max(sizes) / MB:,.1f} MB",
        f"at most {bound:g} % per minute",
        percent <= bound,
    )


def _floors(looks: Sequence[Look], sizes: Sequence[int]) -> tuple[list[float], list[int]]:
    """The smallest size of each part of the looks, and when it was, in minutes.

    What a batch takes for a moment, and what malloc keeps until it is trimmed, comes and goes; what
    leaks is in the floor as well. So that each part has a floor, it has two trims in it, where the
    looks last for several of them.
    """
    trims = (looks[-1].at - looks[0].at) / CARE_SECONDS
    count = 10 if trims < 3.5 else min(10, round(trims / 2))
    parts = [part for part in np.array_split(np.arange(len(looks)), count) if len(part)]
    lowest = [min(part.tolist(), key=lambda at: sizes[at]) for part in parts]
    return [looks[at].at / 60 for at in lowest], [sizes[at] for at in lowest]


def memory_of(look: Look, role: str) -> int:
    """Bytes of all processes of a role."""
    return sum(one.private for one in look.held.values() if one.role == role)


def judge_held(soaked: Soaked) -> list[Verdict]:
    """The same processes, with as many open files and threads as once the engine had settled."""
    at = next(
        place for place, look in enumerate(soaked.looks) if look.at >= SETTLED * soaked.seconds
    )
    early, late = soaked.looks[at : at + AROUND], soaked.looks[-AROUND:]
    first, last = early[0].held, late[-1].held
    gone, new = first.keys() - last.keys(), last.keys() - first.keys()
    change = ", ".join(
        [f"{first[pid].role} {pid} is gone" for pid in sorted(gone)]
        + [f"{last[pid].role} {pid} is new" for pid in sorted(new)]
    )
    same = Verdict("processes", change or f"{len(last)}, all the time", "the same", not change)
    taken = _training_threads(soaked, 1.0) - _training_threads(soaked, SETTLED)
    files = _judge_count("files", early, late)
    return [same, files, _judge_count("threads", early, late, taken)]


def _training_threads(soaked: Soaked, share: float) -> int:
    """The most threads that the learner has trained with up to a share of the time.

    It takes one more where cores would idle, and says so; torch ends none of them.
    """
    name, end = "perf/learner_threads", share * soaked.seconds
    return int(max((r.get(name, 0) for r in soaked.records if r["seconds"] <= end), default=0))


def _judge_count(what: str, early: Sequence[Look], late: Sequence[Look], taken: int = 0) -> Verdict:
    """Whether each process has as many as before; the learner may have `taken` that many more."""

    def least(looks: Sequence[Look], pid: int) -> int:
        return min(_count(look.held[pid], what) for look in looks if pid in look.held)

    first, last = early[0].held, late[-1].held
    pairs = {
        pid: (least(early, pid) + (taken if first[pid].role == "learner" else 0), least(late, pid))
        for pid in first.keys() & last.keys()
    }
    changes = ", ".join(
        f"{first[pid].role} {pid}: {before} to {after}"
        for pid, (before, after) in sorted(pairs.items())
        if before != after
    )
    total = sum(after for _, after in pairs.values())
    told = f"{total:,} in all, each as before"
    if taken:
        told += f" but for {taken} more that the learner says it trains with"
    name = {"files": "open files", "threads": "threads"}[what]
    return Verdict(name, changes or told, "equal", not changes)


def _count(one: Held, what: str) -> int:
    return one.files if what == "files" else one.threads


def judge_efficiency(soaked: Soaked, cores: int) -> Verdict:
    """Efficiency at the end against that once the engine had settled; only less is a fault."""
    bound = f"at most {efficiency_bound(soaked.seconds):.3g} % lower"
    try:
        rates = [_rate_within(soaked, *shares) for shares in (EARLY, LATE)]
        works = [_work_within(soaked, *shares) for shares in (EARLY, LATE)]
    except NoRate as error:
        return Verdict("efficiency", str(error), bound, False)
    early, late = (efficiency(*seen, cores) for seen in zip(rates, works, strict=True))
    percent = 100 * (late / early - 1)
    told = ", then ".join(
        f"{share:.3f} ({rate:,.0f} steps/s of {work:,.4g} µs)"
        for share, rate, work in zip((early, late), rates, works, strict=True)
    )
    found = f"{told}: {percent:+.1f} %"
    kept = percent >= -efficiency_bound(soaked.seconds)
    if max(early, late) > 1.0:
        # No engine does more than there is time for: rate or work was measured wrong.
        found, kept = f"{found}; above 1, so not to be relied on", False
    return Verdict("efficiency", found, bound, kept)


def _rate_within(soaked: Soaked, begin: float, end: float) -> float:
    """Learned steps/s between two shares of the time, on a clock that stands still in pauses."""

    def running(at: float) -> float:
        return at - sum(min(at, pause.end) - min(at, pause.begin) for pause in soaked.pauses)

    within = [
        record | {"seconds": running(record["seconds"])}
        for record in soaked.records
        if begin * soaked.seconds <= record["seconds"] <= end * soaked.seconds
    ]
    return learned_rate(within).mean


def _work_within(soaked: Soaked, begin: float, end: float) -> float:
    """What a step cost in the pauses between two shares of the time, in µs.

    The harmonic mean: an engine that has the same share of the machine all the time does as many
    steps in each second as the machine could then, and that is what there is a mean of. Raises
    NoRate where there was no pause.
    """
    works = [
        pause.work_us
        for pause in soaked.pauses
        if begin * soaked.seconds <= pause.begin <= end * soaked.seconds
    ]
    if not works:
        raise NoRate(f"no pause was from {begin:.0%} to {end:.0%} of the time")
    return statistics.harmonic_mean(works)


def report_of(
    options: SoakOptions,
    flags: Sequence[str],
    soaked: Soaked,
    verdicts: Sequence[Verdict],
    machine: dict[str, Any],
) -> Report:
    """The verdicts as a table, what was seen, and the plot of memory."""
    return Report(
        bench="soak",
        flags=given(options),
        units={
            "memory": "RssAnon of all processes of a role, MB of 10^6 bytes: what belongs to no "
            f"file; of each part of the last {1 - SETTLED:.0%} of the time the smallest counts: "
            "that of its first and last part, and the slope of a line through all",
            "open files, threads": f"of each process, at {SETTLED:.0%} of the time and at its end",
            "efficiency": f"learned steps/s from {EARLY[0]:.0%} to {EARLY[1]:.0%} of the time and "
            f"from {LATE[0]:.0%} to its end, each times the work of a step (c_env + c_inf + "
            "epochs·c_train, measured within the same time, in pauses in which the engine stands "
            "still and which do not count in the rate; harmonic mean), / cores",
        },
        tables=[
            Table(
                f"{options.profile}: fastrl-train {shlex.join(flags)}",
                ("promise", "seen", "bound", ""),
                [
                    (one.name, one.found, one.bound, "kept" if one.kept else "NOT KEPT")
                    for one in verdicts
                ],
            )
        ],
        values={
            "profile": options.profile,
            "engine_flags": list(flags),
            "seconds": soaked.seconds,
            "kept": all(one.kept for one in verdicts),
            "verdicts": [vars(one) for one in verdicts],
            "looks": [
                {
                    "at": look.at,
                    "processes": {str(pid): vars(one) for pid, one in look.held.items()},
                }
                for look in soaked.looks
            ],
            "steps": [[record["seconds"], record["steps"]] for record in soaked.records],
            "pauses": [vars(pause) for pause in soaked.pauses],
        },
        draw=lambda axes: _draw(axes, soaked),
        machine=machine,
    )


def _draw(axes: Any, soaked: Soaked) -> None:
    minutes = [look.at / 60 for look in soaked.looks]
    for role in ROLES:
        sizes = [memory_of(look, role) for look in soaked.looks]
        if all(sizes):
            last = sizes[-1]
            axes.plot(
                minutes, [100 * size / last for size in sizes], label=f"{role}, {last / MB:,.0f} MB"
            )
    axes.axvline(SETTLED * soaked.seconds / 60, linestyle=":", color="gray")
    axes.set_xlabel("minutes since the first batch")
    axes.set_ylabel("resident memory, % of that at the end")
    axes.legend()
