"""The errors a user can cause; each message is one sentence that says what was found and what to
do."""

from __future__ import annotations


class ConfigError(ValueError):
    """The run is refused before it starts (exit code 2): a wrong option, name or combination."""


class UnsupportedEnvironment(ConfigError):
    """The environment exists, but its spaces or its way of resetting cannot be used."""


class NotFinite(FloatingPointError):
    """The run ends (exit code 1): what it learns from or has learned is no longer a number."""
