"""One group of single Gymnasium environments, stepped one after the other in this process.

    Actions ──▶ step(action i) of environment i ──▶ one copy each into arena rows

The loop itself makes the autoreset of `vector_env`: the step after one that ended an episode calls
`reset()` alone. Environments may reuse the array of their observations, and keep or change the
action that they are given: it is a number or a row of an array that nobody else reads.

Environment i is seeded once, in its first `reset`; later episodes go on with its own generator. So
which group it is in changes none of its episodes, as long as it draws from that generator alone
(not from numpy's or Python's global one).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from fastrl.envs.conversion import (
    Actions,
    Masks,
    Observations,
    Rows,
    given_in,
    info_numbers,
    refuse_repeated_masks,
    scratch_rows,
)
from fastrl.envs.gymnasium_checks import constructing, explain, first_observation, refusing, told
from fastrl.envs.options import EnvOptions
from fastrl.envs.seeding import env_seed
from fastrl.envs.spaces import spaces_spec, with_masks
from fastrl.envs.spec import EnvSpec
from fastrl.envs.stagger import check_stagger, play_stagger
from fastrl.envs.vector_env import StepOut
from fastrl.envs.wrapping import progress_teller
from fastrl.errors import UnsupportedEnvironment


class SingleEnvs:
    """E environments, which this object constructs, owns and closes (see `VectorEnv`).

    Attributes:
        set_progress: tells the environments how far training is; None where none of them asks.
    """

    def __init__(
        self,
        env_id: str,
        construct: Callable[[], Any],
        options: EnvOptions,
        num_envs: int,
        first_env_index: int,
        seed: int,
    ) -> None:
        """Call `construct` E times for a `gymnasium.Env` each.

        If one cannot be constructed or used, those before it are closed.

        Args:
            env_id: for the spec and for sentences.
            construct: makes a new environment, with its wrappers.
            options: what this loop itself applies.
            num_envs: E.
            first_env_index: run-wide index of the first.
            seed: of the run.

        Raises:
            ConfigError: `construct` raised (naming the error), or gave one environment twice.
            UnsupportedEnvironment: the spaces cannot be used, or are not alike.
        """
        self.num_envs = num_envs
        self._env_id = env_id
        self._first_env_index = first_env_index
        self._seed = seed
        self._seeded = [False] * num_envs
        self._played = [0] * num_envs  # calls of step(), for sentences
        self._repeat = options.action_repeat
        self._log_info = options.log_info
        with ExitStack() as opened:
            self._envs: list[Any] = []
            with constructing(env_id):
                bases: set[int] = set()
                for _ in range(num_envs):
                    env = construct()
                    base = id(env.unwrapped)
                    if base in bases:
                        raise UnsupportedEnvironment(
                            f"{env_id} cannot be used: it gave the same environment twice, and a "
                            f"group of {num_envs} needs as many; construct a new one in every call."
                        )
                    bases.add(base)
                    _give_spaces_of_its_own(env.unwrapped)
                    opened.callback(env.close)
                    self._envs.append(env)
                specs = [_spec_of(env_id, env, options) for env in self._envs]
            spec = specs[0]
            for other in specs:
                if other != spec:
                    raise UnsupportedEnvironment(
                        f"{env_id} cannot be used: its environments differ in their spaces, "
                        f"{other.observation} and {other.action} in one, {spec.observation} and "
                        f"{spec.action} in another."
                    )
            observation_space, action_space = (
                self._envs[0].observation_space,
                self._envs[0].action_space,
            )
            in_observation = bool(spec.masks)
            tellers = [progress_teller(env) for env in self._envs]
            # Environment 0's first reset: only info itself says whether it has a mask, and one that
            # cannot begin is told before anything else starts.
            observation, info = refusing(lambda: self._first_reset(construct, tellers[0]))
            if not in_observation and given_in(info, spec, options):
                spec = dataclasses.replace(spec, action=with_masks(spec.action))
            refuse_repeated_masks(spec, options)
            self.spec = spec
            self._observations = Observations(env_id, observation_space, spec.observation)
            self._actions = Actions(spec, action_space)
            self._masks = Masks(spec, options.action_mask, in_observation) if spec.masks else None
            # Copied now: another group's environment may write to the same arrays.
            first = scratch_rows(spec, num_envs)
            self._write_first(0, observation, info, *first)
            self._first = None if tellers[0] else first
            self._close = opened.pop_all()
        self._steps = [env.step for env in self._envs]
        self._done = [False] * num_envs  # of the last row: the next step only resets
        self._tellers = [teller for teller in tellers if teller is not None]
        self.set_progress = self._tell if self._tellers else None

    @property
    def single(self) -> Any:
        """The first `gymnasium.Env`, with its wrappers."""
        return self._envs[0]

    def reset(
        self,
        obs: Rows,
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Rows | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`."""
        self._check_open()
        masks = {} if action_mask is None else action_mask
        for i in range(self.num_envs):
            self._begin(i, obs, masks)
        if stagger_steps is None:
            return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        rngs = check_stagger(stagger_steps, rngs, self.num_envs)

        def step_some(stored: Rows, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rewards, _, _ = self._advance(ids.tolist(), stored, obs, masks, None)
            done = np.array(self._done)[ids]
            return np.array(rewards, dtype=np.float32), done, done

        return play_stagger(step_some, self.spec.action, stagger_steps, rngs, masks)

    def step(self, action: Rows, out: StepOut) -> None:
        """See `VectorEnv.step`."""
        self._check_open()
        rewards, terminated, truncated = self._advance(
            range(self.num_envs), action, out.obs, out.action_mask, out.info
        )
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
        self._tellers = []
        self._close.close()

    def _tell(self, steps: int, total_steps: int) -> None:
        for teller in self._tellers:
            teller(steps, total_steps)

    def _advance(
        self, ids: Sequence[int], stored: Rows, obs: Rows, masks: Rows, info_out: np.ndarray | None
    ) -> tuple[list[float], list[int], list[int]]:
        """Step, or only reset, the environments `ids` and write row i of each.

        Returns:
            The rewards in the order of `ids`, and the environments that terminated or were
            truncated (one that did both only terminated).
        """
        steps, done, write = self._steps, self._done, self._observations.write
        rewards: list[float] = []
        terminated: list[int] = []
        truncated: list[int] = []
        for i, action in zip(ids, self._actions.each(stored, len(ids)), strict=True):
            if done[i]:
                self._begin(i, obs, masks)
                rewards.append(0.0)
                continue
            self._played[i] += 1
            try:
                observation, reward, ends, cut, info = steps[i](action)
                total = self._number(reward)
                if ends.__class__ is not bool or cut.__class__ is not bool:
                    ends, cut = self._flag("terminated", ends), self._flag("truncated", cut)
                for _ in range(1, self._repeat):
                    if ends or cut:
                        break
                    observation, reward, ends, cut, info = steps[i](action)
                    total += self._number(reward)
                    ends, cut = self._flag("terminated", ends), self._flag("truncated", cut)
                rewards.append(total)
                write(observation, obs, i)
                if ends:
                    done[i] = True
                    terminated.append(i)
                elif cut:
                    done[i] = True
                    truncated.append(i)
                if self._masks is not None:
                    if done[i]:
                        self._masks.allow_all(masks, i)
                    else:
                        self._masks.write(observation, info, masks, i)
                if info_out is not None and done[i]:
                    info_out[i] = info_numbers(info, self._log_info)
            except Exception as error:
                self._name(error, i, f"step {self._played[i]:,}")
                raise
        return rewards, terminated, truncated

    def _number(self, reward: Any) -> float:
        """The reward as a float; UnsupportedEnvironment where it is no single number."""
        if type(reward) is float:
            return reward
        with suppress(TypeError, ValueError):
            array = np.asarray(reward)
            if array.ndim == 0 and array.dtype.kind in "fiub":
                return float(array)
        raise UnsupportedEnvironment(
            f"{self._env_id} cannot be used: its step() returned the reward {reward!r}, but a "
            "reward is one number."
        )

    def _flag(self, name: str, value: Any) -> bool:
        """The flag as a bool; UnsupportedEnvironment where it is neither true nor false."""
        with suppress(TypeError, ValueError):
            array = np.asarray(value)
            if array.ndim == 0 and array.dtype.kind in "fiub" and array in (0, 1):
                return bool(array)
        raise UnsupportedEnvironment(
            f"{self._env_id} cannot be used: its step() returned {name} = {value!r}, but it is "
            "true or false."
        )

    def _begin(self, i: int, obs: Rows, masks: Rows) -> None:
        """Start a new episode in environment i and write its first row."""
        if i == 0 and self._first is not None:
            for rows, kept in zip((obs, masks), self._first, strict=True):
                for key, array in kept.items():
                    rows[key][0] = array[0]
            self._first = None
        else:
            observation, info = self._reset(i)
            self._write_first(i, observation, info, obs, masks)
        self._done[i] = False

    def _first_reset(self, construct: Callable[[], Any], teller: Any) -> tuple[Any, Any]:
        """What environment 0 begins with; of one that wants to be told the progress first, which is
        not known yet, a stranger's: its own reset must be its first."""
        if teller is None:
            return self._reset(0)
        own, stranger = self._envs[0], construct()
        try:
            told_progress = progress_teller(stranger)
            assert told_progress is not None
            told_progress(0, 1)
            self._envs[0] = stranger
            return self._reset(0)
        finally:
            self._envs[0], self._seeded[0] = own, False
            stranger.close()

    def _write_first(self, i: int, observation: Any, info: Any, obs: Rows, masks: Rows) -> None:
        """Write what a reset of environment i returned."""
        try:
            self._observations.write(observation, obs, i)
            if self._masks is not None:
                self._masks.write(observation, info, masks, i)
        except Exception as error:
            self._name(error, i, "reset()")
            raise

    def _reset(self, i: int) -> tuple[Any, Any]:
        """Reset environment i, the first time with its seed; returns observation and info."""
        env = self._envs[i]
        try:
            if self._seeded[i]:
                result = env.reset()
            else:
                seed = env_seed(self._seed, self._first_env_index + i)
                # An environment may draw from them.
                env.action_space.seed(seed)
                env.observation_space.seed(seed)
                result = env.reset(seed=seed)
                self._seeded[i] = True
            return first_observation(self._env_id, result)
        except Exception as error:
            self._name(error, i, "reset()")
            raise

    def _name(self, error: Exception, i: int, where: str) -> None:
        """Add a note to `error` that names the environment, or raise a sentence in its place."""
        index = self._first_env_index + i
        place = f"in {where} of environment {index}, first seeded {env_seed(self._seed, index)}"
        try:
            explain(self._env_id, error)
        except UnsupportedEnvironment as explained:
            error = explained
        if isinstance(error, UnsupportedEnvironment):
            raise UnsupportedEnvironment(f"{error} (It was {place}.)") from error
        error.add_note(f"{self._env_id} raised {told(error)} {place}.")

    def _check_open(self) -> None:
        if not self._envs:
            raise RuntimeError(f"The group of {self._env_id} is closed; make a new one.")


def _give_spaces_of_its_own(env: Any) -> None:
    """Copy spaces that the class may share: what one environment draws must not move another's."""
    for name in ("action_space", "observation_space"):
        with suppress(AttributeError):  # a property, or none at all
            setattr(env, name, copy.deepcopy(getattr(env, name)))


def _spec_of(env_id: str, env: Any, options: EnvOptions) -> EnvSpec:
    threshold = getattr(env.unwrapped.spec, "reward_threshold", None)
    spec = spaces_spec(env_id, env.observation_space, env.action_space, options, threshold)
    return dataclasses.replace(spec, frame_skip=options.action_repeat)
