"""fastrl: single-machine, high-throughput asynchronous PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fastrl.config import TrainConfig
    from fastrl.envs import register_env
    from fastrl.evaluate import load_policy
    from fastrl.models.registry import register_model
    from fastrl.workers.training import train

_PUBLIC = {
    "TrainConfig": "fastrl.config",
    "load_policy": "fastrl.evaluate",
    "register_env": "fastrl.envs",
    "register_model": "fastrl.models.registry",
    "train": "fastrl.workers.training",
}

__all__ = ["TrainConfig", "load_policy", "register_env", "register_model", "train"]


def __getattr__(name: str) -> Any:
    # Resolved when asked for: a rollout process imports this package, and must not import torch.
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'fastrl' has no attribute {name!r}")
