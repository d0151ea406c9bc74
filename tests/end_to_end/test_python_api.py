"""The Python interface from outside: scripts and notebooks that define what they train on."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from commands import HANG, Command
from nbclient import NotebookClient

OWN_MEMORY = 40e6  # bytes; a rollout process that imports torch has 160 MB

SIZES = "envs_per_worker=4, rollout_length=8, minibatches=1, epochs=1, stagger=0"

IMPORTS = """
import os
import sys
import gymnasium
import numpy as np
from fastrl import TrainConfig, load_policy, register_env, register_model, train
"""

# It pays 10 an episode once a file says that the test has seen enough, so that a run with a goal
# between 0 and 10 goes on until then.
WALK = """
class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.place += (2 * action - 1, 1)
        reward = float(os.path.exists("seen"))
        return self.place.copy(), reward, bool(self.place[1] == 10), False, {}
"""

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = torch.nn.Linear(size, 16)

    def forward(self, obs):
        return torch.tanh(self.layer(obs))

def net(spec):
    return Net(spec.shape[0])
"""

REGISTER = """
register_env("walk", Walk)
register_model("net", net)
"""

TRAIN = f"""
code = train(TrainConfig(
    env="py:walk", model="net", stop_at_return=9, run_dir="run", workers=2, log_every=0.5, {SIZES}
))
print("train returned", code)
"""

SCRIPT = f"""
{NET}
{IMPORTS}
with open("ran.txt", "a") as file:
    file.write("once ")
{WALK}
{REGISTER}
{TRAIN}
sys.exit(code)
"""

GUARDED = SCRIPT.replace(TRAIN, f'\nif __name__ == "__main__":\n{textwrap.indent(TRAIN, "    ")}')
GUARDED = GUARDED.replace("\nsys.exit(code)", "\n    sys.exit(code)")


def run_processes(command: Command) -> tuple[list[int], list[int]]:
    """Process ids of rollout processes (children of the forkserver), and of learner and
    inference."""
    family = command.family()
    servers = {pid for pid, line in family.items() if "forkserver" in line}
    rollouts = []
    for pid in servers:
        stat = Path(f"/proc/{pid}/stat").read_text()
        if int(stat.rpartition(")")[2].split()[1]) in servers:
            rollouts.append(pid)
    return sorted(rollouts), [pid for pid, line in family.items() if "spawn_main" in line]


def own_memory(pid: int) -> int:
    """Bytes that the process shares with no other."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", rollup, re.M)))


def check_rollouts_are_light(command: Command) -> None:
    """Two rollout processes run, without torch, and with little memory of their own."""
    rollouts, others = run_processes(command)
    assert (len(rollouts), len(others)) == (2, 2), command.family()
    for pid in others:
        assert "libtorch" in Path(f"/proc/{pid}/maps").read_text(), "as this would look"
    for pid in rollouts:
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    sizes = [own_memory(pid) for pid in rollouts]
    print("memory of each rollout process:", *(f"{size / 1e6:.1f} MB" for size in sizes))
    assert 0 < min(sizes) <= max(sizes) < OWN_MEMORY, sizes


def check_files(run: Path) -> None:
    """The run has a checkpoint, and finite metrics, those of the learner among them."""
    assert list(run.glob("checkpoints/*.pt"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert set().union(*lines) >= {"losses/policy_loss", "charts/episodic_return"}
    for line in lines:
        for name, value in line.items():
            assert isinstance(value, str) or math.isfinite(value), (name, line)


@pytest.mark.slow
def test_a_script_trains_what_it_defines_with_or_without_a_main_guard(tmp_path):
    scripts = {}
    for name, text in (("bare", SCRIPT), ("guarded", GUARDED)):
        (tmp_path / name).mkdir()
        scripts[name] = Command.script(text, tmp_path / name)
    for name, script in scripts.items():
        script.wait_for("all 2 workers step")
        script.wait_for("steps/s")
        check_rollouts_are_light(script)
        (tmp_path / name / "seen").touch()
        assert script.finish() == 0, script.output
        assert "train returned 0" in script.output
        assert (tmp_path / name / "ran.txt").read_text() == "once ", "no child runs it again"
        assert 'model = "net"' in (tmp_path / name / "run" / "config.toml").read_text()
        check_files(tmp_path / name / "run")
        assert script.wait_until_alone(2.0) == {}


class Notebook(Command):
    """A kernel and the cells that it has executed; its processes carry the mark of a command."""

    def __init__(self, client: NotebookClient, mark: str) -> None:
        self.mark = mark
        self._client = client
        self._ended = threading.Event()

    @classmethod
    @contextmanager
    def opened(cls, cwd: Path) -> Iterator[Notebook]:
        """Start a kernel in a folder, and shut it down at the end."""
        client = NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=HANG,
            allow_errors=True,
            resources={"metadata": {"path": str(cwd)}},
        )
        mark = uuid.uuid4().hex
        ours = {"FASTRL_TEST_MARK": mark, "IPYTHONDIR": str(cwd / "ipython")}
        with client.setup_kernel(env={**os.environ, **ours}):
            yield cls(client, mark)

    def execute(self, source: str, meanwhile: Callable[[], None] | None = None) -> str:
        """Execute a cell, and call `meanwhile` in a thread; returns what the cell printed, or the
        traceback that it ended in."""
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        self._ended.clear()
        with ThreadPoolExecutor() as pool:
            watcher = pool.submit(meanwhile or (lambda: None))
            try:
                outputs = self._client.execute_cell(cells[-1], len(cells) - 1).outputs
            finally:
                self._ended.set()
            watcher.result()
        return "".join(out.get("text", "") + "\n".join(out.get("traceback", [])) for out in outputs)

    def wait_for_line(self, log: Path, word: str) -> None:
        """While a cell trains: wait until the run's log holds `word`."""
        deadline = time.monotonic() + HANG
        while not (log.exists() and word in log.read_text()):
            assert not self._ended.is_set() and time.monotonic() < deadline, f"no {word!r}"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """SIGINT to the kernel, as the button sends it."""
        asyncio.run(self._client.km.interrupt_kernel())


@pytest.mark.slow
def test_a_notebook_trains_is_interrupted_trains_again_and_evaluates(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    with Notebook.opened(tmp_path) as notebook:

        def interrupt() -> None:
            notebook.wait_for_line(tmp_path / "first" / "log.txt", "steps/s")
            notebook.interrupt()

        def look() -> None:
            try:
                notebook.wait_for_line(tmp_path / "run" / "log.txt", "steps/s")
                check_rollouts_are_light(notebook)
            finally:
                (tmp_path / "seen").touch()

        assert notebook.execute(NET + IMPORTS + WALK + REGISTER) == ""

        printed = notebook.execute(TRAIN.replace('"run"', '"first"'), interrupt)
        assert "SIGINT: finishing the batch and saving" in printed, printed
        assert "saved first/checkpoints/" in printed and "train returned 130" in printed, printed
        assert run_processes(notebook) == ([], [])
        check_files(tmp_path / "first")

        printed = notebook.execute(TRAIN, look)
        for words in ("2 rollout (2 groups of 2)", "policy lag", "saved run/checkpoints/"):
            assert words in printed, printed
        assert "train returned 0" in printed, printed
        assert run_processes(notebook) == ([], [])
        check_files(tmp_path / "run")

        printed = notebook.execute("""
policy, spec, config, path, steps = load_policy("run")
obs = np.stack([Walk().reset(seed=seed)[0] for seed in range(5)])
action, log_prob, value = policy.act({"obs": torch.from_numpy(obs)}, noise=None)
assert value.shape == (5,) and torch.isfinite(value).all()
print(f"{spec.env_id} by {config.model}:", set(action["action"].tolist()) <= {0, 1})
""")
        assert printed == "py:walk by net: True\n"
    assert notebook.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_an_environment_that_cannot_travel_is_refused_in_a_sentence(tmp_path):
    text = """
log, lock = open("log.txt", "w"), threading.Lock()

def logged():
    log.write("one more")
    return Walk()

def locked():
    with lock:
        return Walk()

for factory in (logged, locked):
    register_env("walk", factory)
    try:
        train(TrainConfig(env="py:walk", run_dir="run"))
    except ValueError as error:
        print("refused:", error, flush=True)
register_env("good", Walk)
train(TrainConfig(env="py:good", run_dir="run", workers=1, total_steps=1))  # needs none of those
print("it has trained", flush=True)
signal.pause()
"""
    script = Command.script("import signal, threading" + IMPORTS + WALK + text, tmp_path)
    for what in ("Cannot pickle files", "cannot pickle '_thread.lock' object"):
        script.wait_for("refused: What was given to register_env cannot be sent to other processes")
        assert what in script.output.splitlines()[-1]
    script.wait_for("it has trained")
    # What multiprocessing keeps belongs to the program, not to a run.
    kept = ("resource_tracker", "forkserver")
    left = [line for line in script.family().values() if not any(word in line for word in kept)]
    assert len(left) == 1 and "script.py" in left[0]
    script.process.send_signal(signal.SIGTERM)
    assert script.finish() == -signal.SIGTERM
    assert script.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_an_environment_of_a_module_beside_the_script_trains_by_name_and_by_flag(tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "corridor.py").write_text("import os, gymnasium, numpy as np\n" + WALK)
    (folder / "seen").touch()
    text = f"""
sys.path[0] = ""  # as a notebook has it, whose folder may change
os.chdir("modules")
from corridor import Walk
register_env("walk", Walk)
options = dict(workers=2, total_steps=2000, {SIZES})
sys.exit(train(TrainConfig(env="py:walk", run_dir="by_name", **options)))
"""
    script = Command.script(IMPORTS + text, tmp_path)
    train = Command(
        "--env", "py:corridor:Walk", "--run-dir", "by_flag", "--total-steps", "2000",
        "--workers", "2", "--envs-per-worker", "4", "--rollout-length", "8", "--epochs", "1",
        cwd=folder, safe_path=True,
    )  # fmt: skip
    for command, name in ((script, "by_name"), (train, "by_flag")):
        assert command.finish() == 0, command.output
        check_files(folder / name)
        assert command.wait_until_alone(2.0) == {}
    play = Command("by_flag", "--episodes", "5", program="fastrl-eval", cwd=folder, safe_path=True)
    assert play.finish() == 0, play.output
    assert (
        "5 episodes, sampled actions\nreturn mean 10.000 ± 0.000 (95 %)  std 0.000" in play.output
    )


BREAKS = """
class Breaks(Walk):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40:
            raise RuntimeError("the bridge is out")
        return super().step(action)

register_env("breaks", Breaks)
"""
THE_LINE = '            raise RuntimeError("the bridge is out")'


@pytest.mark.slow
def test_an_environment_that_keeps_raising_ends_the_run_with_its_own_traceback(tmp_path):
    text = f"""{IMPORTS}{WALK}{BREAKS}
config = TrainConfig(env="py:breaks", run_dir="run", workers=2, max_worker_restarts=3, {SIZES})
sys.exit(train(config))
"""
    script = Command.script(text, tmp_path)
    assert script.finish() == 1, script.output
    for times in range(1, 4):
        assert f"({times} of at most 3 in 10 minutes)" in script.output
    _, failed, end = script.output.rpartition("And the last: Rollout worker")
    assert failed, script.output
    said, *_, error, left = end.strip().splitlines()
    assert left.startswith("the run has ended; ")
    line = text.splitlines().index(THE_LINE) + 1
    assert f'script.py", line {line}, in step\n    {THE_LINE.strip()}\n' in end
    assert error == "RuntimeError: the bridge is out"
    assert "py:breaks raised RuntimeError: the bridge is out (" in said
    assert "in step 40 of environment " in said
    assert script.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_in_one_process_an_environment_raises_out_of_train(tmp_path):
    text = f"""{IMPORTS}{WALK}{BREAKS}
train(TrainConfig(env="py:breaks", run_dir="run", workers=0, {SIZES}))
"""
    script = Command.script(text, tmp_path)
    assert script.finish() == 1, script.output
    assert script.output.count("Traceback (most recent call last):") == 1
    _, _, end = script.output.rpartition("Traceback (most recent call last):")
    line = text.splitlines().index(THE_LINE) + 1
    assert f'script.py", line {line}, in step\n    {THE_LINE.strip()}\n' in end
    assert "RuntimeError: the bridge is out\npy:breaks raised RuntimeError: the bridge is" in end
    assert "failed:" not in end
    assert script.wait_until_alone(2.0) == {}
