"""What README says about an environment of one's own, done as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import Command

from fastrl.cli import parse_train
from fastrl.config import field_names

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_environment_of_the_readme_trains_and_evaluates(tmp_path):
    text = README.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import gymnasium\n.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 20, "twenty lines"
    (tmp_path / "walk.py").write_text(code)
    (train,) = re.findall(r"^    fastrl-train (--env py:walk:Walk .*)$", text, re.MULTILINE)
    command = Command(*train.split(), cwd=tmp_path)
    assert command.finish() == 0, command.output
    assert "the goal -8" in command.output
    (play,) = re.findall(r"^    fastrl-eval (walk)$", text, re.MULTILINE)
    command = Command(play, program="fastrl-eval", cwd=tmp_path)
    assert command.finish() == 0, command.output
    mean = re.search(r"return mean (-?[\d.]+)", command.output)
    assert mean and float(mean[1]) > -10, command.output


def test_every_flag_in_the_readme_is_one():
    lines = re.findall(r"^ {4}(?:.* && )?fastrl-train (.*)$", README.read_text(), re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        parse_train(line.split())  # exits where a flag is none
    known = {f"--{name.replace('_', '-')}" for name in field_names()} | {"--index-url", "--help"}
    known |= {"--episodes", "--checkpoint", "--greedy"}
    known |= {"--out", "--threshold", "--logdir", "--dist", "--profile"}
    known |= {"--no-loadscope-reorder", "--tasks", "--folder", "--write"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README.read_text())) <= known
