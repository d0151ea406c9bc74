"""`fastrl-bench infer` and `learn`."""

from __future__ import annotations

import pytest
from outputs import check_spread, run_bench

from fastrl.bench.costs import Arrangement
from fastrl.bench.network_costs import choose, report_of
from fastrl.bench.options import InferOptions, UpdateOptions

MACHINE = {"cpu": "a processor", "cores": 4, "load": 0.0}
TINY = [
    *("--env", "envpool:CartPole-v1", "--batches", "8", "16", "--threads", "1"),
    *("--seconds", "0.02", "--repeats", "2"),
]


def test_one_thread_and_all_are_tried_unless_others_are_named():
    tried = choose("inf", InferOptions(batches=(8, 8)), cores=4)
    assert {(a.kind, a.size, a.threads) for a in tried} == {("inf", 8, 1), ("inf", 8, 4)}
    assert len(tried) == len(set(tried))
    assert {a.threads for a in choose("train", UpdateOptions(threads=(2,)), cores=4)} == {2}
    assert {a.threads for a in choose("train", UpdateOptions(), cores=1)} == {1}


def test_the_table_says_what_a_step_costs_and_how_long_a_batch_takes():
    one, two = Arrangement("inf", 100, "f32", 1), Arrangement("inf", 100, "bf16", 2)
    samples = {one: [7.0, 9.0, 8.0], two: [30.0, 40.0, 50.0]}
    report = report_of("inf", InferOptions(env="a:b"), samples, MACHINE)
    (table,) = report.tables
    # 100 rows of 8 µs are 0.8 ms on one thread; of 40 µs 2 ms on two.
    assert list(table.rows) == [
        ("f32", "100", "4 x 1", "8.000 (7.000 to 9.000)", "0.800", "*"),
        ("bf16", "100", "2 x 2", "40.000 (30.000 to 50.000)", "2.000", ""),
    ]
    assert report.values["cheapest"]["dtype"] == "f32"
    assert [cost["processes"] for cost in report.values["costs"]] == [4, 2]


@pytest.mark.slow
@pytest.mark.parametrize("bench", ["infer", "update"])
def test_from_the_command_line(bench, tmp_path):
    values = run_bench(tmp_path, bench, *TINY, "--", "--hidden", "16")
    assert values["command"].endswith("-- --hidden 16")
    assert {cost["batch"] for cost in values["costs"]} == {8, 16}
    for cost in values["costs"]:
        check_spread(cost["core_us_per_step"], 2)
    assert values["cheapest"] in values["costs"]
