"""`fastrl-bench chaos`: what is drawn, and that every broken promise is found in made-up runs."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

import pytest
from outputs import refusal

from fastrl.bench.chaos import Run, exit_code, report_of, story
from fastrl.bench.chaos_judge import allowed_codes, judge, reactions
from fastrl.bench.chaos_plan import ENGINE_ENDS, SIGNALS, TARGETS, Fault, draw
from fastrl.bench.chaos_run import Delivered, Line, Outcome
from fastrl.bench.options import ChaosOptions

PLAN = dataclasses.replace(draw(1, 9), restarts=0, worker_restarts=None, faults=())
DONE = Line(20.0, "the learner has finished after 20,000 steps")
AGAIN = "the engine is started again (1 of at most 2, --max-restarts)"


def sent(role, signal="SIGKILL", at=10.0, training=True, answered=None):
    """A fault that was delivered."""
    pause = 1.0 if signal == "SIGSTOP" else 0.0
    return Delivered(Fault(role, signal, "training", 0.5, pause), at, training, answered)


def died(role, signal="SIGKILL", at=10.2):
    """The sentence of a failure."""
    names = {"rollout": "Rollout worker 1", "forkserver": "The forkserver"}
    name = names.get(role, f"The {role} process")
    return Line(at, f"failed: {name} was killed by {signal}.")


def replaced(at=10.1, signal="SIGKILL"):
    text = f"Rollout worker 2 was killed by {signal}. It is replaced (1 of at most 10)."
    return Line(at, text)


def outcome(*delivered, lines=(DONE,), code=0, ended=21.0, plan=PLAN, **more):
    """A run that is as promised where nothing was sent."""
    more = {"alone": ended} | more
    return Outcome(
        plan, ["fastrl-train"], code, ended, lines=list(lines), delivered=list(delivered), **more
    )


def plan(**changes):
    return dataclasses.replace(PLAN, **changes)


# Runs as they should be ------------------------------------------------------------------------


AS_PROMISED = {
    "nothing happens": outcome(),
    "worker": outcome(sent("rollout"), lines=[replaced(), DONE]),
    "worker at the end": outcome(sent("rollout", at=19.9)),
    "worker before training": outcome(
        sent("rollout", training=False), lines=[died("rollout")], code=1, ended=10.5
    ),
    "two workers of one allowed": outcome(
        *(sent("rollout"), sent("rollout", "SIGSEGV", at=12.0)),
        lines=[replaced(), died("rollout", "SIGSEGV", at=12.1)],
        code=1,
        ended=13.0,
        plan=plan(worker_restarts=1),
    ),
    "main": outcome(sent("main"), lines=[], code=-9, ended=10.1, alone=11.0),
    "pause": outcome(sent("learner", "SIGSTOP")),
    "learner as it ends": outcome(
        sent("learner", at=20.1), lines=[DONE, died("learner", at=20.2)], code=1
    ),
    "forkserver before training, seen by its child": outcome(
        sent("forkserver", training=False), lines=[died("rollout")], code=1, ended=11.0
    ),
    **{
        f"{role} {signal}": outcome(
            sent(role, signal), lines=[died(role, signal)], code=1, ended=11.0
        )
        for role in ENGINE_ENDS
        for signal in ("SIGKILL", "SIGSEGV")
    },
    **{
        f"{role}, started again": outcome(
            sent(role), lines=[died(role), Line(10.3, AGAIN), DONE], plan=plan(restarts=2)
        )
        for role in ENGINE_ENDS
    },
    "two deaths at once, started again once": outcome(
        *(sent("learner"), sent("inference", at=10.01)),
        lines=[died("learner"), Line(10.3, AGAIN), DONE],
        plan=plan(restarts=2),
    ),
}


@pytest.mark.parametrize("name", AS_PROMISED)
def test_a_run_as_promised(name):
    assert judge(AS_PROMISED[name]) == []


# Broken promises -------------------------------------------------------------------------------


BROKEN = {
    "no progress": (outcome(code=None, hang="no progress for 10 s"), "hang: no progress"),
    "a failure that nobody caused": (
        outcome(lines=[died("learner")], code=1),
        "ended with exit code 1; expected 0",
    ),
    "a worker's death ends the run": (
        outcome(sent("rollout"), lines=[died("rollout")], code=1, ended=10.5),
        "ended with exit code 1; expected 0",
    ),
    "a worker's death is not said": (outcome(sent("rollout")), "never said that it was made up"),
    "the wrong signal is said": (
        outcome(sent("rollout", "SIGSEGV"), lines=[replaced(), DONE]),
        "never said that it was made up",
    ),
    "one line for two deaths": (
        outcome(sent("rollout"), sent("rollout", at=10.05), lines=[replaced(), DONE]),
        "never said that it was made up",
    ),
    "a worker is replaced late": (
        outcome(sent("rollout", at=1.0), lines=[replaced(at=12.0), DONE]),
        "answered after 11.0 s; at most 10",
    ),
    "more deaths than allowed are survived": (
        outcome(
            *(sent("rollout"), sent("rollout", at=12.0)),
            lines=[replaced(), replaced(at=12.1), DONE],
            plan=plan(worker_restarts=1),
        ),
        "ended with exit code 0; expected 1",
    ),
    "the learner's death is survived": (
        outcome(sent("learner")),
        "ended with exit code 0; expected 1",
    ),
    "the end takes long": (
        outcome(sent("inference"), lines=[died("inference")], code=1, ended=20.5),
        "answered after 10.5 s; at most 10",
    ),
    "nobody is named": (
        outcome(sent("learner"), lines=[Line(10.1, "failed: Oh.")], code=1, ended=11.0),
        "name nobody of those killed",
    ),
    "another is named": (
        outcome(sent("learner"), lines=[died("inference")], code=1, ended=11.0),
        "name nobody of those killed",
    ),
    "the signal is not named": (
        outcome(
            sent("forkserver"), lines=[Line(10.1, "failed: The forkserver.")], code=1, ended=11.0
        ),
        "name nobody of those killed",
    ),
    "the name comes only before the last words": (
        outcome(
            sent("learner"),
            lines=[died("learner"), Line(10.3, "failed: it could not go on")],
            code=1,
            ended=11.0,
        ),
        "name nobody of those killed",
    ),
    "no sentence": (
        outcome(sent("learner"), lines=[], code=1, ended=11.0),
        "without a sentence",
    ),
    "a bare traceback": (
        outcome(
            sent("learner", training=False),
            lines=[Line(10.1, "Traceback (most recent call last):")],
            code=1,
            ended=11.0,
        ),
        "a traceback without a sentence",
    ),
    "it is not started again": (
        outcome(
            sent("learner"), lines=[died("learner")], code=1, ended=11.0, plan=plan(restarts=2)
        ),
        "ended with exit code 1; expected 0",
    ),
    "it is started again without a word": (
        outcome(sent("learner"), plan=plan(restarts=2)),
        "never said that it was made up",
    ),
    "it is started again, and nobody says why": (
        outcome(sent("learner"), lines=[Line(10.3, AGAIN), DONE], plan=plan(restarts=2)),
        "never named it and the signal",
    ),
    "main's children live on": (
        outcome(sent("main"), lines=[], code=-9, ended=10.1, alone=12.2),
        "answered after 2.2 s; at most 2",
    ),
    "main survives": (outcome(sent("main")), "ended with exit code 0; expected -9"),
    "a pause kills": (
        outcome(sent("rollout", "SIGSTOP"), lines=[replaced(), DONE]),
        "1 workers were replaced, 0 were killed",
    ),
    "a pause ends the run": (
        outcome(sent("learner", "SIGSTOP"), lines=[died("learner")], code=1),
        "ended with exit code 1; expected 0",
    ),
    "one death more than was sent": (
        outcome(sent("rollout"), lines=[replaced(), replaced(at=11.0), DONE]),
        "2 workers were replaced, 1 were killed",
    ),
    "it starts itself again": (
        outcome(lines=[Line(10.3, AGAIN), DONE], plan=plan(restarts=2)),
        "more often than it was killed",
    ),
    "an end without an end": (outcome(lines=[]), "never said 'the learner has finished'"),
    "a process is left": (outcome(left=["12 fastrl-learn: x"]), "outlived main by 2 s: 12"),
    "shared memory is left": (outcome(shared_memory=["sem.x"]), "left in /dev/shm: sem.x"),
    "a checkpoint is damaged": (outcome(damaged=["x.pt is cut short"]), "x.pt is cut short"),
    "it cannot be resumed": (
        outcome(
            sent("main"),
            lines=[],
            code=-9,
            ended=10.1,
            resumed=outcome(lines=[Line(1.0, "failed: no")], code=1),
        ),
        "resumed: ended with exit code 1; expected 0",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name):
    found, words = BROKEN[name]
    assert words in "\n".join(judge(found))
    run = Run(found.plan, found, judge(found))
    assert exit_code([run]) == 1
    told = "\n".join(story(run))
    assert f"run with seed {PLAN.seed}" in told and words in told


def test_a_bench_that_reached_nobody_has_shown_nothing():
    assert exit_code([]) == 1
    assert exit_code([Run(PLAN, outcome(), [])]) == 1
    assert exit_code([Run(PLAN, outcome(sent("rollout"), lines=[replaced(), DONE]), [])]) == 0


def test_two_deaths_between_which_nothing_was_started_may_be_one():
    thrice = [sent("learner"), sent("inference", at=10.01), sent("learner", at=15.0)]
    lines = [died("learner"), Line(10.3, AGAIN), DONE]
    assert allowed_codes(outcome(*thrice, lines=lines, plan=plan(restarts=2))) == {0, 1}
    assert allowed_codes(outcome(*thrice, lines=lines, plan=plan(restarts=1))) == {1}


def test_reactions_leave_out_the_time_for_which_someone_was_stopped():
    pause = sent("main", "SIGSTOP", at=10.1, answered=11.3)
    run = outcome(sent("rollout"), pause, lines=[replaced(at=11.2), DONE])
    assert reactions(run) == pytest.approx([0.2, 0.2])
    assert reactions(outcome(sent("main"), code=-9, alone=10.7)) == pytest.approx([0.7])
    assert reactions(outcome(sent("learner"), code=1, ended=11.5)) == pytest.approx([1.5])


def test_the_report_counts_by_role_and_signal():
    good = outcome(sent("rollout"), lines=[replaced(), DONE])
    bad, _ = BROKEN["nobody is named"]
    runs = [Run(PLAN, good, judge(good)), Run(PLAN, bad, judge(bad))]
    report = report_of(ChaosOptions(seed=3), runs, {"cpu": "a processor", "cores": 2, "load": 0.0})
    assert list(report.tables[0].rows) == [
        ("rollout SIGKILL", "1", "0", "1", "0.10"),
        ("learner SIGKILL", "1", "0", "0", "1.00"),
    ]
    assert report.values["signals"] == 2 and report.values["failed_runs"] == 1
    assert [run["seed"] for run in report.values["runs"]] == [PLAN.seed] * 2
    assert "output" in report.values["runs"][1] and "output" not in report.values["runs"][0]


# What is drawn ---------------------------------------------------------------------------------


def test_a_run_is_drawn_from_its_number_alone():
    assert draw(17, 9) == draw(17, 9) != draw(18, 9)
    assert draw(17, 1).faults == draw(17, 9).faults[:1]
    assert "--run-dir" not in draw(17, 9).flags()


def test_every_role_meets_every_signal_at_every_moment():
    plans = [draw(seed, 9) for seed in range(1500)]
    faults = [fault for plan in plans for fault in plan.faults]
    met = Counter((fault.role, fault.signal, fault.moment) for fault in faults)
    assert len(met) == len(TARGETS) * len(SIGNALS) * 4
    assert {plan.mode for plan in plans} == {"sync", "async"}
    assert any(plan.restarts for plan in plans) and any(plan.worker_restarts for plan in plans)
    for plan in plans:
        ends = [fault.role not in ("rollout",) and not fault.pause for fault in plan.faults]
        # What ends the run comes last, but for what --max-restarts makes up for.
        assert sum(ends[:-1]) <= plan.restarts
        assert all((fault.signal == "SIGSTOP") == (fault.pause > 0) for fault in plan.faults)


def test_refusals(capsys, tmp_path):
    assert "--kills is 0" in refusal(capsys, "chaos", "--kills", "0")
    assert "--minutes is 0" in refusal(capsys, "chaos", "--minutes", "0")
    page = str(tmp_path / "nowhere" / "page.md")
    assert "--write" in refusal(capsys, "chaos", "--write", page)
    assert "takes no flags" in refusal(capsys, "chaos", "--", "--env", "x")


def test_time_is_bounded(monkeypatch, tmp_path):
    """No run begins after the time is over."""
    began = []

    def fake(plan, folder):
        began.append(plan.seed)
        time.sleep(0.05)
        return outcome(sent("rollout"), lines=[replaced(), DONE])

    monkeypatch.setattr("fastrl.bench.chaos.run_plan", fake)
    from fastrl.bench.chaos import attack_all

    runs = attack_all(ChaosOptions(kills=10**6, seed=5, minutes=0.3 / 60))
    assert 0 < len(runs) == len(began) < 50
    assert began == list(range(5, 5 + len(began)))
