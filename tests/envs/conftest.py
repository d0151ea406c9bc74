import sys

import pytest
from group import Group

from fastrl.envs import register_env, user_env


@pytest.fixture
def no_names(monkeypatch):
    """Nothing is registered by `register_env`, before the test and after it."""
    monkeypatch.setattr(user_env, "_factories", {})


@pytest.fixture
def toy(no_names):
    """Make a group of the environments that a function or class makes."""

    def group(factory, options=None, **keywords):
        register_env("toy", factory)
        return Group("py:toy", options, **keywords)

    return group


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
