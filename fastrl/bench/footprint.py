"""What environments take by themselves, without an engine: memory, and the time to construct them.

::

    a bare process: import what a rollout process has ─▶ construct ─▶ play a little ─▶ difference
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from typing import NamedTuple

from fastrl.bench.processes import private_bytes
from fastrl.bench.stepping import group_work
from fastrl.config import TrainConfig
from fastrl.envs import describe, make
from fastrl.envs.options import EnvOptions

PLAYED_ROWS = 20
"""So that memory which stepping touches first is in use."""


class Footprint(NamedTuple):
    """Of the environments of one worker."""

    private_bytes: int
    construct_seconds: float
    """CPU time of all threads."""


def footprint(config: TrainConfig) -> Footprint:
    """Construct the environments of one worker of the run `config` in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(_measure, config).result()


def torch_import_seconds() -> float:
    """CPU time of a process that imports torch and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _measure(config: TrainConfig) -> Footprint:
    import fastrl.workers.rollout  # noqa: F401

    with contextlib.suppress(ImportError):
        import envpool  # noqa: F401
    options, groups = config.section(EnvOptions), config.groups_per_worker
    size = config.envs_per_worker // groups
    describe(config.env, options)  # the engine's forkserver does that once for all
    before, began = private_bytes(os.getpid()), time.process_time()
    envs = [make(config.env, options, size, g * size, config.seed) for g in range(groups)]
    seconds = time.process_time() - began
    for env in envs:
        work = group_work(env, config.seed)
        for _ in range(PLAYED_ROWS):
            work()
        del work  # and its arrays, which are the arena's in a run
    used = private_bytes(os.getpid()) - before
    for env in envs:
        env.close()
    return Footprint(used, seconds)
