"""Learning curves of other trainers, for ``fastrl-bench learn --beside``.

::

    python benchmarks/peers/learn.py stable_baselines3 cartpole --out sb3-cartpole.json
    fastrl-bench learn --tasks cartpole --beside sb3-cartpole.json --folder docs/results ...

Each seed is one process, one after the other, from the start of its Python to the threshold of the
task, to the end of the trainer's own schedule or to twice the task's time. Time counts from the
command's start, as fastrl's own does.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import venvs

from fastrl.bench.tasks import TASKS

HERE = Path(__file__).parent
TASKS_OF_ZOO = ("cartpole", "acrobot", "lunarlander", "pendulum", "halfcheetah")
"""For which `sb3_learner` has values."""
TRAINERS = {"stable_baselines3": "Stable-Baselines3, RL Zoo's values"}
PACKAGES = ("stable-baselines3", "torch", "gymnasium")
VENVS = Path("~/.cache/fastrl-peers").expanduser()


def one_run(python: Path, task: str, seed: int, seconds: float) -> dict[str, Any]:
    """The curve of one seed."""
    goal = TASKS[task].stop_at
    assert goal is not None
    command = [
        *(str(python), str(HERE / "sb3_learner.py"), task, "--seed", str(seed)),
        *("--goal", str(goal), "--seconds", str(seconds), "--began", str(time.time())),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * seconds + 300)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}")
    curve: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return curve


def made_by(python: Path) -> dict[str, Any]:
    """When, where and by which versions the curves were made."""
    call = f"import json, runner_lines; print(json.dumps(runner_lines.made({PACKAGES!r})))"
    done = subprocess.run(
        [str(python), "-c", call], cwd=HERE, capture_output=True, text=True, check=True
    )
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def main() -> None:
    """Train a task with a trainer, seed after seed, and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("task", choices=TASKS_OF_ZOO)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, help="by default twice the task's time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--venvs", type=Path, default=VENVS)
    parser.add_argument("--torch", default="torch==2.13.0")
    options = parser.parse_args()
    task = TASKS[options.task]
    seconds = options.seconds or 2.0 * task.seconds
    requirements = HERE / f"{options.trainer}_learn.txt"
    python = venvs.ensure(options.venvs / requirements.stem, requirements, options.torch)
    runs = []
    for seed in options.seeds:
        curve = one_run(python, options.task, seed, seconds)
        runs.append({"seed": seed, "curve": curve})
        last = f"{curve['returns'][-1]:.2f}" if curve["returns"] else "no 100 episodes"
        print(f"seed {seed}: {last} after {(curve['seconds'] or [0])[-1]:.1f} s", flush=True)
    result = {
        "trainer": TRAINERS[options.trainer],
        "env": task.env,
        "command": " ".join(["python", "benchmarks/peers/learn.py", *sys.argv[1:]]),
        "made": made_by(python),
        "runs": runs,
    }
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
