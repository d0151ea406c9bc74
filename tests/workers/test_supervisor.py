"""The supervisor's own small decisions."""

from __future__ import annotations

import resource

import pytest

from fastrl.config import TrainConfig
from fastrl.errors import ConfigError
from fastrl.workers.run_folder import default_run_dir
from fastrl.workers.supervisor import allow_descriptors


@pytest.fixture
def limit(monkeypatch):
    values = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: values["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: values.update(now=new))
    return values


def test_the_soft_limit_on_open_files_is_raised_only_where_needed(limit):
    allow_descriptors(1000)
    assert limit["now"] == (1024, 4096)
    allow_descriptors(3000)
    assert limit["now"] == (3000, 4096)
    with pytest.raises(ConfigError, match="about 5000 open files, and this user may have 4096"):
        allow_descriptors(5000)


@pytest.mark.parametrize(
    "env, folder",
    [("atari:Pong", "atari-Pong"), ("envpool:Ant-v4", "envpool-Ant-v4"), ("x:../../y", "x-..-..-y"),
     ("...", "env")],
)  # fmt: skip
def test_a_run_folder_is_named_after_the_environment_and_stays_in_runs(env, folder):
    path = default_run_dir(TrainConfig(env=env, seed=5))
    assert path.parts[:2] == ("runs", folder)
    assert path.name.endswith("-5") and len(path.parts) == 3
