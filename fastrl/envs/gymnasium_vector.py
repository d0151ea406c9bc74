"""One group inside one Gymnasium vector environment, which steps all E of it in one call.

    map_action ──▶ vector.step ──▶ a batch ──▶ one copy to arena rows

Where it differs from other groups:

- It has one generator, seeded by the run-wide index of its first environment: how a run is cut into
  groups changes its episodes.
- It steps all its environments or none, so a number of random first steps that differs between them
  cannot be played: it plays none, and all its first episodes begin with the group.

It must reset on the step after the end of an episode (NEXT_STEP), which it is asked for where it
can be. One that resets within the step would execute the ignored action in its new episode. One
that leaves resetting to its caller (DISABLED) would have to step the others alone while it does,
which no vector environment can.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from fastrl.envs.gymnasium_checks import (
    Observations,
    constructing,
    explain,
    first_observation,
)
from fastrl.envs.options import EnvOptions, check_options
from fastrl.envs.seeding import env_seed
from fastrl.envs.spec import ActionSpec, check_actions, map_action, spaces_spec
from fastrl.envs.vector_env import StepOut
from fastrl.errors import UnsupportedEnvironment

_MODES = {
    AutoresetMode.SAME_STEP: "resets within the step that ends an episode, so it would execute the "
    "ignored action in its new episode",
    AutoresetMode.DISABLED: "leaves resetting to its caller, who cannot step the others alone "
    "meanwhile",
    None: "does not say in metadata['autoreset_mode'] when it resets, and only a reset on the next "
    "step keeps the final observation",
}


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether `function` has a parameter of that name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def vector_keywords(
    env_id: str, options: EnvOptions, used: Sequence[str], entry_point: Callable[..., Any]
) -> dict[str, Any]:
    """What a vector environment's constructor is given besides its number of environments.

    Args:
        env_id: for the sentence.
        options: as the user set them.
        used: other options that this id takes.
        entry_point: the constructor; it need not take any of this.

    Raises:
        ConfigError: an option that the constructor does not take.
    """
    used = [*used]
    keywords: dict[str, Any] = {}
    if takes(entry_point, "max_episode_steps"):
        used.append("max_episode_steps")
        if options.max_episode_steps is not None:
            keywords["max_episode_steps"] = options.max_episode_steps
    check_options(env_id, options, used)
    if takes(entry_point, "autoreset_mode"):
        keywords["autoreset_mode"] = AutoresetMode.NEXT_STEP
    return keywords


class GymnasiumVector:
    """E environments in one vector environment, which this object constructs, owns and closes (see
    `VectorEnv`; module docstring for what it does not keep)."""

    def __init__(
        self,
        env_id: str,
        construct: Callable[[], Any],
        num_envs: int,
        first_env_index: int,
        seed: int,
        one_by_one: str,
    ) -> None:
        """Call `construct` for a `gymnasium.vector.VectorEnv` of E environments.

        Args:
            env_id: for the spec and for sentences.
            construct: makes the vector environment.
            num_envs: E.
            first_env_index: run-wide index of the first.
            seed: of the run.
            one_by_one: how the user has such environments run one by one, to end a sentence.

        Raises:
            ConfigError: `construct` raised.
            UnsupportedEnvironment: the way of resetting, the number or the spaces cannot be used.
        """
        self.num_envs = num_envs
        self._seed: int | None = env_seed(seed, first_env_index)
        with constructing(env_id), ExitStack() as opened:
            vector = construct()
            if not isinstance(vector, VectorEnv):
                raise UnsupportedEnvironment(
                    f"{env_id} cannot be used: it gave a {_type_name(vector)} and not a "
                    f"gymnasium.vector.VectorEnv; {one_by_one}."
                )
            opened.callback(vector.close)
            _check_mode(env_id, vector, one_by_one)
            if vector.num_envs != num_envs:
                raise UnsupportedEnvironment(
                    f"{env_id} cannot be used: its vector environment has {vector.num_envs} "
                    f"environments where {num_envs} were asked for; {one_by_one}."
                )
            space = vector.single_observation_space
            spec = spaces_spec(
                env_id,
                space,
                vector.single_action_space,
                getattr(vector.spec, "reward_threshold", None),
            )
            self.spec = replace(spec, one_generator=True)
            self._observations = Observations(
                env_id, space, self.spec.observation["obs"], batch=(num_envs,)
            )
            self._close = opened.pop_all()
        self._vector: Any = vector
        self._action: ActionSpec = self.spec.action["action"]
        self._action_shape = (num_envs, *self._action.shape)
        self._done = np.zeros(num_envs, dtype=bool)  # of the last row: the next step only resets

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`; no random steps are played (module docstring)."""
        vector = self._running()
        try:
            result = vector.reset() if self._seed is None else vector.reset(seed=self._seed)
        except Exception as error:
            explain(self.spec.env_id, error)
            raise
        self._seed = None
        obs["obs"][...] = self._observations.stored(first_observation(self.spec.env_id, result))
        self._done = np.zeros(self.num_envs, dtype=bool)
        return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """See `VectorEnv.step`."""
        vector = self._running()
        stored = action["action"]
        check_actions(self.spec, stored, self._action_shape)
        mapped = map_action(stored, self._action)
        if mapped is stored:  # the environment may keep or change what it is given
            mapped = stored.copy()
        try:
            observation, reward, ends, cut, _ = vector.step(mapped)
        except Exception as error:
            explain(self.spec.env_id, error)
            raise
        terminated = self._column("terminated", ends).astype(bool)
        truncated = self._column("truncated", cut).astype(bool) & ~terminated
        resets, self._done = self._done, terminated | truncated
        if (resets & self._done).any():
            raise UnsupportedEnvironment(
                f"{self.spec.env_id} cannot be used: an episode was over in the step after its "
                "end, which only resets; its vector environment does not reset as it says."
            )
        out.obs["obs"][...] = self._observations.stored(observation)
        out.reward[...] = self._column("reward", reward)
        out.reward[resets] = 0.0
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        out.episode_over[...] = self._done

    def close(self) -> None:
        """See `VectorEnv.close`."""
        self._vector = None
        self._close.close()

    def _column(self, name: str, value: Any) -> np.ndarray:
        """`value` as an array `[E]`; anything else would be broadcast."""
        array = np.asarray(value)
        if array.shape != (self.num_envs,):
            raise UnsupportedEnvironment(
                f"{self.spec.env_id} cannot be used: its step() returned {name} of shape "
                f"{array.shape} for {self.num_envs} environments."
            )
        return array

    def _running(self) -> Any:
        if self._vector is None:
            raise RuntimeError(f"The group of {self.spec.env_id} is closed; make a new one.")
        return self._vector


def _check_mode(env_id: str, vector: Any, one_by_one: str) -> None:
    try:
        mode = AutoresetMode(vector.metadata.get("autoreset_mode"))
    except ValueError:
        mode = None
    if mode is not AutoresetMode.NEXT_STEP:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used as a vector: it {_MODES[mode]}; {one_by_one}."
        )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
