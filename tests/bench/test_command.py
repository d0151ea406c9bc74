"""What a bench's command line says, and what it refuses."""

from __future__ import annotations

import re

import pytest

from fastrl.bench.command import check_numbers, engine_flags, given, plan
from fastrl.bench.options import EnvsOptions, ScaleOptions, TrainOptions
from fastrl.cli import bench_main
from fastrl.errors import ConfigError


def test_the_command_line_is_told_as_it_was_given(tmp_path):
    assert given(TrainOptions()) == []
    options = TrainOptions(profile="cartpole", sweep=True, flags=("--epochs", "3"))
    assert given(options) == ["--profile", "cartpole", "--sweep", "--", "--epochs", "3"]
    options = EnvsOptions(json=tmp_path, sizes=(1, 2))
    assert given(options) == ["--json", str(tmp_path), "--sizes", "1", "2"]


def test_the_users_flags_come_last():
    flags = engine_flags(["--env", "envpool:CartPole-v1"], ["--seed", "7"])
    config, spec, cores = plan(flags)
    assert config.seed == 7 and spec.env_id == "envpool:CartPole-v1" and cores >= 1


def test_a_warm_up_may_be_nothing():
    check_numbers(ScaleOptions(warm_up=0.0))
    with pytest.raises(ConfigError, match=r"--warm-up is -1; it must be at least 0\."):
        check_numbers(ScaleOptions(warm_up=-1.0))


CARTPOLE = ["--env", "envpool:CartPole-v1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--repeats", "0"], "--repeats is 0; it must be at least 1"),
        (["train", "--seconds", "nan"], "--seconds is nan; it must be more than 0"),
        (["train", "--json", "no/such/x.json"], "--json .* cannot be written"),
        (["train", "--plot", "no/such/x.png"], "--plot .* cannot be written"),
        (["train", "--", "--run-dir", "here"], "--run-dir cannot be given"),
        (["train", "--", "--device", "cuda"], "--device is cuda"),
        (["train", "--", "--workers", "0"], "--workers 0 is one process"),
        (["infer", *CARTPOLE, "--threads", "9999"], "--threads has 9999, .* cores only"),
        (["infer", *CARTPOLE, "--batches"], "--batches is empty"),
        (["update", *CARTPOLE, "--batches", "0"], "--batches is 0"),
        (["update", "--env", "envpool:Nothing-v9"], "There is no environment"),
        (["envs", "--env", "envpool:Nothing-v9"], "There is no environment"),
        (["envs", *CARTPOLE, "--sizes", "4", "0"], "--sizes is 0"),
        (["scale", *CARTPOLE, "--envs", "7", "--workers", "2", "3"], "None of --workers 2 3"),
        (
            ["scale", *CARTPOLE, "--workers", "2", "--", "--workers", "4"],
            "--workers and --envs-per-worker cannot be given after --",
        ),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(arguments, sentence, capsys):
    assert bench_main(arguments) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_flags_that_the_engine_does_not_know_are_refused(capsys):
    assert bench_main(["update", *CARTPOLE, "--", "--epoch", "3"]) == 2
    assert "perhaps you meant --epochs" in capsys.readouterr().err
