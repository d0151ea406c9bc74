"""A run's config.toml: it goes there and back, and what is wrong with one is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastrl.config import TrainConfig, check
from fastrl.config_file import flatten_toml, load_config, write_config
from fastrl.errors import ConfigError

ALL_KINDS = TrainConfig(
    env='envpool:quoted"\\name', seed=3, run_dir=Path("a b/ü\x7f\n\u2028"), hidden=(32, 16),
    stop_at_return=-1.5, separate_critic=True, normalize_advantage=False,
    inference_wait=2.5, save_every="10u", learning_rate=1e-5, workers=2,
)  # fmt: skip


def test_a_configuration_goes_to_its_file_and_back(tmp_path):
    path = tmp_path / "config.toml"
    write_config(path, ALL_KINDS)
    assert load_config(path) == ALL_KINDS
    assert "ü" in path.read_bytes().decode("utf-8")


def test_numpy_scalars_are_written_as_numbers(tmp_path):
    path = tmp_path / "config.toml"
    config = check(TrainConfig(env="x:y", gamma=np.float64(0.9), epochs=np.int64(3)))
    write_config(path, config)
    assert load_config(path) == TrainConfig(env="x:y", gamma=0.9, epochs=3)


def test_the_file_is_utf8_whatever_the_locale(tmp_path):
    """In a C locale without Python's UTF-8 mode, open() would take ASCII."""
    code = (
        "import sys; from pathlib import Path; from fastrl.config import TrainConfig\n"
        "from fastrl.config_file import load_config, write_config\n"
        "path, config = Path(sys.argv[1]), TrainConfig(env='x:\\u00fc')\n"
        "write_config(path, config)\n"
        "assert load_config(path) == config"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "config.toml")]
    subprocess.run(command, check=True, env=environment)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[lern]\n", "no section \\[lern\\], perhaps you meant 'learn'"),
        ("[learn]\nepoch = 1\n", "no option 'epoch', perhaps you meant 'epochs'"),
        ("learn = 3\n", "no section \\[learn\\]"),
        ("[learn]\n", "no `env`"),
        ("[learn\n", "cannot be read"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = 1.5\n', "--gamma is 1.5; it must be at least 0"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = "high"\n', "--gamma is 'high'; it must be a number"),
        ('[run]\nenv = "x:y"\nrun_dir = 7\n', "--run-dir is 7; it must be a path"),
        ('[run]\nenv = 2026-01-01\n', "--env is datetime.date.* it must be a string"),
        ('[run]\nenv = "x:y"\n[learn]\nepochs = 1.5\n', "--epochs is 1.5; it must be a whole"),
        ('[run]\nenv = "x:y"\n[learn]\nepochs = ' + "9" * 5000, "cannot be read"),
        ('[run]\nenv = "x:y"\n[model]\nhidden = [[1]]\n', "--hidden is .* it must be a list"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = nan\n', "--gamma is nan; it must be a number"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_one_sentence(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        load_config(path)


def test_sections_without_a_file_need_no_order():
    assert flatten_toml({"learn": {"epochs": 2}, "run": {"env": "x:y"}}, "t") == {
        "epochs": 2,
        "env": "x:y",
    }
