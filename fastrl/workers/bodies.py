"""Entry points of the child processes: the guard around each body, and nothing that is heavy to
import.

Main names these functions when it starts a process, so this file must not import torch; the
learner's and inference's bodies are imported in their own processes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastrl.workers.process import Lines, child_of_main

if TYPE_CHECKING:
    from fastrl.workers.rollout import RolloutStart


def rollout_main(start: RolloutStart, lines: Lines) -> None:
    """Body of a rollout process (from the forkserver, which has it imported)."""
    with child_of_main(lines):
        from fastrl.workers.rollout import run

        run(start, lines)


def inference_main(lines: Lines) -> None:
    """Body of the inference process (spawned)."""
    with child_of_main(lines):
        from fastrl.workers.inference import run

        run(lines)


def learner_main(lines: Lines, fifo: Any) -> None:
    """Body of the learner process (spawned)."""
    # Read when torch is loaded: threads that wait for their next kernel must not spin on a core
    # that rollouts could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with child_of_main(lines):
        from fastrl.workers.learner import run

        run(lines, fifo)
