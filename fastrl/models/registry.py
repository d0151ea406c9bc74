"""Encoders of the user's own, by name.

    register_model("resnet", build)  ─▶  --model resnet           ─▶  build(spec)  ┐ in learner and
    class Net in nets.py             ─▶  --model py:nets:Net      ─▶  Net(spec)    ┘ inference

What is registered belongs to one process; `registered_models` and `register_models` hand it on.
Only names and functions are kept here, so that main can ask for them without torch; the module of
a `py:` id is imported where the network is built.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from fastrl.errors import ConfigError
from fastrl.models.config import BUILT_IN

if TYPE_CHECKING:
    from torch import nn

    from fastrl.envs.spec import ObservationSpec

BuildModel: TypeAlias = "Callable[[ObservationSpec], nn.Module]"

_models: dict[str, BuildModel] = {}


def register_model(name: str, build: BuildModel) -> None:
    """Make `--model name` encode each observation leaf by the module that `build` returns.

    `build(spec)` gets the leaf's shape, dtype and kind and constructs a torch module that maps
    observations f32 `[N, *spec.shape]` to features `[N, F]` for any N. Its parameters are f32 and
    trained with the rest; F is found by trying it.

    - An image is `[N, C, H, W]`, channels-last in memory (flatten with `flatten(1)`, not `view`),
      and holds pixels in [0, 1]; a discrete observation is one-hot `[N, n]`, a multi_discrete one
      the joined one-hot rows of its elements. With `--normalize-obs` images and vectors are
      normalised instead.
    - With `--dtype bf16` the module runs under autocast and gets bf16.
    - What a row's features are must depend on that row and the parameters alone, or the policy that
      acted is not the one that is trained: no BatchNorm, no Dropout. Parameters are published to
      the process that acts, buffers are not: they must be constants, the same at each call.

    A name that is registered again goes to the new function.

    Raises:
        ConfigError: the name is no lower-case word or one of `BUILT_IN`, or `build` cannot be
            called.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in BUILT_IN:
        raise ConfigError(
            f"The model name {name!r} must be a lower-case word of letters, digits and _, other "
            f"than {', '.join(BUILT_IN)}."
        )
    if not callable(build):
        raise ConfigError(
            f"The model {name!r} is given {build!r}; register_model takes a function that builds "
            "a torch module for an ObservationSpec."
        )
    _models[name] = build


def registered_models() -> dict[str, BuildModel]:
    """What `register_model` was given in this process, for handing it on to others."""
    return dict(_models)


def register_models(models: Mapping[str, BuildModel]) -> None:
    """Register all that `registered_models` returned elsewhere; raises as `register_model`."""
    for name, build in models.items():
        register_model(name, build)


def model_builder(name: str) -> BuildModel | None:
    """The function that builds the encoders of model `name`; None for those in `BUILT_IN`.

    Of a `py:` id nothing is imported before the function is called.

    Raises:
        ConfigError: there is no such name, or a `py:` id is not of the form `py:module:Class`.
    """
    if name in BUILT_IN:
        return None
    if name.startswith("py:"):
        _, module, *path = name.split(":")
        if len(path) != 1 or not module or not path[0]:
            raise ConfigError(
                f"The model {name!r} is not py:module:Class: write the name of a module, a colon "
                "and the name of a class in it whose instances are torch modules."
            )
        return partial(_build_own, name, module, path[0])
    if name not in _models:
        close = difflib.get_close_matches(name, [*BUILT_IN, *_models], n=1, cutoff=0.5)
        perhaps = f", perhaps you meant {close[0]!r}" if close else ""
        raise ConfigError(
            f"There is no model {name!r}{perhaps}; names given to register_model are known to the "
            "script that registers them."
        )
    return _models[name]


def _build_own(name: str, module: str, path: str, spec: ObservationSpec) -> nn.Module:
    """Build the encoder of a leaf by what `path` names in `module`.

    Raises:
        ConfigError: it is not found, or cannot be called.
    """
    # Not above: what main and rollout processes import of this file needs none of it.
    from fastrl.envs.user_module import attribute, import_module

    build = attribute(name, import_module(name, module), path)
    if not callable(build):
        raise ConfigError(
            f"What {name!r} names is of type {type(build).__name__}; it must be a class, or a "
            "function, that builds a torch module for an ObservationSpec."
        )
    net: nn.Module = build(spec)
    return net
