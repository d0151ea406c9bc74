"""From the arrays of an envpool's batch to rows of the arena: `[m, ...]`, all m environments at
once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastrl.envs.spaces import channels_last, leaf_text
from fastrl.envs.spec import ActionSpec, ObservationSpec
from fastrl.errors import UnsupportedEnvironment


class StateLeaf:
    """How one leaf of the observations is brought into stored form."""

    def __init__(self, env_id: str, leaf: ObservationSpec, shape: tuple[int, ...]) -> None:
        """Store arrays `[m, *shape]` as `leaf`; its type is converted by the caller's copy."""
        self._env_id = env_id
        self._path = leaf.path
        self._shape = shape
        transposes = leaf.kind == "image" and channels_last(shape)
        self._axes = (0, 3, 1, 2) if transposes else None
        self._start = leaf.start[0]
        self._n = leaf.n  # envpool has no MultiDiscrete
        self.plain = self._axes is None and leaf.n is None and len(shape) > 0
        """Whether arrays are stored as they come, but for their type."""

    def stored(self, array: np.ndarray) -> np.ndarray:
        """View the leaf in stored form.

        Raises:
            UnsupportedEnvironment: a discrete one is not in its space.
        """
        if array.shape[1:] != self._shape:  # one number is [m, 1] in some ids
            array = array.reshape(len(array), *self._shape)
        if self._axes is not None:
            return array.transpose(self._axes)
        if self._n is not None:
            if self._start:
                array = array - self._start
            if np.count_nonzero((array < 0) | (array >= self._n)):
                outside = array[(array < 0) | (array >= self._n)]
                raise UnsupportedEnvironment(
                    f"{self._env_id} cannot be used: its {leaf_text('observation', self._path)} is "
                    f"{outside[0] + self._start}, but its space says {self._start} to "
                    f"{self._start + self._n - 1}; choose another environment."
                )
        return array


class StateMask:
    """How the mask of the actions is read."""

    def __init__(self, env_id: str, leaf: ActionSpec) -> None:
        """Read the mask of `leaf`, the only one of the actions."""
        self._env_id = env_id
        sizes = leaf.nvec or (leaf.mask_size,)
        self._begins = np.cumsum((0, *sizes[:-1]))

    def stored(self, arrays: Sequence[np.ndarray], done: np.ndarray) -> np.ndarray:
        """What is allowed next, bool `[m, mask_size]`: everything where `done` (bool `[m]`).

        Args:
            arrays: the parts of the mask, `[m, ...]` each.
            done: where nothing is chosen.

        Raises:
            UnsupportedEnvironment: it allows nothing in an environment that goes on.
        """
        mask: np.ndarray = (
            np.concatenate([part.reshape(len(part), -1) for part in arrays], axis=1) != 0
        )
        mask[done] = True
        if not np.logical_or.reduceat(mask, self._begins, axis=1).all():
            raise UnsupportedEnvironment(
                f"{self._env_id} cannot be used: the mask of its actions allows none of them "
                "(--action-mask names another key, or off)."
            )
        return mask
