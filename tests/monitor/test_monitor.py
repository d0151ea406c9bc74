"""What is written: means, rates and shares from counters, and nothing that is not a number."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fastrl.monitor.accounts import (
    CLOCK_SIZE,
    ROW_SHIFT,
    Clock,
    episode_dtype,
    return_of,
    return_word,
)
from fastrl.monitor.console import Console, progress_line, table
from fastrl.monitor.metrics import Counts, EpisodeLog, LearnerReports, RateMeter
from fastrl.monitor.writer import MetricWriter
from fastrl.shm import Arena, ByteRing, Counters, Layout, byte_ring_bytes


@pytest.fixture
def regions():
    layout = Layout()
    layout.add("rings", (2, byte_ring_bytes(1 << 12)), np.uint8)
    for name, length in (("progress", 3), ("rollout", 2 * CLOCK_SIZE), ("inference", CLOCK_SIZE),
                         ("learner", CLOCK_SIZE)):  # fmt: skip
        layout.add(name, (length,), np.int64)
    arena = Arena.create()
    return layout.views(arena.map(arena.extend(layout.nbytes)))


def episodes(*rows: tuple) -> bytes:
    """Of (environment, length, return), all of row 0, or with the row as a fourth number."""
    return np.array([(*row, 0)[:4] for row in rows], episode_dtype(0)).tobytes()


def test_episodes_of_later_rows_wait_and_all_come_in_the_order_of_rows(regions):
    log = EpisodeLog(regions["rings"], num_envs=3)
    first, second = (ByteRing(region) for region in regions["rings"])
    first.push(episodes((1, 4, 7.0, 3), (0, 5, 5.0, 8)))
    second.push(episodes((2, 6, 1.0, 2)))
    log.drain(before_row=4)
    assert list(log._recent) == [1.0, 7.0], "by row, not as they came"
    second.push(episodes((2, 3, 3.0, 8)))
    log.drain(before_row=8)
    assert len(log._recent) == 2
    log.drain(before_row=9)
    assert list(log._recent) == [1.0, 7.0, 5.0, 3.0]
    assert log.take()["charts/episodic_length"] == 4.5


def test_the_mean_of_the_last_hundred_counts_once_every_environment_has_finished(regions):
    log = EpisodeLog(regions["rings"], num_envs=3)
    first, second = (ByteRing(region) for region in regions["rings"])
    assert log.recent_return is None and log.take() == {}
    first.push(episodes(*[(0, 10, 1.0)] * 99))
    second.push(episodes((2, 40, 3.0)))
    log.drain()
    assert log.recent_return == pytest.approx((99 + 3) / 100)
    assert not log.every_env_finished, "environment 1 has not"
    assert log.take() == {
        "charts/episodic_return": pytest.approx(1.02),
        "charts/episodic_length": pytest.approx(10.3),
        "charts/episodes": 100.0,
    }
    assert log.take() == {}, "only what is new"
    first.push(episodes((1, 5, 0.0)))
    log.drain()
    assert log.every_env_finished
    assert log.recent_return == pytest.approx((98 + 3) / 100), "the oldest one is gone"


def test_a_few_episodes_are_no_mean_to_stop_at(regions):
    log = EpisodeLog(regions["rings"], num_envs=1)
    ByteRing(regions["rings"][0]).push(episodes(*[(0, 1, 500.0)] * 99))
    log.drain()
    assert log.recent_return == 500.0
    assert not log.every_env_finished, "99 are not a hundred"


def test_episodes_are_counted_on_after_a_resume(regions):
    log = EpisodeLog(regions["rings"], num_envs=1, finished=70)
    ByteRing(regions["rings"][0]).push(episodes(*[(0, 1, 500.0)] * 3))
    log.drain()
    assert log.take()["charts/episodes"] == log.finished == 73


@pytest.mark.parametrize("value", [None, 0.0, -0.0, 1.5, -1e308, 5e-324, 475.25])
def test_a_return_travels_in_a_counter_which_at_first_holds_none(value):
    counters = Counters(np.zeros(2, np.int64))
    assert return_of(counters.load(0)) is None
    counters.store(0, return_word(value))
    assert repr(return_of(counters.load(0))) == repr(value)
    assert counters.load(1) == 0


def test_rates_and_shares_are_of_the_time_between_two_records(regions, monkeypatch):
    now = [10_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    counters = {
        name: Counters(regions[name]) for name in ("progress", "rollout", "inference", "learner")
    }
    meter = RateMeter(Counts(*counters.values()), frame_skip=4)
    counters["progress"].store(1, 400)
    now[0] += 1_000_000_000
    assert meter.take() == {"charts/SPS": 400.0, "charts/FPS": 1600.0}, "one process waits for none"
    counters["learner"].store(Clock.STARTED, 1)
    now[0] += 2_000_000_000
    counters["progress"].store(0, 5 << ROW_SHIFT | 600)
    counters["progress"].store(2, 31 << ROW_SHIFT | 200)
    counters["rollout"].store(Clock.WAIT, 1_000_000_000)
    counters["rollout"].store(CLOCK_SIZE + Clock.WAIT_SLOT, 500_000_000)
    counters["learner"].store(Clock.WAIT, 200_000_000)
    counters["inference"].store(Clock.WAIT, 9_000_000_000)  # begun long before
    counters["inference"].store(Clock.BATCHES, 4)
    counters["inference"].store(Clock.ROWS, 50)
    assert meter.take() == {
        "charts/SPS": 400.0,
        "charts/FPS": 1600.0,
        "wait/rollout_action": 0.25,
        "wait/rollout_slot": 0.125,
        "wait/inference": 1.0,
        "wait/learner": 0.1,
        "inference/batch": 12.5,
    }
    now[0] += 1_000_000_000
    later = meter.take()
    assert later["charts/SPS"] == 0
    assert "inference/batch" not in later, "no batch, no value"


def test_reports_are_weighted_by_their_updates_and_nan_is_left_out():
    reports = LearnerReports()
    reports.add({"a": 1.0, "b": float("nan")}, updates=1)
    reports.add({"a": 4.0, "b": 2.0}, updates=2)
    assert reports.take() == {"a": 3.0, "b": 2.0}
    assert reports.take() == {}


def test_a_maximum_stays_one_over_reports():
    reports = LearnerReports()
    reports.add({"lag/max": -3.0, "lag/mean": 1.0}, updates=1)
    reports.add({"lag/max": float("nan"), "lag/mean": 1.0}, updates=5)
    assert reports.take() == {"lag/max": -3.0, "lag/mean": 1.0}
    for value, updates in ((2.0, 1), (7.0, 1), (4.0, 10)):
        reports.add({"lag/max": value, "max": value}, updates)
    assert reports.take() == {"lag/max": 7.0, "max": pytest.approx(49 / 12)}
    assert reports.take() == {}


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard reads them."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def json_lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_both_files_hold_the_same_values_and_never_nan(tmp_path):
    errors: list[str] = []
    writer = MetricWriter(tmp_path, on_error=errors.append)
    writer.write(100, 1.5, {"charts/SPS": 10.0, "losses/entropy": float("nan")})
    writer.write(200, 2.5, {"charts/SPS": 20.0, "lag/max": float("inf")}, stopped_by="total_steps")
    writer.close()
    assert json_lines(tmp_path) == [
        {"steps": 100, "seconds": 1.5, "charts/SPS": 10.0},
        {"steps": 200, "seconds": 2.5, "charts/SPS": 20.0, "stopped_by": "total_steps"},
    ]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["charts/SPS"]
    assert scalars(tmp_path, "charts/SPS") == [(100, 10.0), (200, 20.0)]
    assert events.file_version == 2.0
    assert errors == []


def test_a_second_writer_continues_both(tmp_path):
    for steps in (100, 200):
        writer = MetricWriter(tmp_path, on_error=pytest.fail)
        writer.write(steps, 1.0, {"a": float(steps)})
        writer.close()
        writer.close()
    assert [line["steps"] for line in json_lines(tmp_path)] == [100, 200]
    assert scalars(tmp_path, "a") == [(100, 100.0), (200, 200.0)]


def test_a_full_disk_is_reported_once_and_costs_whole_records(tmp_path):
    # In a process of its own, whose files may not grow beyond a limit that is then lifted.
    script = f"""
import resource, signal
from pathlib import Path
from fastrl.monitor.writer import MetricWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = MetricWriter(Path({str(tmp_path)!r}), on_error=print)
writer.write(1, 1.0, {{"a": 1.0}})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (120, hard))
for steps in (2, 3, 4):
    writer.write(steps, 1.0, {{"a": 1.0, **{{f"filler/{{i}}": 1.0 for i in range(20)}}}})
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.write(5, 1.0, {{"a": 5.0}})
writer.close()
writer.write(6, 1.0, {{"a": 6.0}})
writer.write(7, 1.0, {{"a": 7.0}})
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    too_large, closed = result.stdout.splitlines()
    assert "metrics.jsonl cannot be written: [Errno 27] File too large; training" in too_large
    assert "closed file" in closed
    assert [line["steps"] for line in json_lines(tmp_path)] == [1, 5]
    assert scalars(tmp_path, "a") == [(1, 1.0), (5, 5.0)]


def test_a_disk_that_is_full_from_the_start_stops_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    errors: list[str] = []
    writer = MetricWriter(tmp_path, on_error=errors.append)
    for steps in (1, 2):
        writer.write(steps, 1.0, {"a": 1.0})
    writer.close()
    assert len(errors) == 1 and "No space left on device" in errors[0]
    assert scalars(tmp_path, "a") == [(1, 1.0), (2, 1.0)], "the other file is whole"


def test_the_log_begins_with_what_was_said_before_it_was_opened(tmp_path, capsys):
    console = Console()
    console.say("before")
    console.open_log(tmp_path / "log.txt")
    console.say("after")
    console.close()
    assert (tmp_path / "log.txt").read_text().splitlines() == ["before", "after"]
    assert capsys.readouterr().out.splitlines() == ["before", "after"]


def test_a_reader_that_has_gone_stops_nothing(tmp_path):
    script = f"""
from pathlib import Path
from fastrl.monitor.console import Console
console = Console()
console.open_log(Path({str(tmp_path / "log.txt")!r}))
for number in range(20_000):
    console.say(f"line {{number}}")
"""
    program = shlex.join([sys.executable, "-c", script])
    call = f"{program} | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", call], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "line 0\n", "")
    assert (tmp_path / "log.txt").read_text().splitlines()[-1] == "line 19999"


def test_a_line_leaves_out_what_has_no_value():
    line = progress_line({"charts/SPS": 1234.5}, 10, 61.0, None)
    assert line.split() == ["1:01", "10", "steps", "1,234", "steps/s"]
    full = progress_line({"lag/mean": 1.5, "wait/learner": 0.25}, 10, 1.0, -20.0)
    assert "return   -20.00" in full and "lag 1.50" in full and "learner 25%" in full


def test_long_rows_of_a_table_are_wrapped_beside_their_name(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = table([("env", "a"), ("policy lag", "word " * 12)]).splitlines()
    assert lines[0] == "env         a"
    assert len(lines) > 2 and all(len(line) <= 40 for line in lines)
    assert lines[2].startswith(" " * 12 + "word")
