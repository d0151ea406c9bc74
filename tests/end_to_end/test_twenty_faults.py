"""Faults at random moments, as a user runs them. The seed is drawn anew each time:
FASTRL_CHAOS_SEED repeats one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess

import pytest
from commands import HANG

from fastrl.bench.engine_run import command_line


@pytest.mark.slow
def test_twenty_faults_at_random_moments(tmp_path):
    seed = os.environ.get("FASTRL_CHAOS_SEED") or str(random.SystemRandom().randrange(1, 10**9))
    print(f"FASTRL_CHAOS_SEED={seed}")
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    done = subprocess.run(
        command_line(
            *("fastrl-bench", "chaos", "--kills", "20", "--seed", seed),
            *("--json", str(out), "--write", str(page)),
        ),
        capture_output=True,
        text=True,
        timeout=5 * HANG,
    )
    assert done.returncode == 0, f"FASTRL_CHAOS_SEED={seed}\n{done.stdout}{done.stderr}"
    values = json.loads(out.read_text())
    assert values["signals"] == 20 and values["failed_runs"] == 0
    assert str(values["seed"]) == seed
    assert f"--seed {seed}" in page.read_text() and "every run was as promised" in page.read_text()
