"""`fastrl-bench update`: what the forward and backward pass of learning costs per step."""

from __future__ import annotations

from fastrl.bench import network_costs
from fastrl.bench.options import UpdateOptions


def run(options: UpdateOptions) -> int:
    """Measure and report; return 0. Raises ConfigError."""
    return network_costs.run("train", options)
