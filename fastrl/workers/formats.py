"""Which number format the networks compute in: tried out once on this machine, then remembered.

::

    bf16 in hardware? ─no─▶ f32
         │ yes
    cache file knows this processor, torch and network? ─yes─▶ its answer
         │ no
    a few forward and training passes in both, in turn ─▶ cache file

The layout of images is not tried: channels-last was the faster one in both formats wherever it was
measured (1.6 times in bf16 on Zen 4).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import torch

from fastrl.config import TrainConfig
from fastrl.envs.spec import EnvSpec
from fastrl.models.acting import chunk_rows
from fastrl.models.config import BUILT_IN, ModelConfig
from fastrl.models.passes import Work, forward_work, train_work
from fastrl.models.policy import uses_separate_critic

Dtype = Literal["f32", "bf16"]

TURNS = 5
"""Passes of each kind and format, in turn; their median counts."""

GAIN = 0.9
"""bf16 must cost less than this share of f32, which is the more exact one."""


def choose_dtype(spec: EnvSpec, config: TrainConfig, cache: Path | None = None) -> Dtype:
    """The cheaper format of a run's networks on this processor.

    Args:
        spec: of the environment.
        config: resolved but for `dtype`, with the sizes that the passes will have.
        cache: the file of earlier answers; by default the user's.
    """
    # The name of a model of the user's own says nothing about what is in it today.
    path = (cache or _cache_path()) if config.model in BUILT_IN else None
    key = _key(spec, config)
    known = {} if path is None else _read(path)
    if known.get(key) in ("f32", "bf16"):
        return "bf16" if known[key] == "bf16" else "f32"
    seconds = _costs(spec, config)
    chosen: Dtype = "bf16" if seconds["bf16"] < GAIN * seconds["f32"] else "f32"
    if path is not None:
        _write(path, {**_read(path), key: chosen})
    return chosen


def _costs(spec: EnvSpec, config: TrainConfig) -> dict[Dtype, float]:
    """Seconds of a core for one acting row and its training rows, by format.

    Infinite for bf16 where a model of the user's own cannot compute in it, whatever it raises.
    """
    # Half a chunk of the encoder: some hundredths of a second for images.
    most = chunk_rows(spec) // 2
    acting = min(config.envs_per_worker * max(1, int(config.workers)), most)
    training = min(config.batch_size // config.minibatches, most)

    def passes(dtype: Dtype) -> list[tuple[Work, float]]:
        works = [
            (forward_work(config, spec, acting, dtype), 1 / acting),
            (train_work(config, spec, training, dtype), config.epochs / training),
        ]
        for work, _ in works:
            work()
        return works

    tried: dict[Dtype, list[tuple[Work, float]]] = {"f32": passes("f32")}
    with contextlib.suppress(Exception):
        tried["bf16"] = passes("bf16")
    taken: dict[tuple[Dtype, int], list[float]] = {}
    for _ in range(TURNS):
        for dtype, works in tried.items():
            for at, (work, _) in enumerate(works):
                # Of this thread: others of the run are starting meanwhile.
                began = time.thread_time()
                work()
                taken.setdefault((dtype, at), []).append(time.thread_time() - began)
    costs: dict[Dtype, float] = {"f32": math.inf, "bf16": math.inf}
    for dtype, works in tried.items():
        costs[dtype] = sum(
            weight * statistics.median(taken[dtype, at]) for at, (_, weight) in enumerate(works)
        )
    return costs


def _key(spec: EnvSpec, config: TrainConfig) -> str:
    """What the answer depends on: processor, torch, network, sizes."""
    leaves = [(key, leaf.kind, leaf.shape, leaf.dtype) for key, leaf in spec.observation.items()]
    model = config.section(ModelConfig)
    sizes = (
        config.envs_per_worker * max(1, int(config.workers)),
        config.batch_size // config.minibatches,
        config.epochs,
    )
    text = repr((leaves, model, uses_separate_critic(spec, model), sizes))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{_processor()} | torch {torch.__version__} | {digest}"


def _processor() -> str:
    """Family, model and stepping as well: one name may stand for several generations."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping")
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return "unknown"
    fields = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return " ".join(value.strip() for name, value in fields if name.strip() in wanted)


def _cache_path() -> Path | None:
    """The user's file; None for a user without a home."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "fastrl" / "formats.json"


def _read(path: Path) -> dict[str, str]:
    """Earlier answers; none where the file is not there or is no such file."""
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answers if isinstance(answers, dict) else {}


def _write(path: Path, answers: dict[str, str]) -> None:
    """Keep answers for the next run, whole or not at all; a read-only home is no reason to stop."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".formats-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(answers, file, indent=1)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
