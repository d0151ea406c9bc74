"""What an environment written by others does wrong, told in one sentence that names it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gymnasium

from fastrl.envs.quiet import quiet_gymnasium
from fastrl.errors import ConfigError, UnsupportedEnvironment

Result = TypeVar("Result")

_FIVE_VALUES = "Gymnasium's five values (observation, reward, terminated, truncated, info)"


def told(error: BaseException) -> str:
    """What was raised, in one line: type, message, and the place if the user's code raised it."""
    message = " ".join(str(error).split()).rstrip(".")
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError) or _raised_by_a_caller(error):
        return text  # a SyntaxError's message has its own place
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{text} ({frame.f_code.co_filename}, line {line})"


@contextmanager
def constructing(env_id: str) -> Iterator[None]:
    """Turn what a constructor raises into a ConfigError about `env_id`; mute gymnasium
    meanwhile."""
    try:
        with quiet_gymnasium():
            yield
    except ConfigError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        hint = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"{env_id} needs a package that is not installed: {hint}.") from error
    except Exception as error:
        raise ConfigError(f"{env_id} could not be constructed: {told(error)}.") from error


def refusing(reset: Callable[[], Result]) -> Result:
    """What `reset` returns; a ConfigError in place of an exception whose note tells about it."""
    try:
        return reset()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(error.__notes__[-1]) from error


def explain(env_id: str, error: Exception) -> None:
    """Raise a sentence in place of `error` where it means that the environment has another API.

    Args:
        env_id: for the sentence.
        error: what `reset` or `step` raised, or taking apart what it returned.

    Raises:
        UnsupportedEnvironment: the environment is written for the gym before Gymnasium.
    """
    text = str(error)
    if (
        isinstance(error, ValueError)
        and "values to unpack (expected 5" in text
        and _raised_by_a_caller(error)
    ):
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: its step() does not return {_FIVE_VALUES}; one that returns "
            "`done` is written for the old gym: let it return terminated and truncated instead."
        ) from error
    unpacked = "cannot unpack non-iterable" in text or "values to unpack" in text
    if isinstance(error, TypeError | ValueError) and unpacked and _raised_by_a_caller(error):
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: its step() does not return {_FIVE_VALUES}, but what cannot "
            f"be taken apart into them ({text})."
        ) from error
    if isinstance(error, TypeError) and re.search(
        r"reset\(\) got an unexpected keyword argument '(seed|options)'", text
    ):
        raise UnsupportedEnvironment(
            f"{env_id} cannot be used: its reset() takes no seed and options; write it as "
            "Gymnasium's reset(self, *, seed=None, options=None), which returns (observation, "
            "info)."
        ) from error


def _raised_by_a_caller(error: BaseException) -> bool:
    """Whether the code that calls the environment's raised it: ours, gymnasium's or import's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return module in ("fastrl", "gymnasium", "importlib")


def first_observation(env_id: str, result: Any) -> tuple[Any, Any]:
    """Observation and info in what `reset` returned.

    Raises:
        UnsupportedEnvironment: it is not Gymnasium's pair. (An array of two would unpack as well.)
    """
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise UnsupportedEnvironment(
        f"{env_id} cannot be used: its reset() returned one {type(result).__name__}, and "
        "Gymnasium's returns the pair (observation, info)."
        if not isinstance(result, tuple)
        else f"{env_id} cannot be used: its reset() returned {len(result)} values, and Gymnasium's "
        "returns two, (observation, info)."
    )
