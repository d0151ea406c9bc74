"""The algorithms by name: what the learner asks of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastrl.algo import appo, impala, ppo
from fastrl.algo.losses import LossRows, LossTerms, TargetRows
from fastrl.algo.vtrace import VTraceReturns
from fastrl.config import LearnOptions


class Algorithm(NamedTuple):
    """Two pure functions."""

    targets: Callable[[TargetRows, LearnOptions], VTraceReturns]
    loss: Callable[[LossRows, LearnOptions], LossTerms]
    stored_values: bool = False
    """Whether targets of a batch are computed from the values stored while collecting, without a
    pass of the network at its start."""


ALGORITHMS = {
    "appo": Algorithm(appo.targets, appo.loss),
    "impala": Algorithm(impala.targets, impala.loss),
    "ppo": Algorithm(ppo.targets, ppo.loss, stored_values=True),
}
