"""One group of single Gymnasium environments, stepped one after the other in this process.

    map_action ──▶ step(action i) of environment i ──▶ one copy each into arena rows

The loop itself makes the autoreset of `vector_env`: the step after one that ended an episode calls
`reset()` alone. Environments may reuse the array of their observations, and keep or change the
action that they are given: it is a number or a row of an array that nobody else reads.

Environment i is seeded once, in its first `reset`; later episodes go on with its own generator. So
which group it is in changes none of its episodes, as long as it draws from that generator alone
(not from numpy's or Python's global one).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from fastrl.envs.gymnasium_checks import (
    Observations,
    constructing,
    explain,
    first_observation,
)
from fastrl.envs.seeding import env_seed
from fastrl.envs.spec import ActionSpec, EnvSpec, check_actions, map_action, spaces_spec
from fastrl.envs.stagger import check_stagger, play_stagger
from fastrl.envs.vector_env import StepOut
from fastrl.errors import UnsupportedEnvironment


class SingleEnvs:
    """E environments, which this object constructs, owns and closes (see `VectorEnv`)."""

    def __init__(
        self,
        env_id: str,
        construct: Callable[[], Any],
        num_envs: int,
        first_env_index: int,
        seed: int,
    ) -> None:
        """Call `construct` E times for a `gymnasium.Env` each.

        If one cannot be constructed or used, those before it are closed.

        Args:
            env_id: for the spec and for sentences.
            construct: makes a new environment.
            num_envs: E.
            first_env_index: run-wide index of the first.
            seed: of the run.

        Raises:
            ConfigError: `construct` raised (naming the error), or gave one environment twice.
            UnsupportedEnvironment: the spaces cannot be used, or are not alike.
        """
        self.num_envs = num_envs
        self._first_env_index = first_env_index
        self._seed = seed
        with constructing(env_id), ExitStack() as opened:
            envs: list[Any] = []
            bases: set[int] = set()
            for _ in range(num_envs):
                env = construct()
                base = id(env.unwrapped)
                if base in bases:
                    raise UnsupportedEnvironment(
                        f"{env_id} cannot be used: it gave the same environment twice, and a group "
                        f"of {num_envs} needs as many; construct a new one in every call."
                    )
                bases.add(base)
                _give_spaces_of_its_own(env.unwrapped)
                opened.callback(env.close)
                envs.append(env)
            specs = [_spec_of(env_id, env) for env in envs]
            for spec in specs:
                if spec != specs[0]:
                    raise UnsupportedEnvironment(
                        f"{env_id} cannot be used: its environments differ in their spaces, "
                        f"{spec.observation['obs']} and {spec.action['action']} in one, "
                        f"{specs[0].observation['obs']} and {specs[0].action['action']} in another."
                    )
            self.spec = specs[0]
            self._observations = Observations(
                env_id, envs[0].observation_space, self.spec.observation["obs"]
            )
            self._close = opened.pop_all()
        self._envs = envs
        self._steps = [env.step for env in envs]
        self._action: ActionSpec = self.spec.action["action"]
        self._action_shape = (num_envs, *self._action.shape)
        self._seeded = False
        self._done = [False] * num_envs  # of the last row: the next step only resets

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`."""
        self._check_open()
        rows = obs["obs"]
        for i in range(self.num_envs):
            rows[i] = self._begin(i)
        self._seeded = True
        if stagger_steps is None:
            return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        rngs = check_stagger(stagger_steps, rngs, self.num_envs)

        def step_some(
            stored: np.ndarray, ids: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rewards, _, _ = self._advance(ids.tolist(), stored, rows)
            done = np.array(self._done)[ids]
            return np.array(rewards, dtype=np.float32), done, done

        return play_stagger(step_some, self._action, stagger_steps, rngs)

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """See `VectorEnv.step`."""
        self._check_open()
        stored = action["action"]
        check_actions(self.spec, stored, self._action_shape)
        rewards, terminated, truncated = self._advance(range(self.num_envs), stored, out.obs["obs"])
        out.reward[...] = rewards
        for flags, ended in (
            (out.terminated, terminated),
            (out.truncated, truncated),
            (out.episode_over, terminated + truncated),
        ):
            flags.fill(False)
            if ended:
                flags[ended] = True

    def close(self) -> None:
        """See `VectorEnv.close`; every environment is closed, even if one of them raises."""
        self._envs = []
        self._steps = []
        self._close.close()

    def _advance(
        self, ids: Iterable[int], stored: np.ndarray, rows: np.ndarray
    ) -> tuple[list[float], list[int], list[int]]:
        """Step, or only reset, the environments `ids` and write `rows[i]` of each.

        Returns:
            The rewards in the order of `ids`, and the environments that terminated or were
            truncated (one that did both only terminated).
        """
        steps, done, to_stored = self._steps, self._done, self._observations.stored
        mapped = map_action(stored, self._action)
        actions: Any = mapped.tolist() if self._action.kind == "discrete" else mapped
        rewards: list[float] = []
        terminated: list[int] = []
        truncated: list[int] = []
        for i, action in zip(ids, actions, strict=True):
            if done[i]:
                rows[i] = self._begin(i)
                rewards.append(0.0)
                continue
            try:
                observation, reward, ends, cut, _ = steps[i](action)
                rewards.append(float(reward))
                rows[i] = to_stored(observation)
            except Exception as error:
                self._name(error, i)
                raise
            if ends:
                done[i] = True
                terminated.append(i)
            elif cut:
                done[i] = True
                truncated.append(i)
        return rewards, terminated, truncated

    def _begin(self, i: int) -> np.ndarray:
        """Start a new episode in environment i; return its first observation in stored order."""
        env = self._envs[i]
        try:
            if self._seeded:
                result = env.reset()
            else:
                seed = env_seed(self._seed, self._first_env_index + i)
                # An environment may draw from them.
                env.action_space.seed(seed)
                env.observation_space.seed(seed)
                result = env.reset(seed=seed)
            observation = self._observations.stored(first_observation(self.spec.env_id, result))
        except Exception as error:
            self._name(error, i)
            raise
        self._done[i] = False
        return observation

    def _name(self, error: Exception, i: int) -> None:
        """Add a note to `error` that names the environment, or raise a sentence in its place."""
        explain(self.spec.env_id, error)
        error.add_note(
            f"This was environment {self._first_env_index + i} of {self.spec.env_id}, first reset "
            f"with seed {env_seed(self._seed, self._first_env_index + i)}."
        )

    def _check_open(self) -> None:
        if not self._envs:
            raise RuntimeError(f"The group of {self.spec.env_id} is closed; make a new one.")


def _give_spaces_of_its_own(env: Any) -> None:
    """Copy spaces that the class may share: what one environment draws must not move another's."""
    for name in ("action_space", "observation_space"):
        with suppress(AttributeError):  # a property, or none at all
            setattr(env, name, copy.deepcopy(getattr(env, name)))


def _spec_of(env_id: str, env: Any) -> EnvSpec:
    threshold = getattr(env.unwrapped.spec, "reward_threshold", None)
    return spaces_spec(env_id, env.observation_space, env.action_space, threshold)
