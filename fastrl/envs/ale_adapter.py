"""The family `ale:NAME`: groups of E environments inside one vector environment of ale-py.

    map_action ──▶ AtariVectorEnv (one C++ thread) ──▶ a batch of new arrays ──▶ one copy to rows

Facts about ale-py that this file rests on; `tests/envs` proves them against the installed version:

- It steps all its environments or none, but can reset some of them alone: the others then report
  what they last showed, so the batch is complete either way.
- After the end of a game it resets in the next step (NEXT_STEP): reward 0, no flag.
- Its own `episodic_life` begins a new game after a lost life, so a policy would see no more of any
  game than its first life. Here the game goes on: a lost life is told from the count of lives, and
  the "reset" after it is one step of the game, with FIRE where `fire_reset` says so, else a no-op.
  What that step pays is lost to the return, as in `atari:`; where the game ends in it, a new one
  begins.
- Its own time limit counts frames, those of such steps too, and shows a stale last frame at the
  end. Here steps are counted, over lost lives, and the final observation is the one that an
  unlimited game shows. A life lost in the very step of the limit terminates. (At the end of a game
  the last frame is the one before it; the value there is 0 in any case.)
- `reset` takes one seed per environment, which is then alone with its generators. Each time, the
  game is loaded once more, 0.15 s; an unseeded environment looks at the clock.
- An action out of range, or a frame without pixels, makes it wait for ever.

The random first steps (stagger) are played by all environments together: one that has fewer of them
begins later, by a reset of its own. Steps that only reset are among them, and an environment that
is done after the last one begins a new game. Environments that can be stepped one by one would need
a vector environment each, and a thread: a tenth more CPU time for every step. That is also why
there is no `action_repeat`, whose place `frame_skip` takes.

How `ale:pong` differs from `atari:Pong` (envpool): the action sets are the same, and with
`noop_max` 1, in games with the button FIRE, so are rewards, lives and the newest frame, bit for
bit. But

- FIRE comes first and no-op frames after it, together 1 to noop_max - 1 frames (1 twice as often);
  without FIRE they are 0 to noop_max - 1. In envpool they are 1 to noop_max.
- The frames before the first one are black, and not copies of it.
- After a lost life there is one step as above, and not as many frames as at the start.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from fastrl.envs.options import EnvOptions, check_options, keyword_arguments
from fastrl.envs.quiet import quiet_gymnasium
from fastrl.envs.seeding import env_seed
from fastrl.envs.spaces import spaces_spec
from fastrl.envs.spec import EnvSpec, check_actions, map_action, sample_actions
from fastrl.envs.stagger import check_stagger
from fastrl.envs.vector_env import StepOut
from fastrl.errors import ConfigError
from fastrl.option_types import flag_of

# EnvOptions' field -> AtariVectorEnv's keyword.
_KEYWORDS = {
    "noop_max": "noop_max",
    "fire_reset": "use_fire_reset",
    "sticky_actions": "repeat_action_probability",
    "frame_skip": "frameskip",
    "full_action_space": "full_action_space",
    "frame_stack": "stack_num",
}
# The same, of what is done here.
_DONE_HERE = {"episodic_life": "episodic_life", "max_episode_steps": "max_num_frames_per_episode"}
_FRAME_STACK = 4
_STEP_LIMIT = 27_000
_NO_FRAME_LIMIT = 2**31 - 2  # one more overflows its counter
# AtariVectorEnv's keywords that --env-args may give.
_FREE = {
    "continuous": bool,
    "continuous_action_threshold": float,
    "grayscale": bool,
    "img_height": int,
    "img_width": int,
    "maxpool": bool,
}
# It ends the process where it is asked to play one of them.
_NEED_TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
_MOST_PIXELS = 1000  # of a side; its C++ hangs where a frame of no pixels is asked for
_KEEP = -1  # as a seed: go on with the generator


class _Task(NamedTuple):
    """An id, understood: what `make` needs beyond the spec."""

    spec: EnvSpec
    game: str
    keywords: dict[str, Any]
    resume: np.ndarray  # the environment's own action in the step after a lost life
    episodic_life: bool
    step_limit: int
    log_info: tuple[str, ...]


class _Row(NamedTuple):
    """What one step gave, `[E, ...]` each; the arrays are its own."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    over: np.ndarray
    info: dict[str, np.ndarray]


def names(family: str) -> list[str] | None:
    """All games, in snake case; None where ale-py is missing, which `describe` says."""
    # Not imported: that would add its environments to Gymnasium's, of this process alone.
    package = importlib.util.find_spec("ale_py")
    if package is None or package.origin is None:
        return None
    games = (Path(package.origin).parent / "roms").glob("*.bin")
    return sorted({game.stem for game in games} - _NEED_TWO_PLAYERS)


def describe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe `ale:NAME`, one of `names`.

    Raises:
        ConfigError: an option that it does not take, or ale-py is missing or cannot load the game.
    """
    return _understand(env_id, options).spec


def make(
    env_id: str, options: EnvOptions, num_envs: int, first_env_index: int, seed: int
) -> AleEnv:
    """Construct one group; see `fastrl.envs.registry.make`."""
    task = _understand(env_id, options)
    vector = _construct(env_id, task.game, num_envs, task.keywords)
    return AleEnv(task, vector, num_envs, first_env_index, seed)


class AleEnv:
    """One group in one vector environment with one thread, which this object owns (see
    `VectorEnv`)."""

    def __init__(
        self, task: _Task, vector: Any, num_envs: int, first_env_index: int, seed: int
    ) -> None:
        """Take over `vector`, an `AtariVectorEnv` of `num_envs` environments made for `task`; the
        rest is as in `make`."""
        self.spec = task.spec
        self.num_envs = num_envs
        self._task = task
        self._vector: Any = vector
        self._indices = range(first_env_index, first_env_index + num_envs)
        self._seed = seed
        self._resets = 0  # calls of reset()
        self._action = task.spec.action["action"]
        self._action_shape = (num_envs, *self._action.shape)
        self._nowhere = np.zeros(num_envs, dtype=bool)
        self._clock = 0  # steps of the group
        # The running game has had `_clock - _began` steps: what only reset moves `_began` as well.
        self._began = np.zeros(num_envs, dtype=np.int64)
        self._lives = np.zeros(num_envs, dtype=np.int32)
        # Of the last row. A done one only resets in the next step: by itself after the end of a
        # game, by one step of the game after a lost life, by a reset alone at the time limit.
        self._done, self._lost, self._limited = np.zeros((3, num_envs), dtype=bool)
        self._look_ahead()

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `VectorEnv.reset`; module docstring for what the stagger plays."""
        vector = self._running()
        steps, plans = self._plan(stagger_steps, rngs)
        seeds = self._next_seeds()
        last = int(steps.max())
        begins = last - steps
        taken = np.zeros(self._action_shape, dtype=self._action.dtype)
        episode_return = np.zeros(self.num_envs)
        episode_length = np.zeros(self.num_envs, dtype=np.int64)
        for t in range(last + 1):
            first = begins == t
            begin = first.copy()
            if t == 0:
                begin[:] = True  # those that begin later play something until then
            if t == last:
                begin |= self._done
            if begin.any():
                current, info = vector.reset(
                    seed=np.where(first, seeds, _KEEP)[begin], options={"reset_mask": begin}
                )
                self._lives = info["lives"]
                self._began[begin] = self._clock
                for flags in (self._done, self._lost, self._limited):
                    flags[begin] = False
                self._look_ahead()
                episode_return[begin] = 0.0
                episode_length[begin] = 0
            if t == last:
                break
            for i in np.flatnonzero(begins <= t):
                taken[i] = plans[i][t - begins[i]]
            moved = ~self._done
            row = self._advance(map_action(taken, self._action))
            current = row.obs
            episode_return[moved] += row.reward[moved]
            episode_length[moved] += 1
            episode_return[row.over] = 0.0
            episode_length[row.over] = 0
        self._write(obs["obs"], current)
        return episode_return, episode_length

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """See `VectorEnv.step`."""
        self._running()
        stored = action["action"]
        check_actions(self.spec, stored, self._action_shape)
        row = self._advance(map_action(stored, self._action))
        self._write(out.obs["obs"], row.obs)
        out.reward[...] = row.reward
        out.terminated[...] = row.terminated
        out.truncated[...] = row.truncated
        out.episode_over[...] = row.over
        if out.info is not None and row.over.any():
            for k, key in enumerate(self._task.log_info):
                if key in row.info:
                    out.info[row.over, k] = row.info[key][row.over]

    def close(self) -> None:
        """See `VectorEnv.close`. ale-py ends its thread when its object is freed."""
        self._vector = None

    def _plan(
        self, stagger_steps: np.ndarray | None, rngs: Sequence[np.random.Generator] | None
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Numbers of random steps `[E]` and the actions of each environment."""
        if stagger_steps is None:
            return np.zeros(self.num_envs, dtype=np.int64), []
        rngs = check_stagger(stagger_steps, rngs, self.num_envs)
        steps = np.asarray(stagger_steps, dtype=np.int64)
        if (steps < 0).any():
            raise ValueError(
                f"The stagger is {steps.tolist()} steps: every environment needs a number >= 0."
            )
        plans = zip(steps, rngs, strict=True)
        return steps, [sample_actions(self._action, int(count), rng) for count, rng in plans]

    def _next_seeds(self) -> np.ndarray:
        """Seeds `[E]` of this call of `reset`, other ones in each."""
        seed = self._seed
        if self._resets:
            # What environments played before they began depended on their neighbours' stagger.
            seed = int(np.random.SeedSequence([seed, self._resets]).generate_state(1)[0])
        self._resets += 1
        return np.array([env_seed(seed, index) for index in self._indices])

    def _advance(self, action: np.ndarray) -> _Row:
        """Take one step of the environments' own `action` and keep account of what it led to."""
        if self._any_done and self._lost.any():
            action = np.array(action)
            action[self._lost] = self._task.resume
        obs, reward, ended, _, info = self._vector.step(action)
        self._clock += 1
        if (
            self._any_done
            or self._clock >= self._first_limit
            or info["lives"].tobytes() != self._lives.tobytes()
            or ended.any()
        ):
            return self._account(obs, reward, ended, info)
        return _Row(obs, reward, self._nowhere, self._nowhere, self._nowhere, info)

    def _account(
        self, obs: np.ndarray, reward: np.ndarray, ended: np.ndarray, info: dict[str, np.ndarray]
    ) -> _Row:
        """Work out the flags of a row in which something began or ended."""
        resets, lost, lives = self._done, self._lost, info["lives"]
        hidden = lost & ended  # the game ended in the step that resets after a lost life
        restart = self._limited | hidden
        if restart.any():
            obs, others = self._vector.reset(options={"reset_mask": restart})
            lives = others["lives"]
        self._began += lost
        self._began[resets & ~lost | hidden] = self._clock
        limit = self._clock - self._began >= self._task.step_limit
        over = ended & ~resets
        terminated = over
        if self._task.episodic_life:
            terminated = over | (lives < self._lives) & (lives > 0) & ~resets
        self._limited = limit & ~over
        over = over | limit
        self._done = terminated | limit
        self._lost = self._done & ~over
        self._lives = lives
        self._look_ahead()
        return _Row(obs, reward * ~resets, terminated, limit & ~terminated, over | hidden, info)

    def _look_ahead(self) -> None:
        """Find out what the next step has to look at."""
        self._any_done = bool(self._done.any())
        self._first_limit = int(self._began.min()) + self._task.step_limit

    def _write(self, target: np.ndarray, obs: np.ndarray) -> None:
        if obs.ndim == 5:  # [E, stack, H, W, 3]
            obs = obs.transpose(0, 1, 4, 2, 3)
            target = target.reshape(obs.shape)  # a view: only its channels are split
        target[...] = obs

    def _running(self) -> Any:
        if self._vector is None:
            raise RuntimeError(f"The group of {self.spec.env_id} is closed; make a new one.")
        return self._vector


@functools.lru_cache(maxsize=16)
def _understand(env_id: str, options: EnvOptions) -> _Task:
    """Check `options` for `env_id` and turn both into ale-py's terms.

    Kept per process: one environment is constructed to see its actions, 0.15 s.
    """
    game = env_id.partition(":")[2]
    check_options(env_id, options, _KEYWORDS | _DONE_HERE)
    keywords = {theirs: getattr(options, ours) for ours, theirs in _KEYWORDS.items()}
    keywords["stack_num"] = options.frame_stack or _FRAME_STACK
    keywords |= _free_keywords(env_id, options)
    vector = _construct(env_id, game, 1, keywords)
    stack, height, width, *colours = vector.single_observation_space.shape
    shape = (stack * (colours[0] if colours else 1), height, width)
    discrete = not vector.continuous
    spec = spaces_spec(
        env_id,
        Box(0, 255, shape, np.uint8),
        vector.single_action_space,
        options,
        env_dtype=np.dtype(np.int32) if discrete else None,
    )
    buttons = [action.name for action in vector.ale.get_action_set()]
    fire = options.fire_reset and "FIRE" in buttons
    if discrete:
        resume = np.array(buttons.index("FIRE" if fire else "NOOP"), dtype=np.int32)
    else:
        resume = np.array([0.0, 0.0, float(fire)], dtype=np.float32)  # radius, angle, button
    return _Task(
        dataclasses.replace(spec, frame_skip=options.frame_skip),
        game,
        keywords,
        resume,
        options.episodic_life,
        options.max_episode_steps or _STEP_LIMIT,
        options.log_info,
    )


def _free_keywords(env_id: str, options: EnvOptions) -> dict[str, Any]:
    """What --env-args gives, checked: ale-py looks at little of it."""
    given = keyword_arguments(options)
    flags = {theirs: flag_of(ours) for ours, theirs in (_KEYWORDS | _DONE_HERE).items()}
    takes = f"{env_id} takes {', '.join(_FREE)} there"
    for key, value in given.items():
        if key not in _FREE:
            instead = f"; use {flags[key]} for it" if key in flags else ""
            raise ConfigError(f"--env-args has {key}, but {takes}{instead}.")
        kind = _FREE[key]
        if kind is float and type(value) is int:
            value = given[key] = float(value)
        if type(value) is not kind:
            raise ConfigError(f"--env-args has {key}={value}; it must be of type {kind.__name__}.")
        if type(value) is int and not 1 <= value <= _MOST_PIXELS:
            raise ConfigError(f"--env-args has {key}={value}; it must be 1 to {_MOST_PIXELS:,}.")
    return given


def _construct(env_id: str, game: str, num_envs: int, keywords: Mapping[str, Any]) -> Any:
    """An `AtariVectorEnv` with one thread, and without limits or clipping of its own."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(
            f"{env_id} needs the package ale-py, which cannot be imported ({error}): install it "
            "with `pip install ale-py`."
        ) from error
    try:
        with quiet_gymnasium():
            return AtariVectorEnv(
                game,
                num_envs,
                num_threads=1,
                autoreset_mode="NextStep",
                reward_clipping=False,
                max_num_frames_per_episode=_NO_FRAME_LIMIT,
                **keywords,
            )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"ale-py cannot make {env_id} here: {reason}") from error
