"""From full slots to a time-major batch, and from a minibatch's columns or rows to observations.

Small arrays are gathered once per batch to `[T, B]`; observations stay in their slots, and each
chunk of rows is gathered straight from the arena, once per use::

    column b of the batch = environment e of slot s ;  B = batch_slots * E
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fastrl.models.acting import picks_images
from fastrl.models.pixels import PickedImages
from fastrl.workers.shared import Shared


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Uninitialised CPU tensor of a numpy dtype, in memory that torch aligns.

    numpy's lies differently from run to run, and a kernel that sums in vector registers may then
    sum in another order: equal seeds would not give equal bits.
    """
    return torch.from_numpy(np.empty(0, dtype)).new_empty(shape)


@dataclass(frozen=True)
class Batch:
    """Small arrays of a batch, `[T, B]` unless said otherwise, on the CPU; `kept` is what is
    trained on."""

    first_row: np.ndarray
    """int64 [B]: row of the flat observation array that holds the column's row 0."""
    action: dict[str, torch.Tensor]
    log_prob: torch.Tensor
    value: torch.Tensor
    """In units of reward, as it was given when the action was chosen."""
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    ignored: torch.Tensor
    kept: torch.Tensor
    """bool: neither ignored nor too old."""
    lag: np.ndarray
    """int64: versions published since the row was chosen."""

    @property
    def num_columns(self) -> int:
        """B."""
        return len(self.first_row)

    def by_rows(self, rows: np.ndarray) -> Batch:
        """The same as T·B columns of one row each, time-major; `rows` (int64 [T*B]) are theirs in
        the flat observation array."""

        def flat(array: torch.Tensor) -> torch.Tensor:
            return array.flatten(0, 1)[None]

        return Batch(
            first_row=rows,
            action={key: flat(action) for key, action in self.action.items()},
            log_prob=flat(self.log_prob),
            value=flat(self.value),
            reward=flat(self.reward),
            terminated=flat(self.terminated),
            truncated=flat(self.truncated),
            ignored=flat(self.ignored),
            kept=flat(self.kept),
            lag=self.lag.reshape(1, -1),
        )


class BatchReader:
    """Reads batches out of the arena; owns the buffers that chunks of observations are gathered
    into."""

    def __init__(self, shared: Shared, chunk_rows: int) -> None:
        plan = shared.plan
        self._shared = shared
        self._chunk_rows = chunk_rows
        self._T, self._E = plan.rollout_length, plan.envs_per_group
        self._K = plan.slots_per_group
        rows = plan.num_slots * (self._T + 1) * self._E
        device = torch.device(plan.config.device)
        self._images = {
            key: torch.from_numpy(obs.reshape(rows, *obs.shape[3:]))
            for key, obs in shared.obs.items()
            if picks_images(plan.spec.observation[key], device)
        }
        self._obs_rows = {
            key: obs.reshape(rows, *obs.shape[3:])
            for key, obs in shared.obs.items()
            if key not in self._images
        }
        self._mask_rows = {
            key: mask.reshape(rows, mask.shape[-1]) for key, mask in shared.action_mask.items()
        }
        # Integers are converted by the encoder, so one buffer serves every chunk. A float32 chunk
        # is what autograd keeps for the backward pass: it must be an array of its own.
        self._chunk = {
            key: aligned_empty((chunk_rows, *flat.shape[1:]), flat.dtype)
            for key, flat in self._obs_rows.items()
            if flat.dtype != np.float32
        }

    def read(self, slots: np.ndarray, version: int, max_lag: int) -> Batch:
        """Gather the small arrays of `slots` (int64 [n]) at the learner's current `version`."""
        shared = self._shared
        ignored = self._columns(shared.ignored, slots)[: self._T]
        lag = version - self._columns(shared.version, slots)
        kept = ~ignored & (lag <= max_lag)
        first_row = (slots[:, None] * (self._T + 1) * self._E + np.arange(self._E)).ravel()

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(self._columns(array, slots))

        return Batch(
            first_row=first_row,
            action={key: tensor(action) for key, action in shared.action.items()},
            log_prob=tensor(shared.log_prob),
            value=tensor(shared.value),
            reward=tensor(shared.reward),
            terminated=tensor(shared.terminated),
            truncated=tensor(shared.truncated),
            ignored=torch.from_numpy(ignored),
            kept=torch.from_numpy(kept),
            lag=lag,
        )

    def _columns(self, array: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Gather `[slots, rows, E, ...]` to `[rows, B, ...]`."""
        taken = array[slots]  # [n, rows, E, ...]
        rows = taken.shape[1]
        shape = (rows, len(slots) * self._E, *taken.shape[3:])
        columns: np.ndarray = np.ascontiguousarray(np.moveaxis(taken, 1, 0)).reshape(shape)
        return columns

    def rows(self, first_row: np.ndarray, times: range) -> np.ndarray:
        """Flat observation rows of columns at `times`: int64 [len(times) * columns], time-major."""
        flat: np.ndarray = (np.asarray(times)[:, None] * self._E + first_row).ravel()
        return flat

    def rows_at(self, first_row: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Flat observation rows of (column, time) pairs: int64, of the arguments' shape."""
        flat: np.ndarray = first_row + times * self._E
        return flat

    def env_index(self, first_row: np.ndarray) -> np.ndarray:
        """Run-wide index of the environment of columns that begin at these rows, of their shape."""
        group = first_row // ((self._T + 1) * self._E) // self._K
        index: np.ndarray = group * self._E + first_row % self._E
        return index

    def masks(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """What was allowed at observation rows, per masked action leaf: bool [len(rows), size]."""
        return {key: torch.from_numpy(flat[rows]) for key, flat in self._mask_rows.items()}

    def magnitudes(self, first_row: np.ndarray, steps: int) -> dict[str, torch.Tensor]:
        """The largest absolute value of each observation of columns of so many steps, and of the
        row after them: by leaf f32 [steps + 1, columns]."""
        rows = self.rows(first_row, range(steps + 1))
        chunks: dict[str, list[torch.Tensor]] = {}
        for start in range(0, len(rows), self._chunk_rows):
            obs = self.observations(rows[start : start + self._chunk_rows])
            for key, leaf in obs.items():
                numbers = leaf.copied() if isinstance(leaf, PickedImages) else leaf
                largest = numbers.float().abs().reshape(len(numbers), -1).amax(1)
                chunks.setdefault(key, []).append(largest)
        return {key: torch.cat(parts).view(steps + 1, -1) for key, parts in chunks.items()}

    def observations(self, rows: np.ndarray) -> dict[str, torch.Tensor | PickedImages]:
        """Gather up to `chunk_rows` observations; integer ones are valid until the next call.

        Images that the network reads where they lie are only picked.
        """
        index = torch.from_numpy(rows)
        obs: dict[str, torch.Tensor | PickedImages] = {
            key: PickedImages(images, index) for key, images in self._images.items()
        }
        for key, flat in self._obs_rows.items():
            if key in self._chunk:
                chunk = self._chunk[key][: len(rows)]
            else:
                chunk = aligned_empty((len(rows), *flat.shape[1:]), flat.dtype)
            # mode="raise" would gather into a buffer first, to leave `out` alone on an error.
            np.take(flat, rows, axis=0, out=chunk.numpy(), mode="clip")
            obs[key] = chunk
        return obs
