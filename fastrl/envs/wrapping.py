"""What is put around a Gymnasium environment of the user's: wrappers, a time limit, progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fastrl.envs.gymnasium_checks import told
from fastrl.envs.user_module import attribute, import_module
from fastrl.errors import ConfigError, UnsupportedEnvironment

PROGRESS_METHOD = "set_training_progress"
"""Method (steps, total_steps) of an environment, or of a wrapper around it, that is told how far
training is."""


def wrapped(env: Any, wrappers: tuple[str, ...], base: type) -> Any:
    """`env` inside the wrappers `py:module:function`, the first one innermost.

    Args:
        env: a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`; closed where this raises.
        wrappers: `EnvOptions.wrap`.
        base: which of the two it is, and has to stay.

    Raises:
        ConfigError: there is no such function, or it raises.
        UnsupportedEnvironment: it returns something else.
    """
    with ExitStack() as opened:
        for text in wrappers:
            opened.callback(env.close)
            env = _inside(text, env, base)
            opened.pop_all()  # it closes what it is around
    return env


def _inside(text: str, env: Any, base: type) -> Any:
    """`env` inside the wrapper `py:module:function`."""
    _, module, path = text.split(":")
    function: Callable[..., Any] = attribute(text, import_module(text, module), path)
    if not callable(function):
        raise ConfigError(
            f"--wrap {text} is a {type(function).__name__}; it must be a function that takes "
            "an environment and returns it wrapped."
        )
    try:
        outer = function(env)
    except Exception as error:
        raise ConfigError(f"--wrap {text} could not wrap {env}: {told(error)}.") from error
    if not isinstance(outer, base):
        raise UnsupportedEnvironment(
            f"--wrap {text} cannot be used: it returned a {type(outer).__name__}, and not a "
            f"{base.__module__.partition('.')[0]} {base.__name__}."
        )
    return outer


def progress_teller(env: Any) -> Callable[[int, int], Any] | None:
    """The environment's or a wrapper's own `set_training_progress`; None where there is none."""
    layer = env
    while layer is not None:
        # Not getattr on the outermost one: wrappers of gymnasium hide what is inside.
        method = getattr(layer, PROGRESS_METHOD, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
        layer = getattr(layer, "env", None)
    return None
