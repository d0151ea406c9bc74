"""`fastrl-bench publish`: what is read is what was published, and the times fit together."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from outputs import check_spread, interrupt, refusal, run_bench

from fastrl.bench import publish
from fastrl.bench.options import PublishOptions
from fastrl.cli import bench_main


def test_the_bench_end_to_end(tmp_path, capsys):
    flags = ("--params", "11", "4096", "--versions=5", "--repeats=2")
    values = run_bench(tmp_path, "publish", *flags)
    assert [one["params"] for one in values["sizes"]] == [11, 4096]
    for one in values["sizes"]:
        for part in ("publish_us", "read_us", "until_read_us"):
            for name in ("median", "p99"):
                check_spread(one[part][name], 2)
    assert "4,096 parameters, 5 versions" in capsys.readouterr().out


def test_a_version_is_read_after_its_publication_began():
    samples = publish.measure(PublishOptions(params=(100, 7), versions=6, repeats=3))
    assert set(samples) == {100, 7}
    for parts in samples.values():
        assert [len(times) for times in parts["publish_us"]] == [6, 6, 6]
        for until, read in zip(parts["until_read_us"], parts["read_us"], strict=True):
            assert (until >= read).all() and (read > 0).all()


def test_other_weights_than_those_published_fail_the_bench(monkeypatch, capsys):
    def wrong(weights, read, size, versions, peer):
        peer.answer()
        weights.publish(np.full(size, -1, np.float32))
        return peer.answer()

    monkeypatch.setattr(publish, "publish", wrong)
    assert bench_main(["publish", "--params=8", "--versions=2", "--repeats=1"]) == 1
    assert "version 1 was read as -1.0 to -1.0" in capsys.readouterr().err
    assert not multiprocessing.active_children()


def test_refusals(capsys):
    assert "--params is 0; it must be at least 1." in refusal(capsys, "publish", "--params=0")
    assert "--versions is 0" in refusal(capsys, "publish", "--versions=0")
    sentence = refusal(capsys, "publish", "--params", str(10**15))
    assert "--params needs 14,901,161.2 GiB of memory" in sentence


@pytest.mark.slow
def test_ctrl_c_leaves_nothing():
    arguments = ("publish", "--params", "8", "--versions", "100000000")
    assert interrupt(1, *arguments) == (130, set())
