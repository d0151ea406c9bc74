"""What README says about an environment of one's own, done as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import Command

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
