"""What an update leaves behind for those who look at its optimiser steps."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fastrl.algo.losses import LossTerms
from fastrl.algo.vtrace import VTraceReturns
from fastrl.workers.batch import Batch


class Pass(NamedTuple):
    """What one minibatch's forward pass computed, in its order; rows are time-major."""

    features: Tensor
    """[T*B, F] in the encoder's dtype."""
    last_features: Tensor
    """[B, F] of row T."""
    params: dict[str, Tensor]
    """Per action leaf f32 [T*B, num_params]."""
    value: Tensor
    """f32 [T+1, B], in units of reward."""
    log_prob: Tensor
    """f32 [T, B], as entropy and ratio."""
    entropy: Tensor
    ratio: Tensor
    returns: VTraceReturns
    ignored: Tensor
    """bool [T, B]."""
    terms: LossTerms


class Steps(NamedTuple):
    """The optimiser steps of one update, n in their order."""

    skipped: Tensor
    """bool [n], on the device: loss or gradient was not finite."""
    values: Tensor
    """f32 [n, number of names], on the device; those of skipped steps too."""
    names: tuple[str, ...]
    """Of the values: names of metrics."""
    batch: Batch
    """What they trained on: the batch, or its rows as columns."""
    columns: list[np.ndarray]
    """int64 [columns of a minibatch] each."""

    def symptom(self, step: int) -> str:
        """What was not finite in a skipped step: "policy loss", "gradient" or the like."""
        values = dict(zip(self.names, self.values[step].tolist(), strict=True))
        for term in ("policy_loss", "value_loss", "entropy"):
            if not math.isfinite(values[f"losses/{term}"]):
                return term.replace("_", " ")
        # Where the terms are finite, their sum may still not be.
        return "loss" if math.isfinite(values["losses/grad_norm"]) else "gradient"
