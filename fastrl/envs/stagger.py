"""Random first steps, a different number in every environment, so that episodes do not end in
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fastrl.envs.spec import ActionSpec, sample_actions

# (stored actions [m, *shape], environment numbers [m]) -> reward f32 [m], done bool [m],
# episode_over bool [m]. It steps these environments alone and writes their observations.
StepSome = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def check_stagger(
    stagger_steps: np.ndarray, rngs: Sequence[np.random.Generator] | None, num_envs: int
) -> Sequence[np.random.Generator]:
    """Return `rngs` if every environment has a number of steps and a generator.

    Raises:
        ValueError: there are more or fewer, or no generators.
    """
    if rngs is None or not len(rngs) == len(stagger_steps) == num_envs:
        raise ValueError(
            f"reset got {len(stagger_steps)} stagger_steps and {len(rngs or ())} rngs, but "
            f"{num_envs} environments need a number and a generator each."
        )
    return rngs


def play_stagger(
    step_some: StepSome,
    action: ActionSpec,
    stagger_steps: np.ndarray,
    rngs: Sequence[np.random.Generator],
) -> tuple[np.ndarray, np.ndarray]:
    """Play exactly `stagger_steps[i]` uniform random actions in environment i, all just reset.

    A step after a done one only resets: it takes none of the actions and counts for nothing. No
    environment is left done.

    Args:
        step_some: steps a subset of the environments.
        action: the leaf to draw.
        stagger_steps: `[E]` integers >= 0.
        rngs: E generators; environment i's actions come from `rngs[i]` alone, so they do not depend
            on its neighbours.

    Returns:
        Return (float64 `[E]`) and length (int64 `[E]`) of the episodes then running.

    Raises:
        ValueError: a wrong number of steps or generators.
    """
    num_envs = len(rngs)
    wanted = np.asarray(stagger_steps, dtype=np.int64)
    if wanted.shape != (num_envs,) or (wanted < 0).any():
        raise ValueError(
            f"The stagger is {wanted.tolist()} steps for {num_envs} generators: every environment "
            "needs a number >= 0 and a generator."
        )
    planned = [sample_actions(action, int(n), rng) for n, rng in zip(wanted, rngs, strict=True)]
    first = np.zeros(action.shape, dtype=action.dtype)  # of steps that only reset
    done = np.zeros(num_envs, dtype=bool)
    played = np.zeros(num_envs, dtype=np.int64)
    episode_return = np.zeros(num_envs)
    episode_length = np.zeros(num_envs, dtype=np.int64)
    while (ids := np.flatnonzero(done | (played < wanted))).size:
        resets = done[ids]
        chosen = [first if done[i] else planned[i][played[i]] for i in ids]
        reward, done[ids], over = step_some(np.stack(chosen), ids)
        moved = ids[~resets]
        played[moved] += 1
        episode_length[moved] += 1
        episode_return[moved] += reward[~resets]
        ended = ids[over]
        episode_return[ended] = 0.0
        episode_length[ended] = 0
    return episode_return, episode_length
