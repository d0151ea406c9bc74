"""Every row of a run is accounted for, by name, wherever rollout processes are killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from live import HANG, Background, Live, Turns

from fastrl.workers import inference, learner
from fastrl.workers.final_accounts import Accounts

pytestmark = pytest.mark.usefixtures("own_forkserver")


def short_run(folder: Path, seed: int) -> Accounts:
    """A run of some hundred steps with one or two kills, each at a moment that `seed` draws."""
    rng = np.random.default_rng(seed)
    workers, T, E = int(rng.integers(1, 4)), int(rng.integers(1, 7)), int(rng.integers(1, 4))
    options = {
        "workers": workers,
        "rollout_length": T,
        "envs_per_worker": 2 * E,
        "batch_size": T * E * int(rng.choice([1, 2 * workers])),
        "max_policy_lag": int(rng.choice([0, 1, 8])),
    }
    with Live(folder, epochs=1, **options) as live:
        turns = Turns(live)

        def play(most: int) -> None:
            for _ in range(int(rng.integers(0, most))):
                turns.turn()

        for _ in range(int(rng.integers(1, 3))):
            play(45)
            worker = int(rng.choice(list(live.workers)))
            turns.act(0.01)
            # Not a synchronisation: the process is to die in the middle of whatever it does.
            time.sleep(rng.uniform(0, 3e-4))
            live.kill(worker)
            play(5)
            if rng.random() < 0.7:
                live.replace(worker)
            elif not live.workers:
                break
        play(45)
    return live.books.check()


def short_runs(folder: Path, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        print(f"seed {seed}")
        accounts = short_run(folder, seed)
        print(accounts)
        seen += Counter({name: count > 0 for name, count in accounts._asdict().items()})
    return seen


def test_every_row_is_accounted_for_in_runs_with_kills(tmp_path):
    seen = short_runs(tmp_path, range(5))
    assert min(seen["trained"], seen["unfinished"]) > 0


@pytest.mark.slow
def test_every_row_is_accounted_for_in_fifty_runs_with_kills(tmp_path):
    seen = short_runs(tmp_path, range(100, 150))
    assert seen["sampled"] > 40
    assert min(seen["trained"], seen["masked"], seen["dropped"], seen["unfinished"]) > 5


class Reports:
    """Stands where the learner's loop has its journal."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._changed = threading.Condition()

    def after_update(self, metrics: dict) -> bool:
        with self._changed:
            self.lags.append(metrics["lag/max"])
            self._changed.notify()
        return False

    def wait_for(self, updates: int) -> None:
        with self._changed:
            went_on = self._changed.wait_for(lambda: len(self.lags) >= updates, HANG)
        assert went_on, f"nothing was learned for {HANG:g} s, after {len(self.lags)} updates"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_sync_run_goes_on_after_kills_and_every_row_is_accounted_for(tmp_path, seed):
    # The loops are the engine's own, each in a thread; the test is the supervisor.
    rng = np.random.default_rng(seed)
    workers, T, E = int(rng.integers(1, 4)), int(rng.integers(1, 7)), int(rng.integers(1, 4))
    options = {
        "mode": "sync",
        "workers": workers,
        "rollout_length": T,
        "envs_per_worker": 2 * E,
        "minibatches": E,
        "total_steps": 10**9,
    }
    reports = Reports()
    with Live(tmp_path, epochs=1, **options) as live:
        assert live.plan.sync and live.plan.slots_per_group == 1
        acts = Background(inference.serve, live.shared, live.inference)
        learns = Background(learner._loop, live.shared, live.learner, reports)
        for kill in range(3):
            reports.wait_for(4 * (kill + 1))
            victims = rng.permutation(workers)[: int(rng.integers(1, workers + 1))].tolist()
            time.sleep(rng.uniform(0, 5e-3))
            for worker in victims:
                live.kill(worker)
            time.sleep(rng.uniform(0, 2e-3))
            for worker in victims:
                live.replace(worker)
        reports.wait_for(len(reports.lags) + 4)
    for loop in (acts, learns):
        loop.finish()
    assert set(reports.lags) == {0}
    accounts = live.books.check()
    assert accounts.masked == 0 and accounts.trained > 0
