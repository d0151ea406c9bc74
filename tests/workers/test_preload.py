"""What the forkserver does once for all rollout processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastrl.envs.options import EnvOptions
from fastrl.workers.crew import _packed_env
from fastrl.workers.process import ENV_VARIABLE

LOOK = """
import os
import fastrl.workers.preload
from fastrl.envs.envpool_task import understand
print(understand.cache_info().currsize, "FASTRL_ENV" in os.environ)
"""


@pytest.mark.parametrize(
    ("env_id", "kept"), [("atari:Pong", 1), ("envpool:CartPole-v1", 0), ("atari:Pnog", 0)]
)
def test_an_environment_slow_to_describe_is_looked_at_before_the_fork(env_id: str, kept: int):
    """Each of 64 processes would load the game for it; an unknown one is left for them to name."""
    variables = {**os.environ, ENV_VARIABLE: _packed_env(env_id, EnvOptions())}
    result = subprocess.run(
        [sys.executable, "-c", LOOK], env=variables, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == [str(kept), "False"], result.stderr
