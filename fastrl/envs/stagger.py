"""Random first steps, a different number in every environment, so that episodes do not end in
step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fastrl.envs.spec import ActionSpec, sample_actions

# (stored actions by leaf [m, *shape], environment numbers [m]) -> reward f32 [m], done bool [m],
# episode_over bool [m]. It steps these environments alone and writes their observations and masks.
StepSome = Callable[[dict[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


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
    action: Mapping[str, ActionSpec],
    stagger_steps: np.ndarray,
    rngs: Sequence[np.random.Generator],
    action_mask: Mapping[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Play exactly `stagger_steps[i]` uniform random actions in environment i, all just reset.

    A step after a done one only resets: it takes none of the actions and counts for nothing. No
    environment is left done.

    Args:
        step_some: steps a subset of the environments.
        action: the leaves to draw.
        stagger_steps: `[E]` integers >= 0.
        rngs: E generators; environment i's actions come from `rngs[i]` alone, so they do not depend
            on its neighbours.
        action_mask: per masked leaf `[E, mask_size]` bool, what is allowed now; `step_some` keeps
            it so.

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
    drawers = [
        _Drawer(action, int(count), rng, action_mask or {}, i)
        for i, (count, rng) in enumerate(zip(wanted, rngs, strict=True))
    ]
    # Of steps that only reset.
    first = {key: np.zeros(leaf.shape, dtype=leaf.dtype) for key, leaf in action.items()}
    done = np.zeros(num_envs, dtype=bool)
    played = np.zeros(num_envs, dtype=np.int64)
    episode_return = np.zeros(num_envs)
    episode_length = np.zeros(num_envs, dtype=np.int64)
    while (ids := np.flatnonzero(done | (played < wanted))).size:
        resets = done[ids]
        chosen = [first if done[i] else drawers[i].draw(int(played[i])) for i in ids]
        stored = {key: np.stack([one[key] for one in chosen]) for key in action}
        reward, done[ids], over = step_some(stored, ids)
        moved = ids[~resets]
        played[moved] += 1
        episode_length[moved] += 1
        episode_return[moved] += reward[~resets]
        ended = ids[over]
        episode_return[ended] = 0.0
        episode_length[ended] = 0
    return episode_return, episode_length


class _Drawer:
    """The random actions of one environment: drawn together where no mask can change them."""

    def __init__(
        self,
        action: Mapping[str, ActionSpec],
        count: int,
        rng: np.random.Generator,
        masks: Mapping[str, np.ndarray],
        i: int,
    ) -> None:
        self._action = action
        self._rng = rng
        self._masks = {key: mask[i : i + 1] for key, mask in masks.items()}  # views: kept current
        self._planned = (
            {} if masks else {key: sample_actions(leaf, count, rng) for key, leaf in action.items()}
        )

    def draw(self, step: int) -> dict[str, np.ndarray]:
        """The action of this step, by leaf."""
        if self._planned:
            return {key: planned[step] for key, planned in self._planned.items()}
        return {
            key: sample_actions(leaf, 1, self._rng, self._masks.get(key))[0]
            for key, leaf in self._action.items()
        }
