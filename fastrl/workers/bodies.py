"""Entry points of the child processes: the guard around each body, and nothing that is heavy to
import.

Main names these functions when it starts a process, so this file must not import torch; the
bodies of learner, inference and evaluator are imported in their own processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fastrl.workers.process import Lines, child_of_main, name_process

if TYPE_CHECKING:
    from fastrl.workers.rollout import RolloutStart

PROCESS_NAMES = {
    "rollout": "fastrl-rollout",
    "inference": "fastrl-infer",
    "learner": "fastrl-learn",
    "evaluator": "fastrl-eval",
}
"""By role, as the kernel shows them (/proc/PID/comm, top)."""


def rollout_main(start: RolloutStart, lines: Lines) -> None:
    """Body of a rollout process (from the forkserver, which has it imported)."""
    name_process(PROCESS_NAMES["rollout"])
    with child_of_main(lines):
        from fastrl.workers.rollout import run

        run(start, lines)


def inference_main(lines: Lines) -> None:
    """Body of the inference process (spawned)."""
    name_process(PROCESS_NAMES["inference"])
    with child_of_main(lines):
        from fastrl.workers.inference import run

        run(lines)


def learner_main(lines: Lines, fifo: Any) -> None:
    """Body of the learner process (spawned)."""
    name_process(PROCESS_NAMES["learner"])
    # Read when torch is loaded: threads that wait for their next kernel must not spin on a core
    # that rollouts could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with child_of_main(lines):
        from fastrl.workers.learner import run

        run(lines, fifo)


def evaluator_main(lines: Lines) -> None:
    """Body of the evaluator process (spawned)."""
    name_process(PROCESS_NAMES["evaluator"])
    with child_of_main(lines):
        from fastrl.workers.evaluator import run

        run(lines)


class Bodies(NamedTuple):
    """What the processes of a run do: functions that can be imported by name."""

    rollout: Callable[[RolloutStart, Lines], None] = rollout_main
    inference: Callable[[Lines], None] = inference_main
    learner: Callable[[Lines, Any], None] = learner_main
    evaluator: Callable[[Lines], None] = evaluator_main
