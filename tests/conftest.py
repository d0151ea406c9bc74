"""What one test registers is not there for the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastrl.envs import registry, user_env
from fastrl.models import registry as models


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    registries = (registry._FAMILIES, registry._registered, user_env._factories, models._models)
    before = [dict(names) for names in registries]
    yield
    for names, kept in zip(registries, before, strict=True):
        names.clear()
        names.update(kept)
