"""`fastrl-bench soak`: growth, leaks and a falling rate are found in made-up runs."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from made_records import records_of
from outputs import refusal

from fastrl.bench.options import SoakOptions
from fastrl.bench.processes import Held, held, resident_private
from fastrl.bench.soak import (
    PROFILES,
    efficiency_bound,
    judge,
    pause_every,
    pause_times,
    report_of,
    slope_bound,
)
from fastrl.bench.soak_run import Look, Pause, Soaked, stopped

MB = 10**6
ROLES = {1: "main", 2: "inference", 3: "learner", 4: "rollout", 5: "rollout"}


def looks_of(size=lambda pid, at: 50 * MB, files=None, threads=None, seconds=600.0):
    """Looks every 5 s at five processes; functions of (pid, at) say what they have."""
    files = files or (lambda pid, at: 10 + pid)
    threads = threads or (lambda pid, at: pid)
    looks = []
    for at in range(0, int(seconds) + 1, 5):
        has = {
            pid: Held(role, int(size(pid, at)), files(pid, at), threads(pid, at))
            for pid, role in ROLES.items()
        }
        looks.append(Look(float(at), has))
    return looks


def pauses_of(work=lambda at: 500.0, seconds=600.0):
    """Pauses where the bench has them, a sixth of the time; a step costs `work(at)` in them."""
    length = pause_every(seconds) / 6
    return [Pause(at, at + length, work(at)) for at in pause_times(seconds)]


def with_pauses(records, pauses):
    """The same steps, while nothing is learned in the pauses and records go on."""
    moved = []
    for record in records:
        at = record["seconds"]
        for pause in pauses:
            at += pause.end - pause.begin if at > pause.begin else 0.0
        moved.append(record | {"seconds": at})
    still = [
        [record for record in moved if record["seconds"] <= pause.begin][-1]
        | {"seconds": pause.begin + share * (pause.end - pause.begin)}
        for pause in pauses
        for share in (0.3, 0.6)
    ]
    return sorted([*moved, *still], key=lambda record: record["seconds"])


def soaked(looks=None, records=None, code=130, left=(), seconds=600.0, work=lambda at: 500.0):
    """A run that is as it should be, but for what is given."""
    looks = looks_of(seconds=seconds) if looks is None else looks
    if records is None:
        records = records_of(1000, 500, 0.5, seconds, start=0.0)
    pauses = pauses_of(work, seconds)
    return Soaked(seconds, looks, with_pauses(records, pauses), code, list(left), pauses)


def broken(run):
    return [one.name for one in judge(run, 2) if not one.kept]


def test_a_steady_run_keeps_every_promise():
    verdicts = judge(soaked(), 2)
    assert all(one.kept for one in verdicts)
    assert [one.name for one in verdicts] == [
        *(f"memory of {role}" for role in ("rollout", "inference", "learner", "main")),
        *("processes", "open files", "threads", "efficiency", "end by SIGINT", "processes left"),
    ]


@pytest.mark.parametrize("pid", ROLES)
def test_a_role_that_grows_is_found(pid):
    def grows(percent):
        return lambda p, at: 50 * MB * (1 + (p == pid) * percent / 100 * at / 60)

    # One worker of two makes half of its role.
    share = 2 if ROLES[pid] == "rollout" else 1
    assert broken(soaked(looks_of(grows(0.4)))) == []
    assert broken(soaked(looks_of(grows(0.7 * share)))) == [f"memory of {ROLES[pid]}"]


def test_growth_while_it_settles_is_none():
    def warms_up(pid, at):
        return 50 * MB * (0.5 + 0.5 * min(1.0, at / 120))

    assert broken(soaked(looks_of(warms_up))) == []


def test_shrinking_is_no_fault_and_a_saw_is_its_slope():
    assert broken(soaked(looks_of(lambda pid, at: 100 * MB - 50_000 * at))) == []
    assert broken(soaked(looks_of(lambda pid, at: 50 * MB + (at % 30) * 100_000))) == []


def test_a_shorter_soak_bounds_the_same_growth_in_all():
    assert slope_bound(600) == slope_bound(6000) == 0.5
    assert slope_bound(60) == pytest.approx(5.0)
    assert efficiency_bound(600) == 10 and efficiency_bound(60) == pytest.approx(31.6, abs=0.1)

    def grows(pid, at):
        return 50 * MB * (1 + 0.06 * at / 60)

    run = soaked(looks_of(grows, seconds=60.0), seconds=60.0)
    assert broken(run) == [
        f"memory of {role}" for role in ("rollout", "inference", "learner", "main")
    ]


@pytest.mark.parametrize("what", ["files", "threads"])
def test_a_leak_of_files_or_threads_is_found_in_each_process(what):
    name = {"files": "open files", "threads": "threads"}[what]
    leaks = {what: lambda pid, at: 10 + (pid == 4 and at > 300)}
    (found,) = [one for one in judge(soaked(looks_of(**leaks)), 2) if not one.kept]
    assert found.name == name and found.found == "rollout 4: 10 to 11"
    fewer = {what: lambda pid, at: 10 - (pid == 3 and at > 300)}
    assert broken(soaked(looks_of(**fewer))) == [name]
    # Opened before it had settled, or for a moment: no leak.
    early = {what: lambda pid, at: 10 + (at > 100)}
    assert broken(soaked(looks_of(**early))) == []
    moment = {what: lambda pid, at: 10 + (at in (120, 300, 600))}
    assert broken(soaked(looks_of(**moment))) == []


def test_a_thread_that_the_learner_says_it_took_is_no_leak():
    def more(pid, at):
        return pid + (pid == 3 and at > 300)

    def records(when):
        made = records_of(1000, 500, 0.5, 600, start=0.0)
        return [r | {"perf/learner_threads": 1 + (r["seconds"] > when)} for r in made]

    assert broken(soaked(looks_of(threads=more), records(300))) == []
    assert broken(soaked(looks_of(threads=more), records(100))) == ["threads"]
    assert broken(soaked(looks_of(threads=lambda pid, at: pid + 2 * (at > 300)), records(300))) == [
        "threads"
    ]


def test_what_comes_and_goes_is_no_growth_and_what_grows_below_it_is():
    def sawtooth(pid, at):
        return 50 * MB + (at % 60) / 60 * 8 * MB * (1 + at / 600)

    assert broken(soaked(looks_of(sawtooth))) == []
    found = broken(soaked(looks_of(lambda pid, at: sawtooth(pid, at) + at / 60 * MB)))
    assert set(found) == {f"memory of {role}" for role in ROLES.values()}


@pytest.mark.parametrize("growth, kept", [(0.0, True), (0.7, False)])
def test_a_heap_that_is_trimmed_once_a_minute_is_judged_by_what_is_left(growth, kept):
    """In between it is a third larger, by as much as chance will have it."""

    def trimmed(pid, at):
        lives = 50 * MB * (1 + growth / 100 * at / 60)
        return lives if at % 60 == 15 else lives * (1.3 + 0.1 * (at // 60 % 3))

    found = broken(soaked(looks_of(trimmed)))
    assert (found == []) == kept, found


def test_a_replaced_process_is_found():
    looks = looks_of()
    for place, look in enumerate(looks):
        if look.at > 300:
            has = dict(look.held)
            has[9] = has.pop(5)
            looks[place] = Look(look.at, has)
    (found,) = [one for one in judge(soaked(looks), 2) if not one.kept]
    assert found.name == "processes" and found.found == "rollout 5 is gone, rollout 9 is new"


def test_a_role_that_is_gone_is_no_small_one():
    looks = looks_of()
    looks[-1] = Look(600.0, {p: one for p, one in looks[-1].held.items() if p != 3})
    assert broken(soaked(looks)) == ["memory of learner", "processes"]


def changing(factor):
    """Records of a rate that is so much higher in the second half."""
    before = records_of(1000, 500, 0.5, 300, start=0.0)
    after = records_of(1000 * factor, 500, 0.5, 300, start=0.0)
    at, steps = before[-1]["seconds"], before[-1]["steps"]
    later = [r | {"seconds": r["seconds"] + at, "steps": r["steps"] + steps} for r in after]
    return [*before, *later]


@pytest.mark.parametrize("factor, kept", [(0.88, False), (0.92, True), (1.08, True), (1.2, True)])
def test_an_efficiency_that_changes_is_found(factor, kept):
    assert (broken(soaked(records=changing(factor))) == []) == kept


@pytest.mark.parametrize("work, kept", [(500.0, False), (600.0, True)])
def test_a_machine_that_has_become_slower_is_no_fault_of_the_engine(work, kept):
    run = soaked(records=changing(0.8), work=lambda at: work if at > 300 else 500.0)
    assert (broken(run) == []) == kept
    (found,) = [one.found for one in judge(run, 2) if one.name == "efficiency"]
    assert found.startswith("0.250 (1,000 steps/s of 500 µs), then 0.2"), found


def test_a_machine_whose_speed_changes_all_the_time_is_none_either():
    """For every other ten seconds it is half as fast, and so is the engine."""

    def slow(at):
        return int(at // 10) % 2 == 1

    made, steps = [], 0.0
    for half_second in range(1, 1201):
        at = half_second / 2
        steps += (500 if slow(at) else 1000) / 2
        made.append({"seconds": at, "steps": int(steps)})
    pauses = [Pause(at, at + 1e-3, 1000.0 if slow(at) else 500.0) for at in pause_times(600.0)]
    run = Soaked(600.0, looks_of(), made, 130, [], pauses)
    (found,) = [one.found for one in judge(run, 2) if one.name == "efficiency"]
    assert [float(share) for share in re.findall(r"(0\.\d+) \(", found)] == pytest.approx(
        [0.25, 0.25], abs=0.002
    )


def test_pauses_lie_in_the_times_that_are_compared():
    times = pause_times(600.0)
    assert times[0] == 125 and len(times) == 18 and times[-1] == 595
    assert all(120 <= at < 180 or 480 <= at < 600 for at in times)
    short = pause_times(60.0)
    assert short == [13.5, 16.5, 49.5, 52.5, 55.5, 58.5]
    assert len(pause_times(5.0)) == 2


def test_an_efficiency_that_no_engine_has_was_measured_wrong():
    run = soaked(work=lambda at: 2100.0 if at < 300 else 2000.0)
    (found,) = [one for one in judge(run, 2) if not one.kept]
    assert found.name == "efficiency" and "above 1, so not to be relied on" in found.found


def test_a_soak_without_pauses_has_no_efficiency():
    run = soaked()
    run.pauses[:] = [pause for pause in run.pauses if pause.begin < 300]
    (found,) = [one for one in judge(run, 2) if not one.kept]
    assert found.name == "efficiency" and "no pause was from 80% to 100%" in found.found


def test_looks_that_come_late_are_in_as_many_parts():
    def trimmed(pid, at):
        return 50 * MB * (1.0 if int(at) % 60 == 19 else 1.3 + 0.1 * (at // 60 % 3))

    looks = [Look(look.at * 0.998 + 1.0, look.held) for look in looks_of(trimmed)]
    assert broken(soaked(looks)) == []


def test_a_run_stands_still_as_a_whole_and_goes_on():
    loop = "import time\nwhile True: time.sleep(0.01)"
    nest = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {loop!r}])"
    process = subprocess.Popen([sys.executable, "-c", nest])
    try:
        while len(held(process.pid)) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        pids = list(held(process.pid))

        def states():
            return {
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids
            }

        with stopped(process.pid):
            deadline = time.monotonic() + 5
            while states() != {"T"} and time.monotonic() < deadline:
                time.sleep(0.01)
            assert states() == {"T"}
        deadline = time.monotonic() + 5
        while "T" in states() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "T" not in states()
    finally:
        for pid in reversed(list(held(process.pid))):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def test_a_run_that_stands_still_at_its_end_is_found():
    records = records_of(1000, 500, 0.5, 400, start=0.0)
    still = [records[-1] | {"seconds": 400.0 + at} for at in range(200)]
    (found,) = [one for one in judge(soaked(records=[*records, *still]), 2) if not one.kept]
    assert found.name == "efficiency" and "a rate takes two" in found.found


def test_the_end_is_part_of_it():
    assert broken(soaked(code=1)) == ["end by SIGINT"]
    assert broken(soaked(code=None)) == ["end by SIGINT"]
    assert broken(soaked(left=["7 fastrl-learn: x"])) == ["processes left"]


def test_the_report_says_what_was_not_kept(tmp_path):
    run = soaked(code=1)
    machine = {"cpu": "a processor", "cores": 2, "load": 0.0}
    report = report_of(SoakOptions(), ["--env", "x"], run, judge(run, 2), machine)
    rows = {row[0]: row[-1] for row in report.tables[0].rows}
    assert rows["end by SIGINT"] == "NOT KEPT" and rows["threads"] == "kept"
    assert report.values["kept"] is False and len(report.values["looks"]) == len(run.looks)
    report.deliver(tmp_path / "out.json", tmp_path / "out.png")


def test_a_short_reading_of_memory_is_that_of_a_look():
    assert resident_private(os.getpid()) == pytest.approx(
        held(os.getpid())[os.getpid()].private, rel=0.02
    )
    with pytest.raises(OSError):
        resident_private(2**22 + 1)


def test_this_process_is_seen():
    before = held(os.getpid())[os.getpid()]
    assert before.role == "main"
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    grown = b"x" * (64 * MB)
    with open(os.devnull) as file:
        after = held(os.getpid())[os.getpid()]
        assert not file.closed
    done.set()
    thread.join()
    assert after.threads == before.threads + 1 and after.files == before.files + 1
    assert len(grown) * 0.9 < after.private - before.private < len(grown) * 1.5
    assert dataclasses.replace(after, private=0) == Held("main", 0, after.files, after.threads)


def test_profiles_and_refusals(capsys):
    assert PROFILES["pong"][2:4] == ("--workers", "16")
    flags = PROFILES["cartpole"]
    workers, envs = (
        int(flags[flags.index(name) + 1]) for name in ("--workers", "--envs-per-worker")
    )
    assert workers * envs == 4096
    assert "--seconds is 0" in refusal(capsys, "soak", "--seconds", "0")
    assert "--run-dir" in refusal(capsys, "soak", "--", "--run-dir", "x")
    assert "--workers 0" in refusal(
        capsys,
        "soak",
        "--profile",
        "cartpole",
        "--",
        "--workers",
        "0",
        "--mode",
        "sync",
        "--log-every",
        "10u",
    )
