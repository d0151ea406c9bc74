"""`fastrl-bench infer`: what the forward pass of acting costs per step."""

from __future__ import annotations

from fastrl.bench import network_costs
from fastrl.bench.options import InferOptions


def run(options: InferOptions) -> int:
    """Measure and report; return 0. Raises ConfigError."""
    return network_costs.run("inf", options)
