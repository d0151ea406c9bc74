"""`fastrl-train` and `fastrl-eval` from outside: files, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from commands import HANG, TINY, Command
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fastrl.cli import train_main
from fastrl.config_file import load_config

SCALARS = {
    "charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/FPS",
    "charts/learning_rate", "losses/policy_loss", "losses/value_loss", "losses/entropy",
    "losses/approx_kl", "losses/clipfrac", "losses/explained_variance", "losses/grad_norm",
    "lag/mean", "lag/p99", "lag/max", "lag/masked_share", "lag/rho_clipped_share",
    "wait/learner", "wait/inference", "wait/rollout_action", "wait/rollout_slot",
    "queue/full_slots", "inference/batch", "perf/update_ms",
}  # fmt: skip


RUNS_WITH_A_KILL = 50 if os.environ.get("FASTRL_LONG_TESTS") == "1" else 1


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def accounts(output: str) -> list[int]:
    match = re.search(
        r"steps: ([\d,]+) sampled, ([\d,]+) trained, ([\d,]+) masked for age, "
        r"([\d,]+) dropped, ([\d,]+) unfinished",
        output,
    )
    assert match, output
    return [int(number.replace(",", "")) for number in match.groups()]


def shared_memory() -> list[str]:
    """What lies in /dev/shm, but for VizDoom's, which other tests run meanwhile."""
    return sorted(name for name in os.listdir("/dev/shm") if not name.startswith("ViZDoom"))


@pytest.mark.slow
def test_a_run_leaves_its_files_and_nothing_else(tmp_path):
    shm_before = shared_memory()
    train = Command(
        "--env", "envpool:CartPole-v1", "--total-steps", "30000", "--run-dir", "run",
        "--seed", "7", *TINY, cwd=tmp_path,
    )  # fmt: skip
    assert train.finish() == 0, train.output
    assert train.wait_until_alone(2.0) == {}
    assert shared_memory() == shm_before
    for word in ("processes", "threads", "slots", "policy lag", "preset      classic-control: "):
        assert word in train.output

    run = tmp_path / "run"
    config = load_config(run / "config.toml")
    assert (config.seed, config.workers, config.preset) == (7, 2, "classic-control")
    assert config.batch_size == 2 * 8 * 8, "what was chosen is stored"
    assert "all 2 workers step" in (run / "log.txt").read_text()

    lines = records(run)
    assert lines[-1]["stopped_by"] == "total_steps"
    assert 30000 <= lines[-1]["steps"] < 30000 + config.batch_size
    seen = set().union(*lines)
    assert seen >= SCALARS, SCALARS - seen
    events = EventAccumulator(str(run))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= SCALARS
    steps = [line["steps"] for line in lines if "charts/SPS" in line]
    assert [event.step for event in events.Scalars("charts/SPS")] == steps

    sampled, trained, masked, dropped, unfinished = accounts(train.output)
    assert trained + masked == lines[-1]["steps"]
    assert dropped == 0
    assert sampled == trained + masked + unfinished

    play = Command("run", "--episodes", "5", program="fastrl-eval", cwd=tmp_path)
    assert play.finish() == 0, play.output
    assert re.search(
        r"return mean [\d.]+ ± [\d.]+ \(95 %\)  std [\d.]+  min [\d.]+  max [\d.]+", play.output
    )
    assert "5 episodes" in play.output


def test_a_second_run_does_not_touch_the_first(tmp_path):
    (tmp_path / "run").mkdir()
    train = Command("--env", "envpool:CartPole-v1", "--run-dir", "run", cwd=tmp_path)
    assert train.finish() == 2
    assert "--run-dir run exists already" in train.output
    assert list((tmp_path / "run").iterdir()) == []


CARTPOLE = ["--env", "envpool:CartPole-v1"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([*CARTPOLE, "--worker", "7"], "--workers"),
        ([*CARTPOLE, "--workers", "none"], "--workers"),
        ([*CARTPOLE, "--hidden", "0"], "--hidden"),
        (["--env", "atari:Pong", "--noop-max", "0"], "--noop-max is 0"),
        ([*CARTPOLE, "--workers", "-1"], "--workers is -1"),
        ([*CARTPOLE, "--workers", "0", "--mode", "async"], "--workers 0 runs"),
        ([*CARTPOLE, "--resume", "must"], "--resume must needs --run-dir"),
        ([*CARTPOLE, "--resume", "must", "--run-dir", "x"], "there is no run"),
        ([*CARTPOLE, "--init-from", "x"], "--init-from x is not a run's"),
        ([], "--env is not given"),
        ([*CARTPOLE, "--gamma", "nan"], "--gamma is nan"),
        ([*CARTPOLE, "--preset", "atri"], "no preset 'atri'"),
        ([*CARTPOLE, "--model", "resnet"], "no model 'resnet'"),
        ([*CARTPOLE, "--save-every", "5m"], "--save-every is '5m'"),
        ([*CARTPOLE, "--log-every", "often"], "--log-every is 'often'"),
        (
            [*CARTPOLE, "--envs-per-worker", "3", "--groups-per-worker", "2"],
            "--envs-per-worker 3",
        ),
    ],
)
def test_a_wrong_flag_is_refused_before_any_process(
    tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fastrl.workers.training.Supervisor", None)
    try:
        code = train_main(arguments)
    except SystemExit as ended:  # tyro's own refusals
        code = ended.code
    assert code == 2
    printed = capsys.readouterr()
    assert sentence in printed.out + printed.err
    assert list(tmp_path.iterdir()) == []


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--env", "atari:Pnog"], "did you mean atari:Pong"),
        slow([*CARTPOLE, "--noop-max", "7"], "does not use --noop-max"),
        slow([*CARTPOLE, "--batch-size", "1000"], "--batch-size 1000"),
        slow([*CARTPOLE, "--rollout-length", "4096", "--workers", "2",
              "--envs-per-worker", "1000000"], "GiB of shared memory"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence_and_exit_code_2(tmp_path, arguments, sentence):
    train = Command(*arguments, cwd=tmp_path)
    assert train.finish() == 2, train.output
    assert sentence in train.output
    assert "Traceback" not in train.output
    assert list(tmp_path.iterdir()) == [], "a refused run leaves no folder"
    assert train.wait_until_alone(2.0) == {}


def start_training(tmp_path: Path, *more: str) -> Command:
    train = Command("--env", "envpool:CartPole-v1", "--run-dir", "run", *TINY, *more, cwd=tmp_path)
    train.wait_for("all 2 workers step")
    train.wait_for("steps/s")
    return train


def children(train: Command, word: str) -> list[int]:
    return sorted(pid for pid, line in train.family().items() if word in line)


def forkserver_and_workers(train: Command) -> tuple[int, list[int]]:
    """Process ids; a worker is a child of the forkserver, which shares its command line."""
    family = children(train, "forkserver")
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in family
    }
    workers = [pid for pid in family if parents[pid] in family]
    server = next(pid for pid in family if pid not in workers)
    return server, workers


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.slow
def test_an_interrupt_saves_and_leaves_no_process(tmp_path, number, code):
    train = start_training(tmp_path)
    # To the whole process group, as a terminal does it, and to the process, as timeout(1) does too.
    os.killpg(train.process.pid, number)
    time.sleep(0.05)  # else the two may be delivered as one
    os.kill(train.process.pid, number)
    assert train.finish() == code, train.output
    assert train.wait_until_alone(2.0) == {}
    assert records(tmp_path / "run")[-1]["stopped_by"] == number.name
    play = Command("run", "--episodes", "2", program="fastrl-eval", cwd=tmp_path)
    assert play.finish() == 0, play.output


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path):
    # A batch that takes half a minute: only the second signal can end this in time.
    train = start_training(tmp_path, "--epochs", "1000", "--minibatches", "16")
    time.sleep(1.5)  # until it is inside the first batch
    train.process.send_signal(signal.SIGINT)
    train.wait_for("once more ends at once")
    time.sleep(0.6)
    train.process.send_signal(signal.SIGINT)
    assert train.finish() == 130
    assert train.wait_until_alone(2.0) == {}
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.slow
def test_a_killed_main_leaves_no_process(tmp_path):
    train = start_training(tmp_path)
    train.process.kill()
    assert train.wait_until_alone(2.0) == {}
    train.finish()


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_training_goes_on(tmp_path):
    train = start_training(tmp_path)
    _, workers = forkserver_and_workers(train)
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    replaced = [f"It is replaced ({n} of at most 10 in 10 minutes)" for n in (1, 2)]
    assert train.interrupt_after(*replaced) == 130, train.output
    assert "was killed by SIGKILL" in train.output
    sampled, trained, masked, dropped, unfinished = accounts(train.output)
    assert sampled == trained + masked + dropped + unfinished
    assert "do not add up" not in train.output
    assert min(sampled, trained, dropped + unfinished) > 0
    assert train.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_the_accounts_hold_wherever_a_worker_is_killed(tmp_path):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for run in range(RUNS_WITH_A_KILL):
        case = f"run {run} of seed {seed}"
        train = Command(
            "--env", "envpool:CartPole-v1", "--run-dir", f"run{run}", *TINY,
            "--max-policy-lag", rng.choice(["0", "1", "8"]),
            "--publish", rng.choice(["batch", "step"]),
            cwd=tmp_path,
        )  # fmt: skip
        train.wait_for("all 2 workers step")
        time.sleep(rng.uniform(0.0, 0.5))  # which moment it hits does not matter
        _, workers = forkserver_and_workers(train)
        os.kill(rng.choice(workers), signal.SIGKILL)
        assert train.interrupt_after("It is replaced") == 130, (case, train.output)
        assert "was killed by SIGKILL" in train.output, case
        sampled, trained, masked, dropped, unfinished = accounts(train.output)
        assert sampled == trained + masked + dropped + unfinished, (case, train.output)
        assert trained + masked > 0, case


@pytest.mark.parametrize("role", ["learner", "inference", "forkserver"])
@pytest.mark.slow
def test_any_other_death_ends_the_run_and_names_it(tmp_path, role):
    train = start_training(tmp_path)
    if role == "forkserver":
        victim = forkserver_and_workers(train)[0]
    else:
        # The learner is spawned before the inference process.
        spawned = children(train, "spawn_main")
        assert len(spawned) == 2
        victim = spawned[0 if role == "learner" else 1]
    os.kill(victim, signal.SIGKILL)
    assert train.finish() == 1, train.output
    said, last = train.output.strip().splitlines()[-2:]
    assert said.startswith("failed:") and role in said and "kill" in said
    assert (
        last.startswith("the run has ended; its newest checkpoint is ") or "no checkpoint" in last
    )
    assert "do not add up" not in train.output
    sampled, trained, masked, dropped, unfinished = accounts(train.output)
    assert sampled == trained + masked + dropped + unfinished
    assert train.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_a_signal_at_any_moment_of_the_start_ends_it_with_its_exit_code(tmp_path):
    for delay in (0.3, 0.8, 1.5, 2.5):
        train = Command(
            "--env", "envpool:CartPole-v1", "--run-dir", f"run{delay}", *TINY, cwd=tmp_path
        )  # fmt: skip
        time.sleep(delay)  # which moment it hits does not matter
        os.killpg(train.process.pid, signal.SIGINT)
        assert train.finish() in (130, -signal.SIGINT), train.output
        # While it imports, before it has a say, the traceback is Python's own.
        assert "Traceback" not in train.output or "in <module>" in train.output, train.output
        assert train.wait_until_alone(2.0) == {}


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.slow
def test_a_signal_while_the_forkserver_starts_is_no_failure(tmp_path, number, code):
    train = Command("--env", "envpool:CartPole-v1", "--run-dir", "run", *TINY, cwd=tmp_path)
    deadline = time.monotonic() + HANG
    while not children(train, "forkserver"):
        assert time.monotonic() < deadline
    os.killpg(train.process.pid, number)
    assert train.finish() == code, train.output
    assert "Traceback" not in train.output
    assert train.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_files_named_like_modules_in_the_current_folder_do_no_harm(tmp_path):
    for name in ("random", "logging", "tempfile", "socket", "secrets"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not the module that was meant')")
    train = Command(
        "--env", "envpool:CartPole-v1", "--total-steps", "500", "--run-dir", "run", *TINY,
        cwd=tmp_path, safe_path=True,
    )  # fmt: skip
    assert train.finish() == 0, train.output


@pytest.mark.slow
def test_environments_that_all_end_together_lose_no_episode(tmp_path):
    train = Command(
        "--env", "envpool:CartPole-v1", "--workers", "1", "--groups-per-worker", "1",
        "--envs-per-worker", "20000", "--stagger", "0", "--max-episode-steps", "5",
        "--epochs", "1", "--total-steps", "3000000", "--stop-at-return", "5", "--run-dir", "run",
        cwd=tmp_path,
    )  # fmt: skip
    assert train.finish() == 0, train.output
    assert "lost" not in train.output
    assert records(tmp_path / "run")[-1]["stopped_by"] == "stop_at_return"


@pytest.mark.slow
def test_a_family_of_ones_own_that_gives_nan_ends_the_run_and_says_so(tmp_path):
    text = SCRIPT.replace("ENV", "fine").replace('"torch" in sys.modules', "np.nan")
    script = Command.script(text, tmp_path)
    assert script.finish() == 1, script.output
    said = r"environment \d+ returned the reward nan in row \d+, but a reward is a finite number\."
    assert re.search(said, script.output), script.output
    assert script.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_a_forkserver_that_is_not_ours_is_refused_in_a_sentence(tmp_path):
    script = Command.script(
        """
import multiprocessing, os
from fastrl import TrainConfig, train
process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
process.start(); process.join()
try:
    train(TrainConfig(env="envpool:CartPole-v1"))
except ValueError as error:
    print("refused:", error)
""",
        tmp_path,
    )
    assert script.finish() == 0, script.output
    assert "refused: This program has started multiprocessing's forkserver" in script.output


SCRIPT = """
import os, sys
import torch  # the user's script may; a rollout process must not
import numpy as np
from fastrl import TrainConfig, train
from fastrl.envs import ActionSpec, EnvSpec, FunctionEnvs, ObservationSpec, register_family

with open("ran.txt", "a") as file:
    file.write("once")

def spec(env_id):
    action = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
    obs = ObservationSpec((3,), "float32", "vector", None)
    return EnvSpec(env_id, {"obs": obs}, {"action": action}, 1, None)

class Env:
    def __init__(self, env_id, num_envs):
        self.spec, self.num_envs, self.count = spec(env_id), num_envs, 0
    def reset(self, obs, stagger_steps=None, rngs=None, action_mask=None):
        return np.zeros(self.num_envs), np.zeros(self.num_envs, int)
    def step(self, action, out):
        self.count += 1
        if self.spec.env_id == "my:raises" and self.count == 20:
            raise RuntimeError("the environment is broken in its own way")
        for array in (out.reward, out.terminated, out.truncated, out.episode_over):
            array[...] = 0
        out.truncated[:] = out.episode_over[:] = self.count % 5 == 0
        out.reward[:] = "torch" in sys.modules
        if self.count % 5 == 1:
            out.reward[:] = 0
    def close(self):
        pass

register_family("my", FunctionEnvs(
    lambda env_id, options: spec(env_id),
    lambda env_id, options, num_envs, first, seed: Env(env_id, num_envs),
))
code = train(TrainConfig(
    env="my:ENV", workers=2, envs_per_worker=4, rollout_length=8, total_steps=3000, log_every=0.5,
    minibatches=1, max_worker_restarts=2, run_dir=__import__("pathlib").Path("run"),
))
sys.exit(code)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_trains_and_no_worker_imports_torch(tmp_path):
    script = Command.script(SCRIPT.replace("ENV", "fine"), tmp_path)
    assert script.finish() == 0, script.output
    assert (tmp_path / "ran.txt").read_text() == "once", "no child runs the user's script again"
    returns = [r["charts/episodic_return"] for r in records(tmp_path / "run")
               if "charts/episodic_return" in r]  # fmt: skip
    assert returns and set(returns) == {0.0}, "the reward counts torch in sys.modules"
    assert script.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_an_environment_that_always_raises_ends_the_run_with_its_traceback(tmp_path):
    script = Command.script(SCRIPT.replace("ENV", "raises"), tmp_path)
    assert script.finish() == 1, script.output
    assert "(2 of at most 2 in 10 minutes)" in script.output
    assert "failed: More than 2 rollout workers died within 10 minutes" in script.output
    said, last = script.output.strip().splitlines()[-2:]
    assert said == "RuntimeError: the environment is broken in its own way"
    assert last.startswith("the run has ended; ")
    assert script.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_atari_trains_and_plays(tmp_path):
    train = Command(
        "--env", "atari:Pong", "--workers", "2", "--envs-per-worker", "4", "--rollout-length", "8",
        "--total-steps", "200", "--stagger", "0", "--run-dir", "run", cwd=tmp_path,
    )  # fmt: skip
    assert train.finish() == 0, train.output
    assert "preset      atari" in train.output
    play = Command("run", "--episodes", "1", program="fastrl-eval", cwd=tmp_path)
    assert play.finish() == 0, play.output
    assert re.search(r"return mean -(1\d|2[01])", play.output)


@pytest.mark.slow
def test_a_main_that_fails_by_itself_leaves_no_process_and_does_not_wait(tmp_path):
    # Whatever goes wrong in main: the interpreter's own exit must not wait for children.
    script = Command.script(
        """
from fastrl.config import TrainConfig
from fastrl.workers.crew import Crew
from fastrl.workers.rollout import RolloutStart
import cloudpickle
from fastrl.envs import registered
crew = Crew()
config = TrainConfig(env="envpool:CartPole-v1", workers=1, seed=1)
start = RolloutStart(0, 0, config, cloudpickle.dumps(registered(config.env)), None)
crew.expect(crew.launch_rollout(start), "spec")
crew.launch_learner()
raise RuntimeError("main has a fault")
""",
        tmp_path,
    )
    assert script.finish() == 1, script.output
    assert "main has a fault" in script.output
    assert script.wait_until_alone(2.0) == {}
