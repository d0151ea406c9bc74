"""Gymnasium's remarks, kept from the user's terminal while an environment is constructed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_gymnasium() -> Iterator[None]:
    """Mute gymnasium's warnings (on the precision of Box bounds, on versions, on metadata)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium\..*")
        yield
