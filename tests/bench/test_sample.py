"""`fastrl-bench sample`: the engine without a network counts its rows, and ends as it should."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from outputs import check_spread, interrupt, refusal, run_bench

from fastrl.bench.command import engine_flags, plan
from fastrl.bench.random_policy import RandomPolicy
from fastrl.bench.sample_bodies import return_slots
from fastrl.bench.sampling import count_rows
from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec
from fastrl.monitor.accounts import ROW_SHIFT
from fastrl.shm import Arena, Closed
from fastrl.workers.plan import Plan
from fastrl.workers.shared import Shared

HANG = 60.0  # seconds


def planned(*flags):
    return plan(engine_flags(("--env", "envpool:CartPole-v1"), flags))


@pytest.fixture
def shared():
    """Two workers of two groups of 3, T = 8; nobody runs."""
    flags = ("--workers=2", "--envs-per-worker=6", "--rollout-length=8")
    config, spec, cores = planned(*flags)
    arena = Arena.create()
    own = Plan(config, spec, 1, cores)
    return Shared(own.with_segment(arena.extend(own.layout().nbytes)), arena)


def test_rows_are_those_of_full_slots_and_of_the_current_one(shared):
    assert count_rows(shared) == 0
    for group, (filled, row) in enumerate([(0, 5), (3, 0), (2, 7), (1, 8)]):
        shared.filled.store(group, filled)
        # Beside the steps that had effect; row 8 of 8 is row 0 of the next slot.
        shared.progress.store(group, row << ROW_SHIFT | 12345)
    assert count_rows(shared) == 3 * (5 + 3 * 8 + 2 * 8 + 7 + 8)


def test_full_slots_are_given_back_at_once(shared):
    ended = []

    def body():
        try:
            return_slots(shared)
        except Closed:
            ended.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    words, sources = np.zeros(8, np.uint64), np.zeros(8, np.uint32)
    outbox, inbox = shared.rollout_outbox(1), shared.rollout_inbox(1)
    # Group 2 says so twice for two slots; group 3 is silent about its first.
    shared.filled.store(3, 2)
    for group, filled in ((2, 1), (2, 2), (3, 2)):
        shared.filled.store(group, filled)
        assert outbox.push(1, group)
        while shared.returned.load(group) < filled:
            assert inbox.pop_many(words, sources, timeout=HANG)
            assert words[0] == group and sources[0] == 1
    assert shared.returned.snapshot().tolist() == [0, 0, 2, 2]
    shared.close()
    thread.join(HANG)
    assert ended == [True]


def test_the_policy_draws_every_allowed_action_and_no_other():
    actions = {
        "a": ActionSpec("discrete", (), "int32", "int64", n=3, masked=True),
        "b": ActionSpec("multi_discrete", (2,), "int32", "int64", nvec=(2, 3)),
        "c": ActionSpec("continuous", (1,), "float32", "float32", low=(-2.0,), high=(2.0,)),
    }
    observation = {"obs": ObservationSpec((4,), "float32", "vector")}
    spec = EnvSpec("x:y", observation, actions, 1, reward_threshold=None)
    policy = RandomPolicy(spec, seed=1)
    obs = {"obs": torch.zeros(500, 4)}
    mask = torch.tensor([[True, False, True]]).repeat(500, 1)
    chosen, log_prob, value = policy.act(obs, {}, {"a": mask})
    assert set(chosen["a"].tolist()) == {0, 2}
    assert set(map(tuple, chosen["b"].tolist())) == {(i, j) for i in range(2) for j in range(3)}
    assert chosen["c"].shape == (500, 1) and chosen["c"].abs().max() <= 1
    assert log_prob.tolist() == value.tolist() == [0.0] * 500


@pytest.mark.slow
def test_the_bench_end_to_end(tmp_path, capfd):
    flags = ("--env", "envpool:CartPole-v1", "--seconds=0.4", "--repeats=2")
    engine = ("--workers=2", "--envs-per-worker=8")
    values = run_bench(tmp_path, "sample", *flags, "--", *engine, program=True)
    for key in ("engine_rows_per_second", "raw_rows_per_second", "share_of_raw", "batch_rows"):
        check_spread(values[key], 2)
    assert {(one["processes"], one["threads"]) for one in values["raw"]} <= {(1, 2), (2, 1), (1, 1)}
    best = max(one["rows_per_second"]["median"] for one in values["raw"])
    assert values["raw_rows_per_second"]["median"] == best
    share, engine = values["share_of_raw"], values["engine_rows_per_second"]
    assert share["high"] <= engine["high"] / values["raw_rows_per_second"]["low"] * 1.001
    # A batch of inference has between one group and all of them.
    assert 4 <= values["batch_rows"]["low"] <= values["batch_rows"]["high"] <= 16
    assert "share of raw" in capfd.readouterr().out


ENDS = """
import gymnasium as gym, numpy as np, os

class Ends(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rows = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.rows += 1
        if self.rows > 20:
            os._exit(7)
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


WITHOUT_RAW = """
import sys
from fastrl.bench import sample
from fastrl.cli import bench_main

class NoTeam:  # raw stepping is not what is tested
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def rates(self, at, seconds):
        return []

sample._team = lambda *_: NoTeam()
sys.exit(bench_main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_dead_process_fails_the_bench(tmp_path):
    (tmp_path / "ends_here.py").write_text(ENDS)
    flags = ["--seconds=30", "--repeats=1", "--", "--workers=1", "--envs-per-worker=2"]
    command = [sys.executable, "-c", WITHOUT_RAW, "sample", "--env", "py:ends_here:Ends", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1
    assert "Rollout worker 0 ended with exit code 7." in done.stderr


def test_refusals(capsys):
    flags = ("sample", "--env", "envpool:CartPole-v1", "--seconds=1")
    assert "--workers 0" in refusal(capsys, *flags, "--", "--workers=0")
    assert "--repeats is 0" in refusal(capsys, *flags, "--repeats=0")
    assert "nothing to compare with" in refusal(capsys, *flags, "--", "--action-repeat=2")
    assert "--run-dir cannot be given" in refusal(capsys, *flags, "--", "--run-dir=x")


@pytest.mark.slow
def test_ctrl_c_leaves_nothing():
    flags = ("--env", "envpool:CartPole-v1", "--seconds=1", "--repeats=1000")
    # The library alone, multiprocessing's own two, and the engine's three: it is being started.
    code, left = interrupt(6, "sample", *flags, "--", "--workers=1", "--envs-per-worker=2")
    assert code == 130 and not left
