"""The protocol of one group: E environments stepped together, which write into arena rows in place.

    reset(obs) ──▶ obs of row 0
    step(action of row t, out) ──▶ reward and flags of row t, obs of row t+1

Autoreset is Gymnasium's NEXT_STEP, and adapters guarantee it: after a row with `terminated` or
`truncated` the obs written is the episode's true final observation; the next step for that
environment only resets it: the action is ignored, reward is 0, `terminated` and `truncated` are
False, and the obs written is the first of the new episode. A row that is both terminated and
truncated is terminated.

`episode_over` is for the statistics alone: the episode that ran up to and including this row is
complete. It is True in a done row that is a true end. In a reset row it is True in one case: the
"reset" after a lost life is played by the game itself, and the game ended in it (of random
RoadRunner games about one in four does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fastrl.envs.spec import EnvSpec


@dataclass
class StepOut:
    """Where one step of a group is written: views of arena rows, which the adapter only fills.

    Adapters read none of them: the arrays may be different ones at every call.
    """

    obs: dict[str, np.ndarray]
    """Per leaf `[E, *shape]`, of the stored dtype."""
    reward: np.ndarray
    """`[E]` float32, as the environment gives it (clipping is the engine's work)."""
    terminated: np.ndarray
    """`[E]` bool: the value after this step is 0 (with `episodic_life`, also after a lost life)."""
    truncated: np.ndarray
    """`[E]` bool: a limit ended the episode, the value of the final observation goes on."""
    episode_over: np.ndarray
    """`[E]` bool: a true end, as the statistics count it; a lost life is not one (module
    docstring)."""
    action_mask: dict[str, np.ndarray] = field(default_factory=dict)
    """Per masked leaf `[E, mask_size]` bool: what is allowed at the new observation; everything
    where the row is done, since nothing is chosen there."""
    info: np.ndarray | None = None
    """`[E, keys]` float64 that come as NaN, or None: the values of `EnvOptions.log_info`, filled
    where `episode_over`, left NaN where the environment gives none."""


class VectorEnv(Protocol):
    """One group of `num_envs` environments. Only one thread may call it.

    One whose environments want to know how far training is (curricula) also has
    `set_progress(steps, total_steps)`, which is called before the first reset and at the beginning
    of each rollout.
    """

    spec: EnvSpec
    num_envs: int

    def reset(
        self,
        obs: Mapping[str, np.ndarray],
        stagger_steps: np.ndarray | None = None,
        rngs: Sequence[np.random.Generator] | None = None,
        action_mask: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Start a new episode everywhere and play `stagger_steps[i]` random actions in environment
        i.

        The actions are uniform over what is allowed, drawn from `rngs[i]` alone. If an episode ends
        on the way, the environment is reset (which is not one of the steps) and goes on; none is
        left in a finished episode.

        Args:
            obs: per leaf `[E, *shape]`; the observations then current are written into them.
            stagger_steps: `[E]` integers >= 0; None for none.
            rngs: one generator per environment; needed with `stagger_steps`.
            action_mask: per masked leaf `[E, mask_size]` bool, filled; needed where there is one.

        Returns:
            Raw return (float64 `[E]`) and length in steps (int64 `[E]`) of the running episodes so
            far.
        """
        ...

    def step(self, action: Mapping[str, np.ndarray], out: StepOut) -> None:
        """Take one step in every environment.

        Args:
            action: per leaf `[E, *shape]` in stored form (see `map_action`), discrete ones in [0,
                n): an adapter need not check the values.
            out: filled completely.
        """
        ...

    def close(self) -> None:
        """Free the environments; a second call does nothing."""
        ...
