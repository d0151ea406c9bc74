"""Each algorithm through the command line; what is learned is tested by what it must reach."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, Command

from fastrl import TrainConfig, checkpoint, train
from fastrl.bench.curves import curve_of
from fastrl.bench.records import read_records
from fastrl.config_file import load_config
from fastrl.evaluate import evaluate

CARTPOLE = ["--env", "envpool:CartPole-v1", "--seed", "3"]


def goal(tmp_path, *more: str) -> list[dict]:
    """Train CartPole to 150 in at most 300,000 steps; the records."""
    command = Command(
        *CARTPOLE, "--run-dir", "run", "--stop-at-return", "150", "--total-steps", "300000",
        *more, cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    assert command.wait_until_alone(2.0) == {}
    return [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm", "ppo"],
        ["--algorithm", "impala", "--epochs", "1", "--entropy-coef", "0.01"],
        ["--algorithm", "impala", "--epochs", "1", "--optimizer", "rmsprop", "--rmsprop-eps",
         "0.01", "--learning-rate", "0.003"],
    ],
    ids=["ppo", "impala", "impala-rmsprop"],
)  # fmt: skip
def test_each_learns(tmp_path, flags):
    records = goal(tmp_path, *flags)
    assert records[-1]["stopped_by"] == "stop_at_return", records[-1]


@pytest.mark.slow
def test_ppo_takes_sync_for_granted_and_its_targets_from_stored_values(tmp_path):
    options = {"env": "envpool:CartPole-v1", "total_steps": 2000, "workers": 0, "seed": 1}
    assert train(TrainConfig(algorithm="ppo", run_dir=tmp_path / "ppo", **options)) == 0
    assert load_config(tmp_path / "ppo" / "config.toml").mode == "sync"
    # In one epoch of one minibatch the network is that which collected: GAE is V-trace.
    once = {"epochs": 1, "minibatches": 1, **options}
    states = []
    for algorithm in ("ppo", "appo"):
        run = tmp_path / f"{algorithm}1"
        assert train(TrainConfig(algorithm=algorithm, run_dir=run, **once)) == 0
        states.append(checkpoint.load(checkpoint.find_checkpoints(run)[-1]))
    ours, its = (np.concatenate([x.numpy().ravel() for x in s["model"].values()]) for s in states)
    np.testing.assert_allclose(ours, its, rtol=2e-3, atol=2e-4)
    # With more epochs it is not: the targets of ppo stay.
    more = {"epochs": 4, "minibatches": 1, **options}
    assert train(TrainConfig(algorithm="appo", run_dir=tmp_path / "appo4", **more)) == 0
    assert train(TrainConfig(algorithm="ppo", run_dir=tmp_path / "ppo4", **more)) == 0
    models = [
        checkpoint.load(checkpoint.find_checkpoints(tmp_path / name)[-1])["model"]
        for name in ("ppo4", "appo4")
    ]
    assert any(abs(models[0][n] - models[1][n]).max() > 1e-3 for n in models[0])


@pytest.mark.slow
def test_without_learning_training_and_evaluation_return_the_same(tmp_path):
    """Reset rows, autoreset, clipping or a bias towards short episodes would part them."""
    command = Command(
        *CARTPOLE, "--run-dir", "run", "--learning-rate", "0", "--lr-schedule", "constant",
        "--total-steps", "120000", "--stagger", "0", "--epochs", "1", "--log-every", "3u",
        "--normalize-obs", "false", "--normalize-returns", "false",
        # The learner has another reward, and a third of the episodes is truncated.
        "--reward-scale", "0.5", "--max-episode-steps", "25",
        cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    # Of means of 100 episodes that do not overlap.
    curve = curve_of(read_records(tmp_path / "run"))
    records = [r for r in read_records(tmp_path / "run") if "charts/episodic_return" in r]
    counts = np.diff([r["charts/episodes"] for r in records])
    means = np.array([r["charts/episodic_return"] for r in records])[1:]
    keep = counts >= 20
    assert keep.sum() >= 10 and len(curve.steps)
    mean = np.average(means[keep], weights=counts[keep])
    # The variance of one episode, from how much means of n scatter.
    variance = np.average(counts[keep] * (means[keep] - mean) ** 2)
    margin = 3.29 * np.sqrt(variance / counts[keep].sum())
    result = evaluate(tmp_path / "run", episodes=1000, seed=9)
    assert abs(result.mean - mean) < margin + result.margin(0.999)
    assert margin < 1 and result.margin(0.999) < 1, "narrow enough to tell"
    assert 0.1 < np.mean(result.lengths == 25) < 0.6


def evaluations(run) -> list[dict]:
    return [r for r in read_records(run) if "eval/episodic_return" in r]


@pytest.mark.slow
def test_evaluation_while_training_is_its_own_curve_and_keeps_the_best(tmp_path):
    command = Command(
        *CARTPOLE, *TINY, "--run-dir", "run", "--total-steps", "60000", "--eval-every", "15000",
        "--eval-episodes", "20", cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    assert command.wait_until_alone(2.0) == {}
    found = evaluations(tmp_path / "run")
    assert 2 <= len(found) <= 5, command.output
    assert found[-1]["steps"] >= 60000, "the last policy is evaluated as well"
    best = checkpoint.load(checkpoint.best_path(tmp_path / "run"))
    assert best["score"] == pytest.approx(max(r["eval/episodic_return"] for r in found))
    assert best["steps"] in [r["steps"] for r in found]
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert not any(name.startswith("evaluate_") for name in names)
    assert command.output.count("evaluated after") == len(found)


def test_in_one_process_evaluation_changes_no_bit(tmp_path):
    options = {"env": "envpool:CartPole-v1", "total_steps": 8000, "workers": 0, "seed": 1}
    assert train(TrainConfig(run_dir=tmp_path / "plain", **options)) == 0
    evaluated = {"eval_every": 4096, "eval_episodes": 4}
    for name in ("one", "two"):
        assert train(TrainConfig(run_dir=tmp_path / name, **evaluated, **options)) == 0
    plain, one = (
        checkpoint.load(checkpoint.find_checkpoints(tmp_path / name)[-1])["model"]
        for name in ("plain", "one")
    )
    assert all((plain[name] == one[name]).all() for name in plain)
    returns = [
        [r["eval/episodic_return"] for r in evaluations(tmp_path / n)] for n in ("one", "two")
    ]
    assert returns[0] == returns[1] and len(returns[0]) >= 2


@pytest.mark.slow
def test_an_evaluator_that_dies_costs_one_evaluation(tmp_path):
    (tmp_path / "fragile.py").write_text(
        """
import os
import gymnasium

spaces = gymnasium.spaces


class Walk(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.steps += 1
        with open("/proc/self/comm") as file:
            once = os.path.join(os.path.dirname(__file__), "once")
            if file.read().startswith("fastrl-eval") and not os.path.exists(once):
                open(once, "w").close()
                os._exit(7)
        return self.observation_space.sample() * 0, 1.0, self.steps >= 10, False, {}
"""
    )
    command = Command(
        "--env", "py:fragile:Walk", *TINY, "--run-dir", "run", "--total-steps", "30000",
        "--eval-every", "8000", "--eval-episodes", "4", cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    assert "The evaluator process ended with exit code 7." in command.output
    assert "is lost" in command.output
    found = evaluations(tmp_path / "run")
    assert found and all(r["eval/episodic_return"] == 10 for r in found)
    assert command.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_an_evaluation_that_is_refused_is_told_and_training_goes_on(tmp_path):
    """Here for a reward that is no number, in the evaluation alone."""
    (tmp_path / "endless.py").write_text(
        """
import gymnasium

spaces = gymnasium.spaces


class Walk(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        with open("/proc/self/comm") as file:
            self.played = file.read().startswith("fastrl-eval")
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.steps += 1
        reward = float("nan") if self.played else 1.0
        return self.observation_space.sample() * 0, reward, self.steps >= 10, False, {}
"""
    )
    command = Command(
        "--env", "py:endless:Walk", *TINY, "--run-dir", "run", "--total-steps", "20000",
        "--eval-every", "15000", "--eval-episodes", "4", cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    assert "The evaluation after" in command.output and "is lost" in command.output
    assert "Traceback" not in command.output and "nan" in command.output.lower()
    assert records_of_end(tmp_path / "run")["stopped_by"] == "total_steps"
    assert command.wait_until_alone(2.0) == {}
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert not any(name.startswith("evaluate_") for name in names)


def records_of_end(run) -> dict:
    return read_records(run)[-1]


def plays(command: Command) -> bool:
    """Whether the evaluator has named itself."""
    for pid in command.family():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "fastrl-eval":
                return True
        except OSError:
            continue
    return False


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_an_evaluation(tmp_path):
    command = Command(
        *CARTPOLE, *TINY, "--run-dir", "run", "--eval-every", "5000", "--eval-episodes", "100000",
        cwd=tmp_path,
    )  # fmt: skip
    command.wait_for("all 2 workers step")
    deadline = time.monotonic() + 60
    while not plays(command) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert plays(command), "an evaluation is under way"
    began = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    assert command.finish() == 130, command.output
    assert time.monotonic() - began < 10
    assert command.wait_until_alone(2.0) == {}
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert not any(name.startswith("evaluate_") for name in names), names
