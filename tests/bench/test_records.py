"""Steady rates from a run's records."""

from __future__ import annotations

import pytest
from made_records import records_of

from fastrl.bench.records import NoRate, learned_rate, mean_of, read_records, sampled_rate, steady


def test_a_line_that_is_being_written_is_no_record(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"steps": 1, "seconds": 2.0}\n{"steps": 2, "sec')
    assert read_records(tmp_path) == [{"steps": 1, "seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="no record"):
        read_records(tmp_path)
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        read_records(tmp_path / "none")


def test_start_warm_up_and_end_are_dropped():
    records = [{"steps": max(0, second - 4), "seconds": float(second)} for second in range(20)]
    records[-1]["stopped_by"] = "SIGINT"
    # The first learned step is seen at second 5.
    assert [r["seconds"] for r in steady(records, 3.0, 4.0)] == [8.0, 9.0, 10.0, 11.0, 12.0]
    assert steady(records, 3.0, 100.0)[-1]["seconds"] == 18.0
    assert steady(records[:5], 3.0, 4.0) == []


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("batch", [16, 4096, 16384])
def test_batches_that_are_rarer_than_records_do_not_bend_the_rate(batch, phase):
    interval, seconds = 0.5, 60.0
    records = records_of(2000.0, batch, interval, seconds, phase=phase)
    measured = steady(records, 5.0, seconds)
    rate = learned_rate(measured)
    batches = {record["steps"] for record in measured}
    # Each end of the time is off by less than one interval; at most two batches lie outside it.
    length = seconds - 5.0 - 2 * batch / 2000.0 - 2 * interval
    assert rate.mean == pytest.approx(2000.0, rel=interval / length)
    assert rate.low <= rate.median <= rate.high
    assert len(batches) > rate.parts >= 2


def test_a_rate_takes_two_batches():
    records = records_of(100.0, 4096, 0.5, 60.0)
    with pytest.raises(NoRate, match="longer"):
        learned_rate(steady(records, 5.0, 10.0))
    with pytest.raises(NoRate, match="longer"):
        sampled_rate(records[:1])


def test_sampled_steps_are_weighted_by_time():
    records = [
        {"steps": 0, "seconds": 0.0, "charts/SPS": 77.0},
        {"steps": 0, "seconds": 1.0, "charts/SPS": 100.0},
        {"steps": 0, "seconds": 4.0, "charts/SPS": 300.0},
    ]
    rate = sampled_rate(records)
    assert rate.mean == pytest.approx((1 * 100 + 3 * 300) / 4)
    assert (rate.low, rate.high, rate.parts) == (100.0, 300.0, 2)


def test_a_metric_that_is_missing_has_no_mean():
    records = [{"lag/mean": 1.0}, {}, {"lag/mean": 2.0}]
    assert mean_of(records, "lag/mean") == 1.5
    assert mean_of(records, "wait/learner") is None
