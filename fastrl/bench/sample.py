"""`fastrl-bench sample`: the whole engine with a random policy, as a share of raw stepping.

::

    for each repetition:  the library alone, in each arrangement ─▶ rollouts, inference, a learner
                                                                    that gives slots back at once

Both sides step as many environments by random actions, on as many threads as there are rollout
workers (at most the cores), and count *rows*: environments per call, those that only reset among
them. What the engine adds is the adapter, the arena, the rings and the inference process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, NamedTuple

from fastrl.bench.command import check_numbers, engine_flags, given, plan
from fastrl.bench.options import SampleOptions
from fastrl.bench.peer import BenchFailed
from fastrl.bench.report import Report, Spread, Table, check_outputs, machine
from fastrl.bench.sampling import Sampled, Stopped, sample
from fastrl.bench.stepping import raw_backend, raw_work
from fastrl.bench.team import Team, Work
from fastrl.config import TrainConfig
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError


class Arrangement(NamedTuple):
    """One way to step all environments by their library alone: processes of so many threads."""

    backend: str
    processes: int
    threads: int
    envs: int
    """Of one process."""

    @property
    def name(self) -> str:
        """As the table has it."""
        if self.processes == 1:
            threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
            return f"{self.backend}, one process of {threads}, {self.envs} environments"
        return f"{self.backend}, {self.processes} processes, {self.envs} environments each"


class Result(NamedTuple):
    """An entry per repetition."""

    raw: dict[Arrangement, list[float]]
    """Rows per second."""
    engine: list[Sampled]


def run(options: SampleOptions) -> int:
    """Measure and report; 1 where a process of the engine died."""
    check_numbers(options)
    config, _, cores = plan(engine_flags(("--env", options.env), options.flags))
    if config.workers == 0:
        raise ConfigError("--workers 0 is one process for all; this bench needs rollout workers.")
    tried = arrangements(config, cores)
    check_outputs(options.json, options.plot)
    before = machine()
    try:
        result = measure(options, config, cores, tried)
    except BenchFailed as failure:
        print(f"fastrl-bench: {failure}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.exit_code
    report(options, config, result, before).deliver(options.json, options.plot)
    return 0


def arrangements(config: TrainConfig, cores: int) -> list[Arrangement]:
    """How the library alone may step the environments; ConfigError where it cannot."""
    backend = raw_backend(config.env, config.section(EnvOptions))
    if backend is None:
        raise ConfigError(
            f"{config.env} cannot be stepped without its adapter (masks, --action-repeat, or a "
            "vector environment of another library), so there is nothing to compare with."
        )
    workers = int(config.workers)
    total, threads = workers * config.envs_per_worker, min(workers, cores)
    each = Arrangement(backend, threads, 1, max(1, total // threads))
    if backend != "envpool" or threads == 1:
        return [each]
    return [Arrangement(backend, 1, threads, total), each]


def measure(
    options: SampleOptions, config: TrainConfig, cores: int, tried: list[Arrangement]
) -> Result:
    """Measure both sides in turn; raises BenchFailed, ConfigError or Stopped."""
    result = Result({one: [] for one in tried}, [])
    with contextlib.ExitStack() as stack:
        teams = {one: stack.enter_context(_team(one, config, options.seconds)) for one in tried}
        for repeat in range(options.repeats):
            for one, team in teams.items():
                paces = team.rates(0, options.seconds)
                result.raw[one].append(sum(pace.pieces for pace in paces) * one.envs)
            sampled = sample(config, cores, options.seconds)
            result.engine.append(sampled)
            print(
                f"{repeat + 1} of {options.repeats}: the engine {sampled.rows_per_second:,.0f}, "
                f"raw {max(rates[-1] for rates in result.raw.values()):,.0f} rows/s",
                flush=True,
            )
    return result


def _team(one: Arrangement, config: TrainConfig, seconds: float) -> Team:
    options = config.section(EnvOptions)
    build = functools.partial(_build, config.env, options, one.envs, one.threads, config.seed)
    return Team(build, one.processes * one.threads, one.threads, seconds)


def _build(
    env_id: str, options: EnvOptions, num_envs: int, threads: int, seed: int, copy: int
) -> list[Work]:
    return [raw_work(env_id, options, num_envs, threads, seed + copy)]


def report(
    options: SampleOptions, config: TrainConfig, result: Result, before: dict[str, Any]
) -> Report:
    """Table, JSON and plot of what was measured."""
    raw = {one: Spread.of(rates) for one, rates in result.raw.items()}
    best = max(raw, key=lambda one: raw[one].median)
    rates = [sampled.rows_per_second for sampled in result.engine]
    engine = Spread.of(rates)
    share = Spread.of([a / b for a, b in zip(rates, result.raw[best], strict=True)])
    means = {
        name: Spread.of([getattr(sampled, name) for sampled in result.engine])
        for name in ("batch_rows", "rollout_wait", "inference_wait")
    }
    workers, groups = int(config.workers), config.groups_per_worker
    spread = f"{workers} rollout workers, {groups} groups of {config.envs_per_worker // groups}"
    rows = [(one.name, spread_.text(",.0f")) for one, spread_ in raw.items()]
    table = Table(
        f"{config.env}, {options.seconds:g} s each",
        ("", "rows/s"),
        [*rows, (f"engine, {spread}", engine.text(",.0f")), ("share of raw", share.text(".3f"))],
    )
    inside = Table(
        "Inside the engine",
        ("", "mean"),
        [
            ("rows in a batch of inference", means["batch_rows"].text(",.1f")),
            ("share of time that rollout workers wait", means["rollout_wait"].text()),
            ("share of time that inference waits", means["inference_wait"].text()),
        ],
    )

    def draw(axes: Any) -> None:
        spreads = [*raw.values(), engine]
        reach = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
        names = [*(one.name.replace(", ", ",\n") for one in raw), "engine"]
        axes.bar(names, [s.median for s in spreads], yerr=reach)
        axes.set_ylabel(f"rows per second, {config.env}")

    return Report(
        bench="sample",
        flags=given(options),
        units={
            "row": "one environment in one call, those that only reset among them",
            "a (b to c)": f"median, lowest, highest of {options.repeats} repetitions",
        },
        tables=[table, inside],
        values={
            "env": config.env,
            "engine_rows_per_second": engine.as_json(),
            "raw_rows_per_second": raw[best].as_json(),
            "raw": [{**one._asdict(), "rows_per_second": raw[one].as_json()} for one in raw],
            "share_of_raw": share.as_json(),
            **{name: spread_.as_json() for name, spread_ in means.items()},
        },
        draw=draw,
        machine=before,
    )
