"""Native loops; see `fastrl.kernels` for what they are for. Wrong shapes raise ValueError."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_CHANNELS: int
MOST_CHOICES: int

def images_to_bf16(
    rows: Any, index: Any, mean: Any | None, scale: Any | None, clip: float, out: Any
) -> None: ...
def images_to_f32(
    rows: Any,
    index: Any,
    mean: Any | None,
    scale: Any | None,
    clip: float,
    out: Any,
) -> None: ...
def choose(log_p: Any, u: Any, action: Any, log_prob: Any) -> None: ...
def uniform(
    key: int, env: NDArray[np.int64], step: NDArray[np.int64], out: NDArray[np.float32]
) -> None: ...
