"""`fastrl-bench scale`: what one more worker costs."""

from __future__ import annotations

import os

import pytest
from outputs import check_spread, run_bench

from fastrl.bench.footprint import Footprint, footprint, torch_import_seconds
from fastrl.bench.options import ScaleOptions
from fastrl.bench.scale import Scaled, choose, further_worker_bytes, report_of
from fastrl.config import TrainConfig

ENV_BYTES, WORKER_BYTES = 1_000_000, 7_000_000
CARTPOLE = "envpool:CartPole-v1"


def scaled(workers, envs=8):
    """Workers of 7 MB and environments of 1 MB each; construction takes 2 s for all of them."""
    share = envs // workers
    private = [WORKER_BYTES + share * ENV_BYTES] * workers
    bare = Footprint(share * ENV_BYTES, 2.0 / workers)
    return Scaled(workers, 2, share, [100.0 * workers], private, [3.0], [bare])


def test_a_further_worker_is_what_is_left_without_environments():
    assert further_worker_bytes([scaled(n) for n in (1, 2, 4)]) == pytest.approx(WORKER_BYTES)
    assert further_worker_bytes([scaled(4)]) is None
    assert scaled(2).aside_bytes == WORKER_BYTES


def test_the_start_is_compared_with_what_must_be_done():
    # 2 s of environments and twice 3 s of torch on 4 cores.
    assert scaled(2).start_floor(3.0, cores=4) == pytest.approx(2.0)
    assert scaled(2).construct_seconds == scaled(4).construct_seconds == 2.0


def test_the_table_and_the_figures():
    options = ScaleOptions(env="a:b", envs=8, workers=(1, 2))
    machine = {"cpu": "a processor", "cores": 4, "load": 0.0}
    report = report_of(options, [scaled(1), scaled(2)], [3.0, 3.0, 4.0], machine)
    assert list(report.tables[0].rows) == [
        ("1", "2 x 4", "100", "15.0", "8.0", "7.0", "3.0", "2.0"),
        ("2", "2 x 2", "200", "11.0 (11.0 to 11.0)", "4.0", "7.0", "3.0", "2.0"),
    ]
    assert "7.00 MB" in "\n".join(report.lines())
    first, second = report.values["runs"]
    assert first["private_bytes_per_worker"]["median"] == 15e6
    assert second["private_bytes_per_worker"]["repetitions"] == 2
    assert second["start_floor_seconds"] == pytest.approx(2.0)


def test_a_start_that_the_log_does_not_tell_is_left_out():
    one = Scaled(1, 2, 8, [1.0], [5], [], [Footprint(1, 1.0)])
    options = ScaleOptions(env="a:b", envs=8, workers=(1,))
    report = report_of(options, [one], [1.0], {"cpu": "x", "cores": 1, "load": 0.0})
    assert report.values["runs"][0]["start_seconds"] is None
    assert report.values["bytes_per_further_worker"] is None


def test_numbers_that_do_not_divide_are_left_out_and_told(capsys):
    # Of 12: 5 do not divide them, and 4 have 3 each, which two groups do not share.
    flags = ("--groups-per-worker", "2")
    runs = choose(ScaleOptions(env=CARTPOLE, envs=12, workers=(4, 2, 5, 1, 2), flags=flags))
    assert list(runs) == [1, 2]
    assert [config.envs_per_worker for _, config in runs.values()] == [12, 6]
    assert len({config.batch_size for _, config in runs.values()}) == 1
    told = capsys.readouterr().out
    assert "evenly by 5\n" in told and "4 workers would have 3" in told


@pytest.mark.slow
def test_environments_by_themselves_take_memory_and_time():
    few, many = (
        footprint(TrainConfig(env=CARTPOLE, seed=1, groups_per_worker=1, envs_per_worker=n))
        for n in (2, 20_000)
    )
    # CartPole is a few numbers, but each has a generator of 2.5 kB and its place in the queues.
    assert many.private_bytes - few.private_bytes > 20_000 * 1000
    assert many.construct_seconds > 0


def test_importing_torch_takes_cpu_time(monkeypatch, tmp_path):
    # A torch that does nothing but spend 0.3 s.
    spend = "import time\nwhile time.process_time() < 0.3: pass\n"
    (tmp_path / "torch.py").write_text(spend)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert 0.25 < torch_import_seconds() < 30


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    flags = ["--env", CARTPOLE, "--envs", "8", "--workers", "1", "2", "3"]
    times = ["--warm-up", "0", "--seconds", "2"]
    engine = ["--rollout-length", "8", "--log-every", "0.1"]
    values = run_bench(tmp_path, "scale", *flags, *times, "--", *engine)
    assert [run["workers"] for run in values["runs"]] == [1, 2]
    for run in values["runs"]:
        check_spread(run["private_bytes_per_worker"], run["workers"])
        # More than numpy's own heap, less than anything with torch in it.
        assert 1e6 < run["private_bytes_per_worker"]["median"] < 80e6
        assert run["steps_per_second"]["median"] > 0
        assert run["start_seconds"]["median"] > 0 and run["start_floor_seconds"] > 0
