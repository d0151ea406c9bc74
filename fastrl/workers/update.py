"""One update: epochs and minibatches over a batch; the loss is computed here, in plain sight.

::

    columns ─▶ chunks of rows: gather, encoder (bf16 or f32) ─▶ heads (f32) ─▶ V-trace ─▶ loss
            ─▶ one backward pass ─▶ clip ─▶ Adam on one flat tensor
    with `targets` batch: V-trace over the whole batch first, then the same for random rows
    after the last epoch: statistics of observations and returns, the value head with them

A step whose loss or gradient is not finite is skipped: it changes neither weights nor optimiser,
and its rows are in no statistics of returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastrl.algo.algorithms import ALGORITHMS
from fastrl.algo.losses import LossRows, TargetRows, importance_log_ratio
from fastrl.algo.moments import (
    Moments,
    ReturnMoments,
    merge_moments,
    merge_returns,
    no_moments,
    no_returns,
)
from fastrl.algo.optimizers import Adam, Optimizer, RMSProp
from fastrl.algo.schedules import adapt_learning_rate, barrier_coef, entropy_coef, target_kl
from fastrl.algo.vtrace import VTraceReturns
from fastrl.config import LearnOptions, TrainConfig
from fastrl.envs.spec import EnvSpec
from fastrl.models.acting import chunk_rows
from fastrl.models.config import ModelConfig
from fastrl.models.flat import FlatParameters
from fastrl.models.pixels import PickedImages
from fastrl.models.policy import ActorCritic
from fastrl.workers.batch import Batch, BatchReader
from fastrl.workers.steps import Pass, Steps

IMAGE_MOMENT_ROWS = 256
"""Rows of a batch that go into the statistics of pixels: all of them would cost a tenth of an epoch
and say no more."""

RETURN_MEMORY = 64
"""Batches of returns that the statistics remember: as the policy improves, returns move on."""

SOUND = 1e12
"""Targets of a batch must be within plus and minus this, in units of reward, for minibatches of
random rows."""

KL_ROWS = 256
"""Kept rows of a batch that the divergence between the policy before and after it is a mean of."""

MOMENTS_STREAM, KL_STREAM = 1 << 20, 1 << 21
"""Beside the epochs, which number the other streams of random numbers of an update."""


class _OfBatch(NamedTuple):
    """What is computed once per batch, [T, B] of all its columns."""

    returns: VTraceReturns
    proximal: Tensor | None
    """f32, log π(a) of the policy at its start."""

    def at(self, rows: Tensor) -> tuple[VTraceReturns, Tensor | None]:
        """Those of rows (int64 [n], time-major), [1, n] each."""
        returns = VTraceReturns(*(x.flatten()[rows][None] for x in self.returns))
        return returns, None if self.proximal is None else self.proximal.flatten()[rows][None]


class Updater:
    """Owns the network that learns and its optimiser.

    Attributes:
        network: the network.
        steps: the optimiser steps of the last update; None before the first.
    """

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        """Build the network with fresh weights from torch's global generator."""
        self._config = config
        self._learn: LearnOptions = config.section(LearnOptions)
        self._algorithm = ALGORITHMS[config.algorithm]
        self._device = torch.device(config.device)
        self.network = ActorCritic(spec, config.section(ModelConfig)).to(self._device)
        self._flat = FlatParameters(self.network)
        # On the device: a schedule that looks at the policy must not have the host wait for it.
        self._learning_rate = torch.tensor(float(config.learning_rate), device=self._device)
        self._optimizer = _optimizer(config, self._flat.data)
        self.chunk_rows = chunk_rows(spec)
        self._normalizers = self.network.encoder.normalizers
        self._moments = {key: no_moments(spec.observation[key].shape) for key in self._normalizers}
        image = any(leaf.is_large_image for leaf in spec.observation.values())
        self._moment_rows = IMAGE_MOMENT_ROWS if image else None
        self._return_moments = no_returns(self._device)
        self.steps: Steps | None = None
        self._skipped: list[Tensor] = []  # of an update: bool [] per optimiser step
        self._targets: list[tuple[Tensor, Tensor]] = []  # of an epoch: v_t and valid rows
        self._of_batch: _OfBatch | None = None
        self._ratio_error: Tensor | None = None  # of a batch, once its first minibatch is known

    @property
    def num_params(self) -> int:
        """Length of the flat parameter array."""
        return self._flat.num_floats

    def flat_numpy(self) -> np.ndarray:
        """Return the parameters as float32 numpy [num_params]; on CPU a view, not a copy."""
        return self._flat.data.detach().cpu().numpy()

    def state(self) -> dict[str, Any]:
        """Return tensors and numbers for a checkpoint."""
        return {
            "model": {
                name: value.cpu().clone() for name, value in self.network.state_dict().items()
            },
            "optimizer": {
                name: value.cpu() if isinstance(value, Tensor) else value
                for name, value in self._optimizer.state().items()
            },
            "learning_rate": self._config.learning_rate,
            "present_rate": float(self._learning_rate),
            "moments": {key: moments._asdict() for key, moments in self._moments.items()},
            "return_moments": self._return_moments._asdict(),
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take weights and normalisers of a checkpoint.

        Raises KeyError, TypeError, ValueError or RuntimeError where it is of another network.
        """
        moments = {key: Moments(**state["moments"][key]) for key in self._moments}
        returns = ReturnMoments(**state["return_moments"])
        self.network.load_state_dict(state["model"])
        self._moments = moments
        self._return_moments = ReturnMoments(*(x.to(self._device) for x in returns))

    def load_state(self, state: dict[str, Any]) -> None:
        """Take all of a checkpoint; raises as `load_weights`.

        The rate that a schedule has come to stays, unless the run now begins with another one.
        """
        # The optimiser first: what does not fit must leave the weights alone.
        self._optimizer.load_state(state["optimizer"])
        if state["learning_rate"] == self._config.learning_rate:
            self._learning_rate.fill_(state["present_rate"])
        self.load_weights(state)

    def update(
        self,
        batch: Batch,
        reader: BatchReader,
        update: int,
        progress: float,
        between: Callable[[], None] | None = None,
    ) -> dict[str, Tensor]:
        """Train `epochs` times on the kept rows of `batch`; return metrics as device tensors.

        Columns, or with `targets` batch rows, are permuted anew in each epoch, by (seed, update,
        epoch).

        Args:
            batch: with at least one kept row.
            reader: reads its observations.
            update: its number in the run, a key of what is drawn at random.
            progress: share of the run's steps that were learned from before.
            between: called after each optimiser step but the last; what the last one made is
                complete only when this returns.
        """
        config = self._config
        if config.lr_schedule != "kl":
            left = 1.0 - progress if config.lr_schedule == "linear" else 1.0
            self._learning_rate.fill_(config.learning_rate * max(0.0, left))
        steps_before = progress * config.total_steps
        self._learn = replace(
            self._learn,
            entropy_coef=entropy_coef(config, steps_before),
            barrier_coef=barrier_coef(config, steps_before),
        )
        metrics = {
            "charts/learning_rate": self._learning_rate.clone(),
            "charts/entropy_coef": torch.tensor(self._learn.entropy_coef),
        }
        if self._learn.barrier_coef:
            metrics["charts/barrier_coef"] = torch.tensor(self._learn.barrier_coef)
        kl_rows = self._kl_rows(batch, reader, update) if config.lr_schedule == "kl" else None
        before = None if kl_rows is None else self._policy_params(reader, kl_rows)
        self._ratio_error = None
        self._of_batch = self._prepare(batch, reader) if config.targets == "batch" else None
        if self._of_batch is not None:
            batch = batch.by_rows(reader.rows(batch.first_row, range(config.rollout_length)))
        size = batch.num_columns // config.minibatches
        self._skipped.clear()
        rows: list[Tensor] = []
        stepped: list[np.ndarray] = []
        for epoch in range(config.epochs):
            self._targets.clear()
            order = np.random.default_rng([config.seed, update, epoch]).permutation(
                batch.num_columns
            )
            for start in range(0, size * config.minibatches, size):
                columns = order[start : start + size]
                if bool(batch.kept[:, columns].any()):
                    if rows and between is not None:
                        between()
                    rows.append(self._minibatch(batch, reader, columns))
                    stepped.append(columns)
        self.steps = steps = Steps(
            torch.stack(self._skipped), torch.stack(rows), tuple(METRICS), batch, stepped
        )
        if kl_rows is not None and before is not None:
            kl = self.network.kl(before, self._policy_params(reader, kl_rows)).mean()
            # The schedule would take the small divergence of skipped steps for a rate too low.
            kl = kl.masked_fill(steps.skipped.any(), torch.nan)
            metrics["losses/kl"] = kl
            self._learning_rate.copy_(
                adapt_learning_rate(self._learning_rate, kl, target_kl(config, steps_before))
            )
        self._merge_observations(batch, reader, update)
        self._merge_returns()
        mean = steps.values.masked_fill(steps.skipped[:, None], torch.nan).nanmean(dim=0)
        metrics["losses/skipped"] = steps.skipped.sum()
        if self._ratio_error is not None:
            metrics["lag/ratio_error"] = self._ratio_error
        return metrics | dict(zip(METRICS, mean.unbind(), strict=True))

    def _kl_rows(self, batch: Batch, reader: BatchReader, update: int) -> np.ndarray:
        """Observation rows of up to KL_ROWS kept rows, drawn at random: int64 [n]."""
        times, columns = np.nonzero(batch.kept.numpy())
        if len(times) > KL_ROWS:
            rng = np.random.default_rng([self._config.seed, update, KL_STREAM])
            chosen = rng.choice(len(times), KL_ROWS, replace=False)
            times, columns = times[chosen], columns[chosen]
        return reader.rows_at(batch.first_row[columns], times)

    @torch.no_grad()
    def _policy_params(self, reader: BatchReader, rows: np.ndarray) -> dict[str, Tensor]:
        """The distributions' parameters at observation rows, by the present weights."""
        with self._autocast():
            features = self._features(reader, rows)
            masks = self._masks(reader, rows)
        return self.network.heads(features, masks).params

    def _merge_returns(self) -> None:
        """Merge the last epoch's targets of valid rows, those of skipped steps left out; no value
        in reward units changes by it."""
        if self.network.return_normalizer is None:
            return
        targets = torch.cat([target.flatten() for target, _ in self._targets])
        valid = torch.cat([rows.flatten() for _, rows in self._targets])
        longest = RETURN_MEMORY * self._config.batch_size
        self._return_moments = merge_returns(self._return_moments, targets, valid, longest)
        _, mean, variance = self._return_moments
        self.network.rescale_returns(mean, variance.sqrt())

    def _merge_observations(self, batch: Batch, reader: BatchReader, update: int) -> None:
        """Merge the batch's valid observations into the normalisers' statistics, but for chunks
        with which these would not be finite."""
        if not self._normalizers:
            return
        times, columns = np.nonzero(~batch.ignored.numpy())
        if self._moment_rows is not None and len(times) > self._moment_rows:
            rng = np.random.default_rng([self._config.seed, update, MOMENTS_STREAM])
            chosen = rng.choice(len(times), self._moment_rows, replace=False)
            times, columns = times[chosen], columns[chosen]
        rows = reader.rows_at(batch.first_row[columns], times)
        for start in range(0, len(rows), self.chunk_rows):
            obs = reader.observations(rows[start : start + self.chunk_rows])
            for key in self._normalizers:
                leaf = obs[key]
                rows_of_leaf = leaf.copied() if isinstance(leaf, PickedImages) else leaf
                merged = merge_moments(self._moments[key], rows_of_leaf)
                # On the CPU, as the observations are: nothing waits for the device.
                if bool(merged.mean.isfinite().all() & merged.variance.isfinite().all()):
                    self._moments[key] = merged
        for key, moments in self._moments.items():
            self._normalizers[key].set(
                moments.mean.to(self._device), moments.variance.to(self._device)
            )

    def _minibatch(self, batch: Batch, reader: BatchReader, columns: np.ndarray) -> Tensor:
        """One optimiser step on the rows of `columns`; returns the values of METRICS.

        Where loss or gradient is not finite, the optimiser leaves weights, moments and its own
        count of steps as they are. Nothing is read back: the device decides.
        """
        config = self._config
        found = self.backward(batch, reader, columns)
        grad_norm = torch.linalg.vector_norm(self._flat.grad)
        skipped = ~(found.terms.loss.detach().isfinite() & grad_norm.isfinite())
        # As torch's clip_grad_norm_, on the one tensor there is.
        self._flat.grad.mul_((config.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step(self._flat.grad, self._learning_rate, skipped)
        self._skipped.append(skipped)
        self._targets.append((found.returns.vs, ~(found.ignored | skipped)))
        return torch.stack(
            [getattr(found.terms, name) for name in METRICS.values() if name] + [grad_norm]
        )

    def backward(self, batch: Batch, reader: BatchReader, columns: np.ndarray) -> Pass:
        """Leave the gradient of the rows of `columns` in the network's parameters; no step."""
        self._flat.zero_grad()
        found = self._forward(batch, reader, columns)
        found.terms.loss.backward()
        return found

    def _forward(self, batch: Batch, reader: BatchReader, columns: np.ndarray) -> Pass:
        device = self._device
        index = torch.from_numpy(columns)

        def take(array: Tensor) -> Tensor:
            return array[:, index].to(device, non_blocking=True)

        reward, terminated, truncated = (
            take(batch.reward),
            take(batch.terminated),
            take(batch.truncated),
        )
        ignored, behaviour = take(batch.ignored), take(batch.log_prob)
        weight = take(batch.kept).float()
        T, B = reward.shape
        first_row = batch.first_row[columns]
        rows = reader.rows(first_row, range(T))
        with self._autocast():
            features = self._features(reader, rows)
        output = self.network.heads(features, self._masks(reader, rows))
        value = output.value.view(T, B)
        if self._of_batch is None:
            last, bootstrap = self._last_values(reader, first_row)
        else:
            # Went into the targets already.
            last, bootstrap = features.new_zeros(B, features.shape[1]), value.new_zeros(B)
        actions = {key: take(action).flatten(0, 1) for key, action in batch.action.items()}
        log_prob, entropy = (x.view(T, B) for x in self.network.evaluate(output, actions))
        with torch.no_grad():
            ratio = importance_log_ratio(log_prob, behaviour, ignored).exp()
            values = torch.cat((value, bootstrap[None]))
            if self._ratio_error is None:
                # Before the first step these rows' policy is the one that acted; what differs is
                # rounding. NaN where there is no such row.
                same = take(batch.kept) & take(torch.from_numpy(batch.lag == 0))
                self._ratio_error = (ratio - 1.0).abs().masked_fill(~same, torch.nan).nanmedian()
        if self._of_batch is None:
            rows_of = TargetRows(ratio, reward, values, terminated, truncated, ignored)
            returns, proximal = self._algorithm.targets(rows_of, self._learn), None
        else:
            returns, proximal = self._of_batch.at(index.to(device, non_blocking=True))
        network = self.network
        barrier = None  # 0 times an infinite divergence would be NaN
        if self._learn.barrier_coef:
            barrier = network.kl_from_uniform(output).view(T, B)
        looked_at = LossRows(
            log_prob,
            entropy,
            output.normalized_value.view(T, B),
            behaviour,
            returns._replace(vs=network.normalize_returns(returns.vs)),
            weight,
            ignored,
            proximal,
            barrier,
        )
        terms = self._algorithm.loss(looked_at, self._learn)
        return Pass(
            features,
            last,
            output.params,
            values,
            log_prob,
            entropy,
            ratio,
            returns,
            ignored,
            terms,
        )

    @torch.no_grad()
    def _last_values(self, reader: BatchReader, first_row: np.ndarray) -> tuple[Tensor, Tensor]:
        """Features [B, F] and values f32 [B] of columns' row T by the present weights."""
        T = self._config.rollout_length
        rows = reader.rows(first_row, range(T, T + 1))
        with self._autocast():
            features = self._features(reader, rows)
        return features, self.network.heads(features, self._masks(reader, rows)).value

    @torch.no_grad()
    def _prepare(self, batch: Batch, reader: BatchReader) -> _OfBatch | None:
        """Targets of a whole batch, by the present network or, but for row T, which the collecting
        policy did not look at, by the values stored in it.

        None where they are not all sound: one number that is out of bounds is in the targets of all
        rows before it, and would be in every minibatch of random rows. In minibatches of columns it
        is in one of each epoch, which is skipped, and whose cause can be found. To know it the host
        waits for the device, once per batch.
        """
        device = self._device
        reward, terminated, truncated, ignored, behaviour = (
            array.to(device)
            for array in (
                *(batch.reward, batch.terminated, batch.truncated),
                *(batch.ignored, batch.log_prob),
            )
        )
        T, B = reward.shape
        _, bootstrap = self._last_values(reader, batch.first_row)
        if self._algorithm.stored_values:
            value, ratio, proximal = batch.value.to(device), torch.ones_like(reward), None
        else:
            rows = reader.rows(batch.first_row, range(T))
            with self._autocast():
                features = self._features(reader, rows)
            output = self.network.heads(features, self._masks(reader, rows))
            actions = {key: x.to(device).flatten(0, 1) for key, x in batch.action.items()}
            proximal = self.network.evaluate(output, actions)[0].view(T, B)
            value = output.value.view(T, B)
            ratio = importance_log_ratio(proximal, behaviour, ignored).exp()
        values = torch.cat((value, bootstrap[None]))
        rows_of = TargetRows(ratio, reward, values, terminated, truncated, ignored)
        returns = self._algorithm.targets(rows_of, self._learn)
        sound = (returns.vs.abs() < SOUND) & (returns.advantage.abs() < SOUND)  # NaN is not
        return _OfBatch(returns, proximal) if bool((sound | ignored).all()) else None

    def _features(self, reader: BatchReader, rows: np.ndarray) -> Tensor:
        """Encode observation rows in chunks of the size that the cache likes; [len(rows), F]."""
        chunks = []
        for start in range(0, len(rows), self.chunk_rows):
            obs = reader.observations(rows[start : start + self.chunk_rows])
            on_device = {
                key: leaf if isinstance(leaf, PickedImages) else leaf.to(self._device)
                for key, leaf in obs.items()
            }
            chunks.append(self.network.encode(on_device))
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def _masks(self, reader: BatchReader, rows: np.ndarray) -> dict[str, Tensor]:
        """What was allowed at observation rows, on the device."""
        return {key: mask.to(self._device) for key, mask in reader.masks(rows).items()}

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._config.dtype == "bf16":
            return torch.autocast(self._device.type, torch.bfloat16)
        return contextlib.nullcontext()


def _optimizer(config: TrainConfig, parameter: Tensor) -> Optimizer:
    if config.optimizer == "rmsprop":
        return RMSProp(parameter, config.rmsprop_eps, config.rmsprop_decay, config.momentum)
    return Adam(parameter, config.adam_eps)


METRICS = {
    "losses/policy_loss": "policy_loss",
    "losses/value_loss": "value_loss",
    "losses/entropy": "entropy",
    "losses/barrier": "barrier",
    "losses/approx_kl": "approx_kl",
    "losses/clipfrac": "clipfrac",
    "losses/explained_variance": "explained_variance",
    "lag/rho_clipped_share": "rho_clipped_share",
    "losses/grad_norm": "",
}
"""Metric name to the field of LossTerms; the last one is measured after the backward pass."""
