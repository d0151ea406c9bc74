"""What a test that fails leaves running ends with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commands import Command


@pytest.fixture(autouse=True)
def _commands() -> Iterator[None]:
    Command.started.clear()
    yield
    for command in Command.started:
        if command.process.poll() is None:
            command.kill()
            command.process.wait()
