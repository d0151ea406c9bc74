"""The way into one envpool: actions for some of its environments in, the arrays of their batch out.

envpool names what it gives by flat keys: "reward", "obs", "obs:arm.position", "info:lives". An
exchange is asked for some of them and gives their arrays in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastrl.envs.quiet import quiet_gymnasium

_FLAGS = ("reward", "done", "trunc")


class Batch(NamedTuple):
    """What came back for m stepped environments, in the order sent.

    The arrays are this batch's own: envpool never writes into them again.
    """

    reward: np.ndarray
    """`[m]`"""
    done: np.ndarray
    """bool `[m]`"""
    trunc: np.ndarray
    """bool `[m]`"""
    state: list[np.ndarray]
    """`[m, ...]` each: the arrays that were asked for."""

    def go_on(self, where: np.ndarray, later: Batch) -> None:
        """Take in the next step of the environments at the places `where` (int `[k]`): the rewards
        of both add up, all else is the later one's."""
        self.reward[where] += later.reward
        self.done[where] = later.done
        self.trunc[where] = later.trunc
        for mine, theirs in zip(self.state, later.state, strict=True):
            mine[where] = theirs


def path_of(key: str) -> tuple[str, ...]:
    """Where envpool's dictionaries have what its flat key names: "obs:a.b" is `("obs", "a", "b")`.

    Not so for the only key of the observations, which has no dictionary around it.
    """
    return tuple(key.replace(":", ".").split("."))


class Exchange(Protocol):
    """One envpool, which the exchange owns: it is freed with it."""

    def reset(self, ids: np.ndarray) -> Batch:
        """Start new episodes in the environments `ids` (int32 `[m]`)."""
        ...

    def step(self, action: np.ndarray, ids: np.ndarray) -> Batch:
        """Step the environments `ids` (int32 `[m]`) with their actions `[m, ...]`."""
        ...


class DirectExchange:
    """envpool's binding without its Python layer, which rebuilds dictionaries in every step.

    That layer costs 25 µs a step, whatever the number of environments, and more the more arrays
    there are.
    """

    def __init__(self, pool: Any, keys: Sequence[str]) -> None:
        """Find the arrays of a batch by their keys."""
        self._pool = pool
        there = list(pool._state_keys)
        self._flags_at = tuple(there.index(key) for key in _FLAGS)
        self._at = [there.index(key) for key in keys]

    @staticmethod
    def fits(pool: Any) -> bool:
        """Whether this version of envpool has the binding as it is used here."""
        private = ("_send", "_recv", "_reset", "_state_keys", "_action_keys")
        if not all(hasattr(pool, name) for name in private):
            return False
        return (
            list(pool._action_keys)[:2] == ["env_id", "players.env_id"]
            and len(pool._action_keys) == 3
            and set(_FLAGS) <= set(pool._state_keys)
        )

    def reset(self, ids: np.ndarray) -> Batch:
        """See `Exchange`."""
        self._pool._reset(ids)
        return self._receive()

    def step(self, action: np.ndarray, ids: np.ndarray) -> Batch:
        """See `Exchange`."""
        self._pool._send([ids, ids, action])
        return self._receive()

    def _receive(self) -> Batch:
        arrays = self._pool._recv()
        reward, done, trunc = self._flags_at
        state = [arrays[at] for at in self._at]
        return Batch(arrays[reward], arrays[done], arrays[trunc], state)


class PublicExchange:
    """envpool's documented API, for versions whose binding looks different."""

    def __init__(self, pool: Any, keys: Sequence[str]) -> None:
        """Keep the pool, and let it build and keep its spaces here, where gymnasium is muted."""
        self._pool = pool
        self._paths = [path_of(key) for key in keys]
        with quiet_gymnasium():
            _ = pool.observation_space

    def reset(self, ids: np.ndarray) -> Batch:
        """See `Exchange`."""
        obs, info = self._pool.reset(ids)
        reward = np.zeros(len(ids), dtype=np.float32)
        done, trunc = np.zeros((2, len(ids)), dtype=bool)
        return Batch(reward, done, trunc, self._state(obs, info))

    def step(self, action: np.ndarray, ids: np.ndarray) -> Batch:
        """See `Exchange`."""
        obs, reward, terminated, trunc, info = self._pool.step(action, ids)
        return Batch(reward, terminated | trunc, trunc, self._state(obs, info))

    def _state(self, obs: Any, info: Any) -> list[np.ndarray]:
        state = []
        for root, *keys in self._paths:
            # What is neither observation nor reward or flag is in info.
            value = obs if root == "obs" else info if root == "info" else info[root]
            for key in keys:
                value = value[key] if isinstance(value, dict) else value
            state.append(value)
        return state


def exchange_for(pool: Any, keys: Sequence[str]) -> DirectExchange | PublicExchange:
    """The cheapest way into `pool` that this version of envpool has.

    Args:
        pool: of `envpool.make_gymnasium`.
        keys: of the arrays that each batch shall have, among `pool`'s own.
    """
    kind = DirectExchange if DirectExchange.fits(pool) else PublicExchange
    return kind(pool, keys)
