"""The sanity suite itself: what it says, how it ends, and that the engine passes it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from fastrl.bench import sanity
from fastrl.bench import sanity_envs as envs
from fastrl.bench.sanity_checks import CHECKS, ONE_PROCESS, Check, Claim
from fastrl.cli import bench_main

BY_NAME = {check.name: check for check in CHECKS}
IN_THIS_PROCESS = [check.name for check in CHECKS if check.options["workers"] == 0]
HANG = 300.0  # seconds; far above what two trainings take
SHORT = ONE_PROCESS | {"total_steps": 300}


def a_check(name: str, env: type[envs.Small] = envs.Match, **claims: float) -> Check:
    """A training of a moment; keywords name claims of 1 ± 0.5 and give what is reached."""
    return Check(
        name,
        env,
        f"a fault of {name}",
        lambda trained: [Claim(what, 1.0, 0.5, reached) for what, reached in claims.items()],
        SHORT,
    )


class Raises(envs.Small):
    """Cannot be stepped."""

    def step(self, action):
        raise ZeroDivisionError("stepped")


class Interrupts(envs.Small):
    """As if the user pressed Ctrl-C."""

    def step(self, action):
        raise KeyboardInterrupt


@pytest.fixture
def suite(monkeypatch):
    """Put checks in place of the suite's."""

    def put(*checks: Check) -> None:
        monkeypatch.setattr(sanity, "CHECKS", checks)
        for check in checks:
            monkeypatch.setattr(envs, check.env.__name__, check.env, raising=False)

    return put


def test_a_claim_is_judged_by_its_tolerance():
    claim = Claim("V(0)", 2.0, 0.1, 2.05)
    assert claim.passed and claim.spent == pytest.approx(0.5) and str(claim) == "V(0) = 2 ± 0.1"
    assert not replace(claim, reached=1.85).passed
    for nothing in (float("nan"), float("inf")):
        assert not replace(claim, reached=nothing).passed


def test_names_are_unique_and_every_environment_is_used():
    assert len(BY_NAME) == len(CHECKS)
    own = {value for value in vars(envs).values() if isinstance(value, type)}
    assert {check.env for check in CHECKS} == {c for c in own if issubclass(c, envs.Small)} - {
        envs.Small
    }


def test_it_ends_with_0_where_all_pass(suite, capsys, tmp_path):
    suite(a_check("good", V=1.2, P=1.0))
    path = tmp_path / "results.json"
    assert bench_main(["sanity", "--seeds", "3", "4", "--json", str(path)]) == 0
    output = capsys.readouterr().out
    assert "2 of 2 passed" in output and "explained" not in output
    assert (
        len(re.findall(r"good +V = 1 ± 0.5 +1.200 +\d+\.\d  passed  a fault of good", output)) == 2
    )
    assert "saved" not in output and "steps/s" not in output  # the training's own words
    results = json.loads(path.read_text())
    assert set(results) == {"machine", "versions", "seconds", "results"}
    assert results["machine"]["cores"] >= 1 and results["versions"]["torch"]
    assert [result["seed"] for result in results["results"]] == [3, 4]
    assert results["results"][0]["claims"][1] == {
        "what": "P", "must": 1.0, "tolerance": 0.5, "reached": 1.0, "passed": True,
    }  # fmt: skip


def test_a_failure_is_told_with_what_would_explain_it(suite, capsys, tmp_path):
    suite(a_check("good", V=1.0), a_check("bad", V=1.0, P=0.2))
    path = tmp_path / "results.json"
    assert bench_main(["sanity", "--json", str(path)]) == 1
    output = capsys.readouterr().out
    assert "bad, seed 1: P is 0.2, and must be 1 ± 0.5" in output
    assert "explained by a fault of bad (see fastrl.bench.sanity_envs.Match)" in output
    assert "1 of 2 passed" in output
    assert [result["passed"] for result in json.loads(path.read_text())["results"]] == [True, False]


def test_a_training_that_raises_is_a_failed_check_and_the_others_go_on(suite, capsys):
    suite(a_check("raises", Raises), a_check("good", V=1.0))
    assert bench_main(["sanity"]) == 1
    output = capsys.readouterr().out
    assert "raises, seed 1: ZeroDivisionError: stepped" in output and "1 of 2 passed" in output


def test_an_interrupted_suite_stops_at_once(suite, capsys):
    suite(a_check("interrupts", Interrupts), a_check("good", V=1.0))
    assert bench_main(["sanity"]) == 130
    assert "good" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "trunkation"], "--only names 'trunkation', .* the nearest: truncation"),
        (["--seeds", "1", "-2"], "--seeds has -2; a seed is at least 0"),
        (["--json", "no/such/folder/x.json"], "--json .* cannot be written: No such file"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(arguments, sentence, capsys):
    assert bench_main(["sanity", *arguments]) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_only_takes_the_checks_in_the_order_of_the_suite(suite, capsys):
    suite(a_check("one", V=1.0), a_check("two", V=1.0), a_check("three", V=1.0))
    assert bench_main(["sanity", "--only", "three", "one"]) == 0
    assert re.findall(r"^(one|two|three) ", capsys.readouterr().out, re.MULTILINE) == [
        "one",
        "three",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_what_is_trained_in_this_process_reaches_what_it_must(name):
    outcome = sanity.try_out(BY_NAME[name], seed=1)
    assert outcome.passed, "\n".join(outcome.explain())


@pytest.mark.slow
def test_what_the_whole_engine_trains_reaches_what_it_must(tmp_path):
    names = ["own-number-engine", "slow-one-engine"]
    for name in names:
        assert BY_NAME[name].options["workers"] == 2 and BY_NAME[name].options["mode"] == "async"
    # From outside: the engine wants a process whose forkserver is its own.
    call = "import sys; from fastrl.cli import bench_main; sys.exit(bench_main())"
    result = subprocess.run(
        [sys.executable, "-c", call, "sanity", "--only", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 of 2 passed" in result.stdout
