"""One group inside one Gymnasium vector environment, which steps all E of it in one call.

    Actions ──▶ vector.step ──▶ a batch ──▶ one copy to arena rows

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from fastrl.envs.conversion import (
    Actions,
    Masks,
    Observations,
    Rows,
    given_in,
    info_numbers,
    scratch_rows,
)
from fastrl.envs.gymnasium_checks import constructing, explain, first_observation, refusing, told
from fastrl.envs.options import EnvOptions, check_options, keyword_arguments
from fastrl.envs.seeding import env_seed
from fastrl.envs.spaces import spaces_spec, with_masks
from fastrl.envs.vector_env import StepOut
from fastrl.envs.wrapping import progress_teller, wrapped
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
    used = [*used, "wrap"]
    owned = {
        "num_envs": "the engine (see --envs-per-worker)",
        "autoreset_mode": "the engine",
        "vectorization_mode": "the engine",
        "max_episode_steps": "--max-episode-steps",
    }
    keywords = keyword_arguments(options, owned)
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
    `VectorEnv`; module docstring for what it does not keep).

    Attributes:
        set_progress: tells the vector environment how far training is; None where it does not ask.
    """

    def __init__(
        self,
        env_id: str,
        construct: Callable[[], Any],
        options: EnvOptions,
        num_envs: int,
        first_env_index: int,
        seed: int,
        one_by_one: str,
    ) -> None:
        """Call `construct` for a `gymnasium.vector.VectorEnv` of E environments.

        Args:
            env_id: for the spec and for sentences.
            construct: makes the vector environment.
            options: what this adapter itself applies.
            num_envs: E.
            first_env_index: run-wide index of the first.
            seed: of the run.
            one_by_one: how the user has such environments run one by one, to end a sentence.

        Raises:
            ConfigError: `construct` raised.
            UnsupportedEnvironment: the way of resetting, the number or the spaces cannot be used.
        """
        self.num_envs = num_envs
        self._env_id = env_id
        self._first_seed = env_seed(seed, first_env_index)
        self._seed: int | None = self._first_seed
        self._log_info = options.log_info
        self._played = 0  # calls of step(), for sentences
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
            opened.pop_all()
            vector = wrapped(vector, options.wrap, VectorEnv)
            opened.callback(vector.close)
            observation_space = vector.single_observation_space
            action_space = vector.single_action_space
            threshold = getattr(vector.spec, "reward_threshold", None)
            spec = spaces_spec(env_id, observation_space, action_space, options, threshold)
            spec = replace(spec, one_generator=True)
            self._vector: Any = vector
            in_observation = bool(spec.masks)
            # The first reset, kept: only info itself says whether it has a mask, and what cannot
            # begin is told before anything else starts.
            self._teller = progress_teller(vector)
            observation, info = refusing(lambda: self._first_reset(construct))
            if not in_observation and given_in(info, spec, options):
                spec = replace(spec, action=with_masks(spec.action))
            self.spec = spec
            self._observations = Observations(
                env_id, observation_space, spec.observation, batch=num_envs
            )
            self._actions = Actions(spec, action_space)
            self._masks = (
                Masks(spec, options.action_mask, in_observation, batch=num_envs)
                if spec.masks
                else None
            )
            # Copied now: another group's environments may write to the same arrays.
            first = scratch_rows(spec, num_envs)
            self._write_first(observation, info, *first)
            self._first = None if self._teller else first
            self._close = opened.pop_all()
        self._done = np.zeros(num_envs, dtype=bool)  # of the last row: the next step only resets
        self.set_progress = self._teller

    def reset(
        self,
        obs: Rows,
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Rows | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`; no random steps are played (module docstring)."""
        self._running()
        masks = {} if action_mask is None else action_mask
        if self._first is not None:
            for rows, kept in zip((obs, masks), self._first, strict=True):
                for key, array in kept.items():
                    rows[key][...] = array
            self._first = None
        else:
            self._write_first(*self._reset(), obs, masks)
        self._done = np.zeros(self.num_envs, dtype=bool)
        return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)

    def _write_first(self, observation: Any, info: Any, obs: Rows, masks: Rows) -> None:
        """Write what a reset returned."""
        try:
            self._observations.write(observation, obs, slice(None))
            if self._masks is not None:
                self._masks.write(observation, info, masks, slice(None))
        except Exception as error:
            self._name(error, "reset()")
            raise

    def _first_reset(self, construct: Callable[[], Any]) -> tuple[Any, Any]:
        """What the environments begin with; of some that want to be told the progress first, which
        is not known yet, that of strangers: their own reset must be their first."""
        if self._teller is None:
            return self._reset()
        own, strangers = self._vector, construct()
        try:
            told_progress = progress_teller(strangers)
            if told_progress is not None:
                told_progress(0, 1)
            self._vector = strangers
            return self._reset()
        finally:
            self._vector, self._seed = own, self._first_seed
            strangers.close()

    def _reset(self) -> tuple[Any, Any]:
        """Observation and info of a reset, the first time with the seed."""
        vector = self._running()
        try:
            result = vector.reset() if self._seed is None else vector.reset(seed=self._seed)
            self._seed = None
            return first_observation(self._env_id, result)
        except Exception as error:
            self._name(error, "reset()")
            raise

    def step(self, action: Rows, out: StepOut) -> None:
        """See `VectorEnv.step`."""
        vector = self._running()
        self._played += 1
        try:
            taken = self._actions.batched(action, self.num_envs)
            observation, reward, ends, cut, info = vector.step(taken)
            terminated = self._column("terminated", ends).astype(bool)
            truncated = self._column("truncated", cut).astype(bool) & ~terminated
            resets, self._done = self._done, terminated | truncated
            if (resets & self._done).any():
                raise UnsupportedEnvironment(
                    f"{self._env_id} cannot be used: an episode was over in the step after its "
                    "end, which only resets; its vector environment does not reset as it says."
                )
            self._observations.write(observation, out.obs, slice(None))
            out.reward[...] = self._column("reward", reward)
            self._write_masks(observation, info, out.action_mask)
        except Exception as error:
            self._name(error, f"step {self._played:,}")
            raise
        out.reward[resets] = 0.0
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        out.episode_over[...] = self._done
        if out.info is not None:
            for i in np.flatnonzero(self._done).tolist():
                out.info[i] = info_numbers(_info_of(info, i), self._log_info)

    def _write_masks(self, observation: Any, info: Any, rows: Rows) -> None:
        if self._masks is None:
            return
        if self._done.all():
            # Then nobody need have given one.
            self._masks.allow_all(rows, slice(None))
            return
        done = np.flatnonzero(self._done)
        self._masks.write(observation, info, rows, slice(None), done)

    def _name(self, error: Exception, where: str) -> None:
        """Add a note to `error` that says where it was, or raise a sentence in its place."""
        try:
            explain(self._env_id, error)
        except UnsupportedEnvironment as explained:
            error = explained
        if isinstance(error, UnsupportedEnvironment):
            raise UnsupportedEnvironment(f"{error} (It was in {where}.)") from error
        error.add_note(f"{self._env_id} raised {told(error)} in {where}.")

    def close(self) -> None:
        """See `VectorEnv.close`."""
        self._vector = None
        self._close.close()

    def _column(self, name: str, value: Any) -> np.ndarray:
        """`value` as an array `[E]`; anything else would be broadcast."""
        array = np.asarray(value)
        if array.shape != (self.num_envs,):
            raise UnsupportedEnvironment(
                f"{self._env_id} cannot be used: its step() returned {name} of shape "
                f"{array.shape} for {self.num_envs} environments."
            )
        return array

    def _running(self) -> Any:
        if self._vector is None:
            raise RuntimeError(f"The group of {self._env_id} is closed; make a new one.")
        return self._vector


def _info_of(info: Any, i: int) -> dict[str, Any]:
    """The info of environment i, out of Gymnasium's arrays: `_key` says who has a key."""
    own: dict[str, Any] = {}
    for key, values in info.items():
        if key.startswith("_") and key[1:] in info:
            continue
        present = info.get(f"_{key}")
        if present is None or _of(present, i):
            own[key] = _info_of(values, i) if isinstance(values, dict) else _of(values, i)
    return own


def _of(values: Any, i: int) -> Any:
    """Environment i's of `values`, which may be one for all; None where there is none."""
    try:
        return values[i] if np.ndim(values) else values
    except (IndexError, KeyError, TypeError, ValueError):  # a ragged list has no ndim
        return None


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
