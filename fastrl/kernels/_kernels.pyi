"""Native loops; see `fastrl.kernels` for what they are for.

Wrong sizes raise ValueError; wrong types, ranks and orders TypeError.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_CHANNELS: int
MOST_CHOICES: int

def images_to_bf16(
    rows: Any,
    index: Any,
    mean: Any | None,
    scale: Any | None,
    clip: float,
    out: Any,
    side: int = 1,
) -> None: ...
def images_to_f32(
    rows: Any,
    index: Any,
    mean: Any | None,
    scale: Any | None,
    clip: float,
    out: Any,
    side: int = 1,
) -> None: ...
def elu_bf16(x: Any) -> None: ...
def choose(log_p: Any, u: Any, action: Any, log_prob: Any) -> None: ...
def uniform(
    key: int, env: NDArray[np.int64], step: NDArray[np.int64], out: NDArray[np.float32]
) -> None: ...

class RowFinisher:
    """What follows a step of a group, in one pass over its row.

    Keeps the arrays: raw `reward` f32 [E] and `episode_over` bool [E] of the last step;
    `terminated`, `truncated` bool and `stored_reward` f32 [slots, T, E], `ignored` bool
    [slots, T + 1, E]; `returns` f64 [E] and `lengths` i64 [E] of the running episodes. The reward
    that is stored is the raw one times `scale`, then its sign (`sign`), or what of it lies within
    ± `limit`, or all of it (`limit` None).
    """

    def __init__(
        self,
        reward: NDArray[np.float32],
        episode_over: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        ignored: NDArray[np.bool_],
        stored_reward: NDArray[np.float32],
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
        scale: float,
        limit: float | None,
        sign: bool,
    ) -> None: ...
    def finish(self, slot: int, row: int) -> tuple[int, bool, bool, bool]:
        """Store rewards, the next row's `ignored`, and add the row to the running episodes.

        Returns how many environments took an effective step, whether all rewards are finite,
        whether any environment terminated, whether any episode is over.
        """
