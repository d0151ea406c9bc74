"""`fastrl-bench train`: how fast the engine trains, and which share of the machine does the work.

::

    [sweep] ─▶ c's on every core ─▶ fastrl-train, measured after its warm-up ─▶ c's again ─▶ report

Efficiency is learned steps/s x (c_env + c_inf + epochs·c_train) / cores, as docs/design.md has it
in section 7. c_env is that of random play, which in CartPole ends its episodes after some 20 steps.
The figures mean something on a machine that does nothing else.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys

from fastrl.bench import report
from fastrl.bench.command import check_numbers, dtypes, engine_flags, given, plan
from fastrl.bench.costs import Samples, arrangements, measure
from fastrl.bench.engine_run import EngineFailed, run_engine
from fastrl.bench.options import TrainOptions
from fastrl.bench.processes import between
from fastrl.bench.profiles import PROFILES, Profile
from fastrl.bench.records import NoRate, Rate, learned_rate, mean_of, sampled_rate
from fastrl.bench.train_result import MEANS, Result
from fastrl.config import TrainConfig
from fastrl.errors import ConfigError

SWEEP_SECONDS, SWEEP_WARM_UP = 15.0, 5.0
"""Longest measured time and warm-up of one arrangement of a sweep."""


def run(options: TrainOptions) -> int:
    """Measure and report; return the exit code: 1 where the run failed, or cannot be true.

    Raises ConfigError.
    """
    check_numbers(options)
    report.check_outputs(options.json, options.plot)
    try:
        result = measure_all(options)
    except (EngineFailed, NoRate) as error:
        print(f"fastrl-bench: {error}", file=sys.stderr)
        return 1
    result.report().deliver(options.json, options.plot)
    return judge(result)


def judge(result: Result) -> int:
    """Return the exit code: 1, with the sentence, where the result cannot be true."""
    if result.efficiency > 1.0:
        print(
            f"The efficiency is {result.efficiency:.3f}, over 1.0: the c's are wrong.",
            file=sys.stderr,
        )
        return 1
    return 0


def measure_all(options: TrainOptions) -> Result:
    """Measure costs, engine, costs; raises ConfigError, EngineFailed or NoRate."""
    profile = PROFILES[options.profile]
    machine = report.machine()
    # Refuses before anything is measured.
    if plan(engine_flags(profile.flags, options.flags)).config.workers == 0:
        raise ConfigError("--workers 0 is one process for all; this bench tells them apart.")
    best = find_best(profile, options) if options.sweep else ()
    flags = engine_flags([*profile.flags, *best], options.flags)
    config, spec, cores = plan(flags)
    group_size = config.envs_per_worker // config.groups_per_worker
    tried = arrangements((*profile.group_sizes, group_size), profile.batch_sizes, dtypes())

    def costs() -> Samples:
        print(f"c_env, c_inf and c_train on {cores} cores ...", flush=True)
        return measure(config, spec, tried, cores, options.cost_seconds, options.repeats)

    before = costs()
    print(f"fastrl-train {shlex.join(flags)} ...", flush=True)
    engine = run_engine(flags, options.warm_up, options.seconds)
    check_same(config, engine.config)
    learned, sampled = learned_rate(engine.records), sampled_rate(engine.records)
    after = costs()
    means = {name: mean_of(engine.records, name) for name in MEANS}
    return Result(
        machine=machine,
        command=given(options),
        flags=flags,
        config=engine.config,
        frame_skip=spec.frame_skip,
        samples={arrangement: before[arrangement] + after[arrangement] for arrangement in tried},
        learned=learned,
        sampled=sampled,
        roles=between(engine.first, engine.last),
        means={name: value for name, value in means.items() if value is not None},
    )


def check_same(planned: TrainConfig, run: TrainConfig) -> None:
    """Raise EngineFailed where the run was another one than what the c's were measured for.

    What the plan left open, as the run's folder and what the learner finds out itself, is no
    difference.
    """
    decided = {
        field.name: value
        for field in dataclasses.fields(planned)
        if (value := getattr(planned, field.name)) is not None
    }
    other = [name for name, value in decided.items() if getattr(run, name) != value]
    if other:
        raise EngineFailed(
            f"The run resolved {', '.join(other)} otherwise than planned; are two versions of "
            "fastrl installed?"
        )


def find_best(profile: Profile, options: TrainOptions) -> tuple[str, ...]:
    """Run every arrangement of the profile for a short time; return the fastest one's flags.

    One that fails, or is too slow to show a rate, is told and passed over. Raises EngineFailed
    where none is left.
    """
    rates: dict[tuple[str, ...], Rate] = {}
    seconds = min(options.seconds, SWEEP_SECONDS)
    warm_up = min(options.warm_up, SWEEP_WARM_UP)
    for arrangement in profile.sweep:
        flags = engine_flags([*profile.flags, *arrangement], options.flags)
        try:
            rates[arrangement] = learned_rate(run_engine(flags, warm_up, seconds).records)
        except (EngineFailed, NoRate) as error:
            print(f"sweep  {shlex.join(arrangement)}: {error}", flush=True)
        else:
            print(f"sweep  {shlex.join(arrangement)}: {rates[arrangement]}", flush=True)
    if not rates:
        raise EngineFailed("No arrangement of the sweep gave a rate.")
    return max(rates, key=lambda arrangement: rates[arrangement].mean)
