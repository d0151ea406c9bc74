"""Modules of the user's own, found from the folder in which the command runs.

The engine's processes run without that folder on `sys.path`: a file in it named like a module of
the standard library would break them. So it is appended, once a module of the user's is asked for:
behind all that is installed, where it shadows nothing.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fastrl.envs.gymnasium_checks import told
from fastrl.errors import ConfigError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_module(env_id: str, module: str) -> ModuleType:
    """Import `module`, installed or in the current folder.

    Args:
        env_id: the id that asks for it, for sentences.
        module: dotted name.

    Raises:
        ConfigError: there is none, there are two (installed and here), or it raises as it is
            imported.
    """
    if not _MODULE.fullmatch(module):
        raise ConfigError(
            f"{module!r} in {env_id!r} is not a module's name: write it as in an import statement, "
            "`folder.file` for folder/file.py."
        )
    here = os.getcwd()
    if here not in map(os.path.abspath, sys.path):  # "" is the current folder too
        sys.path.append(here)
    importlib.invalidate_caches()  # a file may be newer than the last look at its folder
    _refuse_two(env_id, module.partition(".")[0], Path(here))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(_not_found(env_id, module, Path(here))) from error
        raise _raised(env_id, module, error) from error
    except (Exception, SystemExit) as error:
        raise _raised(env_id, module, error) from error


def attribute(env_id: str, module: ModuleType, path: str) -> Any:
    """Find what is called `path` (a name, or several with dots between) in `module`.

    Raises:
        ConfigError: there is no such name; the nearest are told.
    """
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(
                f"There is no {path!r} in {module.__name__} ({_file_of(module)}), which {env_id!r} "
                f"asks for{_nearest(name, found)}"
            )
        found = getattr(found, name)
    return found


def _refuse_two(env_id: str, top: str, here: Path) -> None:
    """Refuse a file of the current folder that has the name of a module found before it.

    Either could be meant, and the other would run without a word.
    """
    own = next((p for p in (here / top / "__init__.py", here / f"{top}.py") if p.is_file()), None)
    if own is None:
        return
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # imported by something that left no spec
        spec = None
    if spec is not None and os.path.realpath(spec.origin or "") != os.path.realpath(own):
        raise ConfigError(
            f"{env_id!r} could mean {own} or the module {top} that is found before it "
            f"({spec.origin}): rename your own, or run from another folder."
        )


def _not_found(env_id: str, module: str, here: Path) -> str:
    modules = [path.stem for path in here.glob("*.py")]
    close = difflib.get_close_matches(module, modules, n=3)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else "install it, or run from the folder that holds it."
    )
    return (
        f"There is no module {module} (of {env_id!r}) among those installed or in the current "
        f"folder {here}; {hint}"
    )


def _raised(env_id: str, module: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"The module {module} (of {env_id!r}) raised an error as it was imported: {told(error)}."
    )


def _nearest(name: str, owner: Any) -> str:
    """End a sentence with the names in `owner` that are nearest to `name`, or those it has."""
    functions = {
        known: value
        for known, value in getattr(owner, "__dict__", {}).items()
        if callable(value) and not known.startswith("_")
    }
    close = difflib.get_close_matches(name, functions, n=3, cutoff=0.5)
    if close:
        return f", did you mean {' or '.join(close)}?"
    here = getattr(owner, "__name__", None)
    # Not what it imports from elsewhere.
    own = [k for k, value in functions.items() if getattr(value, "__module__", None) == here]
    return f"; it has {', '.join(own[:5])}." if own else "."


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a built-in module"
