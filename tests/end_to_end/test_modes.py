"""One code in every mode: equal seeds give equal bits, however the work is spread."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from commands import Command

import fastrl
from fastrl import TrainConfig, checkpoint

SYNC = [
    "--mode", "sync", "--seed", "5", "--rollout-length", "16", "--total-steps", "6000",
    "--log-every", "3u", "--save-every", "5u",
]  # fmt: skip
LEARNING = ("charts/episodic", "charts/learning_rate", "losses/", "lag/")
"""Metrics that say what was learned; the others say how fast."""


def train(tmp_path: Path, name: str, *arguments: str, cores: set[int] | None = None) -> Path:
    command = Command(*arguments, "--run-dir", name, cwd=tmp_path, cores=cores)
    assert command.finish() == 0, command.output
    assert command.wait_until_alone(2.0) == {}
    return tmp_path / name


def learned(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in line.items()
            if name in ("steps", "stopped_by") or name.startswith(LEARNING)
        }
        for line in lines
    ]


def assert_same_tensors(found, expected, path: str = "") -> None:
    """Equal bit for bit, whatever lies in dictionaries and lists; wall time aside."""
    assert type(found) is type(expected), path
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), path
        for name in found:
            if name != "seconds":
                assert_same_tensors(found[name], expected[name], f"{path}/{name}")
    elif isinstance(found, list):
        assert len(found) == len(expected), path
        for i, pair in enumerate(zip(found, expected, strict=True)):
            assert_same_tensors(*pair, f"{path}/{i}")
    elif isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype, path
        assert torch.equal(found, expected), path
    else:
        assert found == expected, path


def assert_same_run(run: Path, other: Path) -> None:
    """The same checkpoints at the same steps, and the same records of what was learned."""
    paths = checkpoint.find_checkpoints(run)
    others = checkpoint.find_checkpoints(other)
    assert [path.name for path in paths] == [path.name for path in others]
    assert len(paths) >= 2
    for path, its in zip(paths, others, strict=True):
        assert_same_tensors(checkpoint.load(path), checkpoint.load(its))
    assert learned(run) == learned(other)
    assert any("charts/episodic_return" in line for line in learned(run))


@pytest.mark.slow
def test_sync_runs_do_not_depend_on_how_environments_are_spread(tmp_path):
    base = ["--env", "envpool:CartPole-v1", "--targets", "batch", *SYNC]
    one, *_ = sorted(os.sched_getaffinity(0))
    runs = [
        train(tmp_path, name, *base, "--workers", workers, "--envs-per-worker", envs, *more,
              cores=cores)
        for name, workers, envs, more, cores in [
            ("none", "0", "32", [], None),
            ("4x8", "4", "8", ["--groups-per-worker", "1"], None),
            ("2x16", "2", "16", [], {one}),
            ("1x32", "1", "32", [], None),
        ]
    ]  # fmt: skip
    for other in runs[1:]:
        assert_same_run(other, runs[0])


def test_another_seed_gives_other_bits(tmp_path):
    runs = [tmp_path / "5", tmp_path / "6"]
    for run in runs:
        config = TrainConfig(
            env="envpool:CartPole-v1", workers=0, envs_per_worker=16, rollout_length=8,
            total_steps=1500, log_every="3u", save_every="5u", seed=int(run.name), run_dir=run,
        )  # fmt: skip
        assert fastrl.train(config) == 0
    first, second = (checkpoint.load(checkpoint.find_checkpoints(run)[0])["model"] for run in runs)
    differ = [name for name in first if not torch.equal(first[name], second[name])]
    assert set(differ) >= {"policy_head.leaf_action.weight", "encoder.normalizers.leaf_obs.mean"}


@pytest.mark.slow
def test_a_debugger_and_a_goal_change_no_bit(tmp_path):
    # The goal is compared with the returns after the same updates, whoever has to wait for that.
    options = {
        "env": "envpool:CartPole-v1", "mode": "sync", "seed": 6, "rollout_length": 16,
        "envs_per_worker": 32, "log_every": "2u", "save_every": "2u", "stop_at_return": 60,
        "publish": "step", "lr_schedule": "kl",
    }  # fmt: skip
    text = f"""
import sys
from fastrl import TrainConfig, train
if sys.argv[1:] == ["debug"]:
    sys.settrace(lambda frame, event, argument: None)
sys.exit(train(TrainConfig(**{options!r}, workers=0, run_dir="traced")))
"""
    script = Command.script(text, tmp_path, "debug")
    assert script.finish() == 0, script.output
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    run = train(tmp_path, "workers", *flags, "--workers", "1")
    assert_same_run(run, tmp_path / "traced")
    assert learned(run)[-1]["stopped_by"] == "stop_at_return"
