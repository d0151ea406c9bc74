"""Imports point one way, and nothing that a rollout process imports may import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fastrl

PACKAGE = Path(fastrl.__file__).parent

# A folder may import from folders of a lower level, and from itself.
LEVEL = {
    "errors": 0, "kernels": 0, "option_types": 0, "option_docs": 0, "shm": 0,
    "envs": 1, "models": 1, "algo": 1, "monitor": 1, "checkpoint": 1,
    "evaluate": 2,
    "workers": 3,
    "bench": 4,
    "cli": 5, "__init__": 5,
}  # fmt: skip
READ_BY_ALL = {"config", "config_file", "flags", "preset", "resolve", "errors"}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module]
                if node.module != "fastrl"
                else [f"fastrl.{a.name}" for a in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fastrl.")}
    return found


def test_imports_point_one_way():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in READ_BY_ALL:
            continue  # config reads the options of envs and models
        wrong += [
            f"{path.relative_to(PACKAGE)} imports {other}"
            for other in imports_of(path) - {part} - READ_BY_ALL
            if not (LEVEL[other] < LEVEL[part] or (LEVEL[other] == LEVEL[part] == 1))
        ]
    assert wrong == []


def test_shm_knows_nothing_of_the_rest():
    for path in (PACKAGE / "shm").rglob("*.py"):
        assert imports_of(path) <= {"shm"}, path


def loaded_by(statement: str) -> set[str]:
    call = f"{statement}; import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_a_rollout_process_imports_no_torch():
    loaded = loaded_by("import fastrl.workers.preload, fastrl.workers.bodies")
    assert "fastrl.workers.rollout" in loaded and "envpool" in loaded
    assert "torch" not in loaded and "tensorboard" not in loaded


def test_main_needs_no_torch_to_start_a_run():
    assert "torch" not in loaded_by("import fastrl.cli, fastrl.workers.training")


def test_public_names_are_what_they_say():
    import fastrl.evaluate  # a submodule takes its name in the package

    assert callable(fastrl.train) and callable(fastrl.load_policy)
    assert isinstance(fastrl.TrainConfig, type)
    assert not set(fastrl.__all__) & {path.stem for path in PACKAGE.glob("*.py")}
