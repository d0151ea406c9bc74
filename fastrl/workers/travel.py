"""What a script or a notebook defines, on its way to the processes of its run.

By cloudpickle: what was defined in ``__main__`` travels whole, so no child runs the script again;
what was imported travels by name.
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle

from fastrl.errors import ConfigError

_reduce_code = cloudpickle.Pickler.dispatch_table.get(CodeType)


def _reduce_named_code(code: CodeType) -> Any:
    build, arguments = _reduce_code(code)
    # What cloudpickle puts in the place of the file's name, where it does.
    named = (code.co_filename if part == "<dynamic-code>" else part for part in arguments)
    return build, tuple(named)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, but code keeps the name of its file: an environment's traceback is no use
    without the line of the user's that raised."""

    if _reduce_code is not None:
        dispatch_table = ChainMap(
            {CodeType: _reduce_named_code}, cloudpickle.Pickler.dispatch_table
        )


def pack(values: Any, given_to: str) -> bytes:
    """Pickle what was given to the function named `given_to`; ConfigError where that cannot be."""
    packed = io.BytesIO()
    try:
        _Pickler(packed).dump(values)
    except Exception as error:
        raise ConfigError(
            f"What was given to {given_to} cannot be sent to other processes: "
            f"{type(error).__name__}: {error}. Let the function make or open what it needs, rather "
            "than refer to it."
        ) from error
    return packed.getvalue()


def unpack(packed: bytes, given_to: str) -> Any:
    """Undo `pack` in another process; ConfigError where something is missing there."""
    try:
        return pickle.loads(packed)
    except Exception as error:
        raise ConfigError(
            f"What was given to {given_to} cannot be rebuilt in another process: "
            f"{type(error).__name__}: {error}."
        ) from error
