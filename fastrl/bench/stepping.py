"""Stepping environments by random actions, as pieces of work: by our adapter, and without it.

::

    adapter_work: VectorEnv.step ─▶ arrays, as a rollout process does it
    raw_work:     envpool's own step(), or step() of one `gymnasium.Env` after the other

A *row* is one environment in one call; a *step* is a row whose action had effect, so not the row
after the end of an episode, which only resets. Actions are drawn beforehand, but where masks say
what is allowed: those must be drawn anew for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastrl.bench.team import Work
from fastrl.envs import StepOut, VectorEnv, describe, make
from fastrl.envs.envpool_task import import_envpool, loading, understand
from fastrl.envs.options import EnvOptions
from fastrl.envs.quiet import quiet_gymnasium
from fastrl.envs.seeding import env_seed
from fastrl.envs.spec import map_action, sample_actions

PLANNED_STEPS = 64
"""Rows of actions that are drawn beforehand, and taken in turn."""

ENVPOOL_FAMILIES = ("atari:", "envpool:")


def adapter_work(env_id: str, options: EnvOptions, num_envs: int, seed: int) -> Work:
    """One random step of a new group of `num_envs` environments, written into arrays."""
    return group_work(make(env_id, options, num_envs, first_env_index=0, seed=seed), seed)


def group_work(env: VectorEnv, seed: int) -> Work:
    """One random step of the group `env`, which is reset here."""
    spec, num_envs = env.spec, env.num_envs
    rng = np.random.default_rng(seed)
    out = StepOut(
        obs={
            key: np.zeros((num_envs, *leaf.shape), leaf.dtype)
            for key, leaf in spec.observation.items()
        },
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        episode_over=np.zeros(num_envs, np.bool_),
        action_mask={key: np.ones((num_envs, size), np.bool_) for key, size in spec.masks.items()},
    )

    def draw() -> dict[str, np.ndarray]:
        return {
            key: sample_actions(leaf, num_envs, rng, out.action_mask.get(key))
            for key, leaf in spec.action.items()
        }

    if (tell := getattr(env, "set_progress", None)) is not None:
        tell(0, 1)
    env.reset(out.obs, action_mask=out.action_mask)
    planned = [] if spec.masks else [draw() for _ in range(PLANNED_STEPS)]
    num_resets, turn = 0, 0

    def work() -> int:
        nonlocal num_resets, turn
        effective = num_envs - num_resets
        env.step(planned[turn % PLANNED_STEPS] if planned else draw(), out)
        turn += 1
        num_resets = int(np.count_nonzero(out.terminated | out.truncated))
        return effective

    return work


def raw_backend(env_id: str, options: EnvOptions) -> str | None:
    """Name of what steps these environments below our adapter; None where it cannot be had alone.

    That is so where our row is several of its own (--action-repeat), of environments with masks,
    whose actions must be chosen from rows, and of vector environments of another library, whose
    ways of resetting only their adapters know.
    """
    if options.action_repeat > 1 or describe(env_id, options).masks:
        return None
    if env_id.startswith(ENVPOOL_FAMILIES):
        return "envpool"
    env = make(env_id, options, 1, first_env_index=0, seed=0)
    try:
        return "gymnasium" if hasattr(env, "single") else None
    finally:
        env.close()


def raw_work(env_id: str, options: EnvOptions, num_envs: int, threads: int, seed: int) -> Work:
    """One random step of `num_envs` environments by their own library, its results left unread.

    `threads` are envpool's; other environments are stepped one by one, whatever it is.
    """
    if env_id.startswith(ENVPOOL_FAMILIES):
        return _envpool_work(env_id, options, num_envs, threads, seed)
    return _single_work(env_id, options, num_envs, seed)


def _envpool_work(env_id: str, options: EnvOptions, num_envs: int, threads: int, seed: int) -> Work:
    """envpool in its synchronous mode: one call steps all, and returns when all have stepped."""
    task = understand(env_id, options)
    envpool = import_envpool(env_id)
    with loading(env_id, options), quiet_gymnasium():
        pool: Any = envpool.make_gymnasium(
            task.name,
            num_envs=num_envs,
            num_threads=threads,
            env_seed=[env_seed(seed, i) for i in range(num_envs)],
            **task.keywords,
        )
        pool.reset()
    (leaf,) = task.spec.action.values()
    rng = np.random.default_rng(seed)
    planned = [map_action(sample_actions(leaf, num_envs, rng), leaf) for _ in range(PLANNED_STEPS)]
    num_resets, turn = 0, 0

    def work() -> int:
        nonlocal num_resets, turn
        effective = num_envs - num_resets
        _, _, terminated, truncated, _ = pool.step(planned[turn % PLANNED_STEPS])
        turn += 1
        num_resets = int(np.count_nonzero(terminated | truncated))
        return effective

    return work


def _single_work(env_id: str, options: EnvOptions, num_envs: int, seed: int) -> Work:
    """The very environments that the adapter constructs, stepped in a plain loop."""
    groups: list[Any] = [make(env_id, options, 1, i, seed) for i in range(num_envs)]
    envs = [group.single for group in groups]
    for group, env in zip(groups, envs, strict=True):
        if group.set_progress is not None:
            group.set_progress(0, 1)
        env.reset(seed=seed)
    planned = [[env.action_space.sample() for env in envs] for _ in range(PLANNED_STEPS)]
    done = [False] * num_envs
    turn = 0

    def work() -> int:
        nonlocal turn
        effective = num_envs
        for i, action in enumerate(planned[turn % PLANNED_STEPS]):
            if done[i]:
                envs[i].reset()
                done[i] = False
                effective -= 1
            else:
                _, _, terminated, truncated, _ = envs[i].step(action)
                done[i] = terminated or truncated
        turn += 1
        return effective

    return work
