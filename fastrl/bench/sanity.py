"""`fastrl-bench sanity`: train on environments whose answers are known, and compare.

::

    checks x seeds ─▶ train, quietly, in a temporary folder ─▶ judge ─▶ a line each, JSON

Most are trained in this process, in seconds each; some once more through all processes of the
engine.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl.bench import report
from fastrl.bench.options import SanityOptions
from fastrl.bench.sanity_checks import CHECKS, Check, Claim
from fastrl.bench.trained import Trained
from fastrl.config import INT32_MAX, TrainConfig
from fastrl.errors import ConfigError
from fastrl.workers.training import train

MODULE = "fastrl.bench.sanity_envs"
SIGNALS = (129, 130, 143)
"""Exit codes of a training that a signal has ended."""
LAST_LINES = 12
"""Of what a failed training has printed, that are shown."""


@dataclass(frozen=True)
class Outcome:
    """One check on one seed."""

    check: Check
    seed: int
    seconds: float
    claims: list[Claim]
    error: str | None = None
    """Why there is nothing to judge."""

    @property
    def passed(self) -> bool:
        """Whether every claim holds."""
        return self.error is None and all(claim.passed for claim in self.claims)

    @property
    def hardest(self) -> Claim:
        """The claim that came nearest to failing, or furthest in it."""
        return max(self.claims, key=lambda claim: claim.spent)

    def line(self) -> str:
        """A line of the table."""
        must, reached = ("a training that ends", "")
        if self.error is None:
            must, reached = str(self.hardest), f"{self.hardest.reached:.3f}"
        verdict = "passed" if self.passed else "FAILED"
        return _columns(
            self.check.name, must, reached, f"{self.seconds:.1f}", verdict, self.check.catches
        )

    def explain(self) -> list[str]:
        """What did not hold, and what would explain it."""
        if self.error is not None:
            found = self.error
        else:
            found = "; ".join(
                f"{claim.what} is {claim.reached:.4g}, and must be {claim.must:.4g} "
                f"± {claim.tolerance:.2g}"
                for claim in self.claims
                if not claim.passed
            )
        doc = f"{MODULE}.{self.check.env.__name__}"
        return [
            f"{self.check.name}, seed {self.seed}: {found}",
            f"    It would be explained by {self.check.catches} (see {doc}).",
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "name": self.check.name,
            "catches": self.check.catches,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "passed": self.passed,
            "error": self.error,
            "claims": [
                {
                    "what": claim.what,
                    "must": claim.must,
                    "tolerance": claim.tolerance,
                    "reached": claim.reached,
                    "passed": claim.passed,
                }
                for claim in self.claims
            ],
        }


def _columns(name: str, must: str, reached: str, seconds: str, verdict: str, catches: str) -> str:
    return f"{name:<18} {must:<40} {reached:>8} {seconds:>6}  {verdict:<7} {catches}"


def run(options: SanityOptions) -> int:
    """Train and judge every check, or those that are named, on every seed; return the exit code.

    0: all passed; 1: some did not. Raises ConfigError for an unknown name, a seed out of range, no
    seed at all and a file that cannot be written; KeyboardInterrupt where a signal ends a training.
    """
    seeds, json_path = options.seeds, options.json
    checks = _choose(options.only)
    _check_seeds(seeds)
    report.check_outputs(json_path, None)
    machine, versions = report.machine(), report.versions()
    print(
        f"{machine['cpu']}, {machine['cores']} cores usable, load {machine['load']:.1f}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    began = time.monotonic()
    outcomes = []
    for seed in seeds:
        print(f"\n{_columns(f'seed {seed}', 'must reach', 'reached', 's', '', 'it catches')}")
        for check in checks:
            outcomes.append(outcome := try_out(check, seed))
            print(outcome.line(), flush=True)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    print()
    for outcome in failed:
        print("\n".join(outcome.explain()))
    count, seconds = len(outcomes), time.monotonic() - began
    print(f"{count - len(failed)} of {count} passed in {seconds:.0f} s")
    if json_path is not None:
        results = {
            "machine": machine,
            "versions": versions,
            "seconds": round(seconds, 1),
            "results": [outcome.as_json() for outcome in outcomes],
        }
        report.write_text(json_path, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return 1 if failed else 0


def try_out(check: Check, seed: int) -> Outcome:
    """Train in a temporary folder, without a word, and judge.

    Whatever goes wrong in it is a failed check, not an error: ConfigError as well, since the
    options are ours. Raises KeyboardInterrupt where a signal has ended the training.
    """
    began = time.monotonic()
    claims: list[Claim] = []
    error = None
    output = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="fastrl-sanity-") as folder:
        run_dir = Path(folder) / "run"
        config = TrainConfig(
            env=f"py:{MODULE}:{check.env.__name__}",
            seed=seed,
            run_dir=run_dir,
            **check.options_for(seed),
        )
        try:
            with contextlib.redirect_stdout(output):
                code = train(config)
            if code in SIGNALS:
                raise KeyboardInterrupt
            if code == 0:
                claims = check.judge(Trained(run_dir, check.env.observation_space))
            else:
                last = output.getvalue().splitlines()[-LAST_LINES:]
                error = "\n    ".join([f"the training ended with exit code {code}:", *last])
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return Outcome(check, seed, time.monotonic() - began, claims, error)


def _choose(only: Sequence[str]) -> list[Check]:
    """The checks of these names, in their own order; all of them for none."""
    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=3) or names
            raise ConfigError(
                f"--only names {name!r}, and there is no such check; the nearest: "
                f"{', '.join(nearest)}."
            )
    return [check for check in CHECKS if not only or check.name in only]


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds:
        raise ConfigError("--seeds is empty; give at least one number.")
    for seed in seeds:
        if not 0 <= seed <= INT32_MAX:
            raise ConfigError(
                f"--seeds has {seed}; a seed is at least 0 and at most {INT32_MAX:,}."
            )
