"""The families `atari:NAME` and `envpool:ID`: groups of E environments inside one envpool.

    map_action ──▶ envpool (one C++ thread) ──▶ a batch of new arrays ──▶ one copy to arena rows

Facts about envpool that this file rests on; `tests/envs` proves them against the installed version:

- It resets on the step after a row with `done`, so there is no final observation to carry aside.
  Nothing else marks that row (`elapsed_step` runs on after a lost life), and some families give it
  a reward.
- A subset of the environments can be stepped: the batch that comes back is theirs, in the order
  sent.
- Seeds are taken at construction, one per environment (`env_seed`); `reset(seed=...)` is ignored.
- It reports `trunc` for an end at the time limit even if the episode also terminated in that step.
  For Atari `info:terminated` (true game over) tells the two apart; elsewhere nothing does, so there
  such a row is truncated. A life lost in the very step of the time limit is truncated too.
- After a lost life the game plays on through the no-op frames of a "reset". What it pays in them is
  lost to the return, as in every result made with envpool; where the game ends in them, it starts
  anew, with no flag: only that there are more lives than before tells. The time limit runs on in
  that case.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastrl.envs.options import EnvOptions, check_options
from fastrl.envs.quiet import quiet_gymnasium
from fastrl.envs.seeding import env_seed
from fastrl.envs.spec import (
    EnvSpec,
    action_spec,
    channels_last,
    check_actions,
    map_action,
    observation_spec,
)
from fastrl.envs.stagger import check_stagger, play_stagger
from fastrl.envs.vector_env import StepOut
from fastrl.errors import ConfigError, UnsupportedEnvironment

# EnvOptions' field -> envpool's keyword, for Atari; other ids take `max_episode_steps` alone.
_ATARI_KEYWORDS = {
    "noop_max": "noop_max",
    "fire_reset": "use_fire_reset",
    "episodic_life": "episodic_life",
    "sticky_actions": "repeat_action_probability",
    "max_episode_steps": "max_episode_steps",
    "frame_skip": "frame_skip",
    "frame_stack": "stack_num",
    "full_action_space": "full_action_space",
}
_NO_LIMIT = 2**31 - 1  # envpool's default of max_episode_steps: that id's code looks at no limit
_ATARI_MODULE = "envpool.atari"
# This family ends its episodes by a duration of its own and never looks at max_episode_steps.
_LIMITLESS_MODULE = "envpool.highway"


class _Task(NamedTuple):
    """An id, understood: what `make` needs beyond the spec."""

    spec: EnvSpec
    task: str
    keywords: dict[str, Any]
    transposes: bool  # images come channels last


class _Batch(NamedTuple):
    """What came back for m stepped environments, in the order sent; `[m, ...]` each.

    The arrays are this batch's own: envpool never writes into them again.
    """

    obs: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    trunc: np.ndarray
    game_over: np.ndarray | None  # int32; Atari alone
    lives: np.ndarray | None  # int32; Atari alone


def names(family: str) -> list[str]:
    """All names of the family "atari" or "envpool", without the prefix."""
    specs = _import_envpool(family).registration.registry.specs
    atari = {task for task, (module, *_) in specs.items() if module == _ATARI_MODULE}
    if family == "atari":
        return sorted(task.removesuffix("-v5") for task in atari)
    return sorted(set(specs) - atari)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe `atari:NAME` or `envpool:ID`, one of `names`, without constructing the environment.

    Raises:
        ConfigError: an option that the id does not take, or envpool cannot load it.
        UnsupportedEnvironment: its spaces cannot be used.
    """
    return _understand(env_id, options).spec


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> EnvpoolEnv:
    """Construct one group; see `fastrl.envs.registry.make`."""
    task = _understand(env_id, options)
    seeds = [env_seed(seed, first_env_index + i) for i in range(num_envs)]
    with quiet_gymnasium():
        pool = _import_envpool(env_id).make_gymnasium(
            task.task, num_envs=num_envs, num_threads=1, env_seed=seeds, **task.keywords
        )
    return EnvpoolEnv(task.spec, pool, num_envs, task.transposes)


class EnvpoolEnv:
    """One group in one envpool with one thread, which this object owns (see `VectorEnv`)."""

    def __init__(self, spec: EnvSpec, pool: Any, num_envs: int, transposes: bool) -> None:
        """Take over `pool`, made for `spec` with `num_envs` environments.

        `transposes`: its images come channels last.
        """
        self.spec = spec
        self.num_envs = num_envs
        self._transposes = transposes
        self._exchange: _Exchange | None = exchange_for(pool)
        self._action = spec.action["action"]
        self._action_shape = (num_envs, *self._action.shape)
        self._everyone = np.arange(num_envs, dtype=np.int32)
        # Of the last row, per environment. A done one only resets in the next step.
        self._done = np.zeros(num_envs, dtype=bool)
        self._any_done = False
        self._over = np.zeros(num_envs, dtype=bool)
        self._lives: np.ndarray | None = None

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`."""
        batch = self._running().reset(self._everyone)
        self._write(obs["obs"], batch.obs)
        self._done, self._over = np.zeros((2, self.num_envs), dtype=bool)
        self._any_done = False
        self._lives = None if batch.lives is None else batch.lives.copy()
        if stagger_steps is None:
            return np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        rngs = check_stagger(stagger_steps, rngs, self.num_envs)

        def step_some(
            stored: np.ndarray, ids: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            batch = self._running().step(map_action(stored, self._action), ids.astype(np.int32))
            terminated, truncated, over = self._flags(batch, ids)
            obs["obs"][ids] = self._stored(batch.obs)
            self._done[ids] = terminated | truncated
            self._over[ids] = over
            if self._lives is not None:
                self._lives[ids] = batch.lives
            return batch.reward, terminated | truncated, over

        return play_stagger(step_some, self._action, stagger_steps, rngs)

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """See `VectorEnv.step`."""
        stored = action["action"]
        # envpool would read past the end of the array.
        check_actions(self.spec, stored, self._action_shape)
        batch = self._running().step(map_action(stored, self._action), self._everyone)
        self._write(out.obs["obs"], batch.obs)
        out.reward[...] = batch.reward
        if self._any_done or np.count_nonzero(batch.done):
            terminated, truncated, over = self._flags(batch, self._everyone)
            out.reward[self._done] = 0.0
            out.terminated[...] = terminated
            out.truncated[...] = truncated
            out.episode_over[...] = over
            self._done = terminated | truncated
            self._any_done = bool(self._done.any())
            self._over = over
        else:
            out.terminated.fill(False)
            out.truncated.fill(False)
            out.episode_over.fill(False)
        self._lives = batch.lives

    def close(self) -> None:
        """See `VectorEnv.close`. envpool ends its thread when its object is freed."""
        self._exchange = None

    def _running(self) -> _Exchange:
        if self._exchange is None:
            raise RuntimeError(f"The group of {self.spec.env_id} is closed; make a new one.")
        return self._exchange

    def _stored(self, obs: np.ndarray) -> np.ndarray:
        """A batch's observations in stored axis order; the dtype is converted by the copy."""
        return obs.transpose(0, 3, 1, 2) if self._transposes else obs

    def _write(self, target: np.ndarray, obs: np.ndarray) -> None:
        np.copyto(target, self._stored(obs), casting="same_kind")

    def _flags(self, batch: _Batch, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`terminated`, `truncated`, `episode_over` `[m]` of the environments in `batch`."""
        resets = self._done[ids]
        if (batch.done & resets).any():
            raise UnsupportedEnvironment(
                f"{self.spec.env_id} cannot be used: an episode was over in its first observation, "
                "so it has no step to learn from; choose another environment."
            )
        if batch.game_over is None or batch.lives is None or self._lives is None:
            truncated = batch.done & batch.trunc
            return batch.done & ~truncated, truncated, batch.done
        game_over = batch.game_over != 0
        truncated = batch.done & batch.trunc & ~game_over
        # The game ended, and began anew, in the no-op frames after a lost life.
        restarted = resets & ~self._over[ids] & (batch.lives > self._lives[ids])
        over = batch.done & (game_over | truncated) | restarted
        return batch.done & ~truncated, truncated, over


class _Exchange(Protocol):
    """The way into one envpool: actions for some environments in, their batch out."""

    def reset(self, ids: np.ndarray) -> _Batch:
        """Start new episodes in the environments `ids` (int32 `[m]`)."""
        ...

    def step(self, action: np.ndarray, ids: np.ndarray) -> _Batch:
        """Step the environments `ids` (int32 `[m]`) with their actions `[m, ...]`."""
        ...


class DirectExchange:
    """envpool's binding without its Python layer, which rebuilds dictionaries in every step.

    That layer costs 25 µs a step, whatever the number of environments.
    """

    def __init__(self, pool: Any) -> None:
        """Find the arrays of a batch by their keys."""
        self._pool = pool
        keys = list(pool._state_keys)
        (obs_key,) = (key for key in keys if key.startswith("obs"))
        self._at = [keys.index(key) for key in (obs_key, "reward", "done", "trunc")]
        games = ("info:terminated", "info:lives")
        self._game_at = [keys.index(key) for key in games if key in keys]

    @staticmethod
    def fits(pool: Any) -> bool:
        """Whether this version of envpool has the binding as it is used here."""
        private = ("_send", "_recv", "_reset", "_state_keys", "_action_keys")
        if not all(hasattr(pool, name) for name in private):
            return False
        return (
            list(pool._action_keys)[:2] == ["env_id", "players.env_id"]
            and len(pool._action_keys) == 3
            and {"reward", "done", "trunc"} <= set(pool._state_keys)
        )

    def reset(self, ids: np.ndarray) -> _Batch:
        """See `_Exchange`."""
        self._pool._reset(ids)
        return self._receive()

    def step(self, action: np.ndarray, ids: np.ndarray) -> _Batch:
        """See `_Exchange`."""
        self._pool._send([ids, ids, action])
        return self._receive()

    def _receive(self) -> _Batch:
        arrays = self._pool._recv()
        obs, reward, done, trunc = self._at
        game_over, lives = (arrays[at] for at in self._game_at) if self._game_at else (None, None)
        return _Batch(arrays[obs], arrays[reward], arrays[done], arrays[trunc], game_over, lives)


class PublicExchange:
    """envpool's documented API, for versions whose binding looks different."""

    def __init__(self, pool: Any) -> None:
        """Keep the pool, and let it build and keep its spaces here, where gymnasium is muted."""
        self._pool = pool
        with quiet_gymnasium():
            _ = pool.observation_space

    def reset(self, ids: np.ndarray) -> _Batch:
        """See `_Exchange`."""
        obs, info = self._pool.reset(ids)
        no = np.zeros(len(ids), dtype=bool)
        return _Batch(obs, no.astype(np.float32), no, no, info.get("terminated"), info.get("lives"))

    def step(self, action: np.ndarray, ids: np.ndarray) -> _Batch:
        """See `_Exchange`."""
        obs, reward, terminated, trunc, info = self._pool.step(action, ids)
        game_over, lives = info.get("terminated"), info.get("lives")
        return _Batch(obs, reward, terminated | trunc, trunc, game_over, lives)


def exchange_for(pool: Any) -> DirectExchange | PublicExchange:
    """The cheapest way into `pool` that this version of envpool has."""
    return DirectExchange(pool) if DirectExchange.fits(pool) else PublicExchange(pool)


def _has_time_limit(envpool: Any, task: str) -> bool:
    """Whether the id looks at max_episode_steps; raises whatever stops envpool from loading it."""
    module = envpool.registration.registry.specs[task][0]
    own_limit = envpool.make_spec(task).config.max_episode_steps
    return bool(own_limit != _NO_LIMIT and module != _LIMITLESS_MODULE)


@functools.lru_cache(maxsize=16)
def _understand(env_id: str, options: EnvOptions) -> _Task:
    """Check `options` for `env_id` and turn both into envpool's terms.

    Kept per process: envpool loads the game to make its spec, 84 ms of a core for Pong.
    """
    envpool = _import_envpool(env_id)
    family, name = env_id.split(":", 1)
    task = name + "-v5" if family == "atari" else name
    try:
        if family == "atari":
            used = dict(_ATARI_KEYWORDS)
        elif _has_time_limit(envpool, task):
            used = {"max_episode_steps": "max_episode_steps"}
        else:
            used = {}
        check_options(env_id, options, used)
        keywords = {
            theirs: getattr(options, ours)
            for ours, theirs in used.items()
            if getattr(options, ours) is not None
        }
        native = envpool.make_spec(task, **keywords)
    except ConfigError:
        raise
    except Exception as error:  # a missing system library, a missing scenario file, ...
        reason = " ".join(str(error).split())
        raise ConfigError(f"envpool knows {env_id} but cannot load it here: {reason}") from error
    config = native.config
    if config.max_num_players != 1:
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: it has {config.max_num_players} players, and this version "
            "takes one agent; choose another environment."
        )
    with quiet_gymnasium():
        obs_space, action_space = native.observation_space, native.action_space
    observation = observation_spec(env_id, obs_space)
    env_dtype = list(native.action_array_spec.values())[-1].dtype
    threshold = native.reward_threshold
    spec = EnvSpec(
        env_id=env_id,
        observation={"obs": observation},
        action={"action": action_spec(env_id, action_space, env_dtype)},
        frame_skip=int(getattr(config, "frame_skip", 1)),
        reward_threshold=None if threshold is None else float(threshold),
    )
    transposes = observation.kind == "image" and channels_last(tuple(obs_space.shape))
    return _Task(spec, task, keywords, transposes)


def _import_envpool(wanted: str) -> ModuleType:
    """Import envpool (0.8 s the first time, so not before it is needed)."""
    try:
        import envpool
        import envpool.registration
    except ImportError as error:
        raise ConfigError(
            f"{wanted} needs the package envpool, which cannot be imported ({error}): "
            "install it with `pip install envpool`."
        ) from error
    return envpool
