"""`fastrl-bench rings`: every link brings all words, and what does not is found out."""

from __future__ import annotations

import copy
import multiprocessing
import os

import numpy as np
import pytest
from outputs import check_spread, interrupt, refusal, run_bench

from fastrl.bench import rings
from fastrl.bench.links import Link, Ring
from fastrl.cli import bench_main
from fastrl.shm import Arena

KEYS = {
    "ring",
    "ring_push_many",
    "faster_fifo_bytes",
    "faster_fifo_pickled",
    "multiprocessing_queue",
    "multiprocessing_pipe",
}


@pytest.fixture(params=rings.LINKS, ids=lambda make: make(Arena.create()).key)
def ends(request):
    """Both sides of a link, in this process."""
    arena = Arena.create()
    link = request.param(arena)
    sides = [copy.copy(link), copy.copy(link)]
    for side, end in enumerate(sides):
        end.open(side, arena)
    yield sides
    link.close()


def test_every_link_brings_all_words_in_order(ends):
    ends[1].push_all(ends[1].messages(100))
    assert np.array_equal(ends[0].numbers(ends[0].take(100)), np.arange(100))


@pytest.mark.parametrize("awake", [True, False])
def test_every_link_goes_both_ways(ends, awake):
    for word in (0, 5, 2**40):
        ends[0].send(word)
        assert ends[1].receive(awake) == word
        ends[1].send(word + 1)
        assert ends[0].receive(awake) == word + 1


@pytest.mark.slow
def test_the_bench_end_to_end(tmp_path, capsys):
    values = run_bench(tmp_path, "rings", "--words=3000", "--trips=12", "--repeats=2")
    rates, faster = values["million_words_per_second"], values["ring_is_faster"]
    assert set(rates) == KEYS and set(faster) == KEYS - {"ring"}
    for spread in (*rates.values(), *faster.values()):
        check_spread(spread, 2)
    for state in ("awake", "asleep"):
        trips = values["round_trip"][state]
        assert set(trips) == KEYS - {"ring_push_many"}
        for key, one in trips.items():
            check_spread(one["median_us"], 2)
            check_spread(one["p99_us"], 2)
            assert one["median_us"]["low"] <= one["p99_us"]["high"]
            assert ("ring_is_faster" in one) == (key != "ring")
    # Each repetition's ratio lies between those of the extremes.
    ours, other = rates["ring"], rates["multiprocessing_pipe"]
    ratio = faster["multiprocessing_pipe"]
    assert ratio["high"] <= ours["high"] / other["low"] * 1.001
    assert ratio["low"] >= ours["low"] / other["high"] * 0.999
    shown = capsys.readouterr().out
    assert "Throughput, 3,000 words" in shown and "both sides asleep" in shown


class Doubles(Ring):
    """Sends word 1 in the place of word 2 as well."""

    def push_all(self, messages):
        super().push_all([1 if word == 2 else word for word in messages])


class Swaps(Ring):
    """Sends the last two words in the wrong order: the sum is right."""

    def push_all(self, messages):
        words = list(messages)
        super().push_all([*words[:-2], words[-1], words[-2]])


class Adds(Ring):
    """Sends the last word twice, after all of them have arrived."""

    def push_all(self, messages):
        super().push_all([*messages, messages[-1]])


class Loses(Ring):
    """Never sends the last word."""

    def push_all(self, messages):
        super().push_all(list(messages)[:-1])


class Garbles(Ring):
    """Its peer answers word 0 with another one."""

    def open(self, side, arena):
        super().open(side, arena)
        self.wrong = 4 * side

    def send(self, word):
        super().send(word or self.wrong)


class Dies(Ring):
    """Its process ends in the middle of a measurement."""

    def push_all(self, messages):
        os._exit(3)


class Raises(Ring):
    """Its process fails in the middle of a measurement."""

    def push_all(self, messages):
        raise ZeroDivisionError("in the peer")


@pytest.mark.parametrize(
    "link, said",
    [
        (Doubles, "gave word 1 where 2 was due"),
        (Swaps, "gave word 9 where 8 was due"),
        (Adds, "gave word 9 after the last one"),
        (Loses, "did not end within 1 s"),
        (Garbles, "brought back word 4 where 0 was due"),
        (Dies, "ended with exit code 3"),
        (Raises, "ZeroDivisionError: in the peer"),
    ],
)
def test_what_is_wrong_fails_the_bench(link: type[Link], said, monkeypatch, capsys):
    monkeypatch.setattr(rings, "LINKS", (link,))
    if link in (Loses, Dies, Raises):  # main waits for a word that never comes
        monkeypatch.setattr(rings, "PATIENCE_SECONDS", 1.0)
        monkeypatch.setattr(rings, "PATIENCE_PER_WORD", 0.0)
    assert bench_main(["rings", "--words=10", "--trips=1", "--repeats=1"]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "Throughput" not in shown.out
    assert not multiprocessing.active_children()


def test_refusals(capsys, tmp_path):
    assert "--words is 0; it must be at least 1." in refusal(capsys, "rings", "--words=0")
    assert "--trips is -1" in refusal(capsys, "rings", "--trips=-1")
    assert "takes no flags of fastrl-train" in refusal(capsys, "rings", "--", "--workers", "2")
    missing = str(tmp_path / "missing" / "out.json")
    assert f"--json {missing} cannot be written" in refusal(capsys, "rings", "--json", missing)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing():
    assert interrupt(len(KEYS), "rings", "--words=100000000") == (130, set())
