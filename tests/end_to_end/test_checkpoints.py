"""What a run leaves in its folder of checkpoints, and what it says and does where it cannot.

From outside where the claim is about processes and exit codes; in this process (`workers=0`) where
it is about what a checkpoint holds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import HANG, TINY, Command

import fastrl
from fastrl import TrainConfig, checkpoint

torch.set_num_threads(1)

CARTPOLE = ["--env", "envpool:CartPole-v1", "--run-dir", "run"]
SMALL = {
    "env": "envpool:CartPole-v1", "workers": 0, "envs_per_worker": 16, "rollout_length": 8,
    "seed": 4, "log_every": "2u", "save_every": "4u",
}  # fmt: skip


def train(run: Path, **options) -> Path:
    assert fastrl.train(TrainConfig(**{**SMALL, "run_dir": run, **options})) == 0
    return run


def load_newest(run: Path) -> dict:
    return checkpoint.load(checkpoint.find_checkpoints(run)[-1])


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def damage(path: Path) -> Path:
    """Flip one bit in the middle of a file, in place."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    return path


@pytest.mark.slow
def test_the_newest_milestones_and_the_best_are_left_and_can_be_played(tmp_path):
    # In sync, where the learner waits for main's score before it saves.
    command = Command(
        *CARTPOLE, *TINY[:-2], "--mode", "sync", "--log-every", "5u", "--save-every", "5u",
        "--keep", "2", "--milestone-every", "3000", "--total-steps", "10000", cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    run = tmp_path / "run"
    saved = [int(n) for n in re.findall(r"saved run/checkpoints/step_(\d{12})\.pt", command.output)]
    assert len(saved) > 8 and saved == sorted(saved)
    # Milestones lie where the number of whole multiples changes.
    milestones, before = [], 0
    for steps in saved:
        if steps // 3000 > before:
            milestones.append(steps)
        before = steps // 3000
    assert len(milestones) == 3
    newest = sorted(set(saved))[-2:]
    assert names(run) == sorted(
        ["best.pt"]
        + [f"milestone_{steps:012d}.pt" for steps in milestones]
        + [f"step_{steps:012d}.pt" for steps in newest]
    )
    best, last = checkpoint.load(checkpoint.best_path(run)), load_newest(run)
    assert best["steps"] in saved and best["score"] == last["best_score"] >= last["score"] > 0
    assert records(run)[-1]["steps"] == last["steps"] == saved[-1]
    assert last["episodes"] >= 100
    milestone = checkpoint.milestone_path(run, milestones[0])
    for which, steps in [
        ("best", best["steps"]),
        ("newest", saved[-1]),
        (str(milestone.relative_to(tmp_path)), milestones[0]),
    ]:
        play = Command(
            "run", "--episodes", "2", "--checkpoint", which, program="fastrl-eval", cwd=tmp_path
        )  # fmt: skip
        assert play.finish() == 0, play.output
        assert f"({steps:,} steps)" in play.output
    damage(milestone)
    play = Command("run", "--checkpoint", str(milestone), program="fastrl-eval", cwd=tmp_path)
    assert play.finish() == 2 and f"{milestone} is not a readable checkpoint" in play.output


def test_a_resumed_run_counts_on_and_saves_at_the_same_numbers(tmp_path):
    run = train(tmp_path / "run", total_steps=2200, keep=50)
    first = load_newest(run)
    assert first["updates"] % 4, "the last one was taken at the end"
    assert fastrl.train(TrainConfig(run_dir=run, resume="must", total_steps=5000)) == 0
    last = load_newest(run)
    updates = {checkpoint.load(path)["updates"] for path in checkpoint.find_checkpoints(run)}
    ends = {first["updates"], last["updates"]}
    assert {update for update in updates if update % 4} <= ends
    assert updates >= set(range(4, last["updates"] + 1, 4))
    counts = [line["charts/episodes"] for line in records(run) if "charts/episodes" in line]
    assert counts == sorted(counts) and counts[-1] == last["episodes"] > first["episodes"] > 0
    mark = next(i for i, line in enumerate(records(run)) if line.get("resumed"))
    after = [line["charts/episodes"] for line in records(run)[mark:] if "charts/episodes" in line]
    assert after[0] > first["episodes"]


@pytest.mark.slow
def test_a_worse_checkpoint_never_takes_the_place_of_the_best(tmp_path):
    run = train(tmp_path / "run", total_steps=4000, max_episode_steps=20)
    best = checkpoint.best_path(run)
    highest = checkpoint.load(best)["score"]
    assert highest is not None
    # One that no later one can beat.
    state = {k: v for k, v in checkpoint.load(best).items() if k not in ("format", "steps")}
    path = checkpoint.save(tmp_path / "run", 1, {**state, "score": 501.0})
    os.replace(path, best)
    content = best.read_bytes()
    resume = {"run_dir": run, "resume": "must"}
    assert fastrl.train(TrainConfig(**resume, total_steps=8000)) == 0
    assert load_newest(run)["score"] is not None
    assert load_newest(run)["best_score"] == 501.0
    assert best.read_bytes() == content
    damage(best)
    assert fastrl.train(TrainConfig(**resume, total_steps=12000)) == 0
    assert checkpoint.load(best)["score"] > 0, "a damaged one is replaced by the next"
    assert "best.unusable" in names(run)


@pytest.mark.parametrize("workers, how", [("0", "must"), ("1", "auto")])
@pytest.mark.slow
def test_a_damaged_newest_one_gives_way_to_the_one_before(tmp_path, workers, how):
    run = train(tmp_path / "run", total_steps=1400)
    *_, before, newest = checkpoint.find_checkpoints(run)
    damage(newest)
    steps = checkpoint.load(before)["steps"]
    command = Command(
        "--run-dir", "run", "--resume", how, "--workers", workers,
        "--total-steps", str(steps + 500), cwd=tmp_path,
    )  # fmt: skip
    assert command.finish() == 0, command.output
    shown = f"run/checkpoints/{newest.name} is not a readable checkpoint: it is damaged"
    (line,) = [line for line in command.output.splitlines() if shown in line]
    assert line.endswith(f"run/checkpoints/{before.name} is used instead.")
    assert f"resumed after {steps:,} steps" in command.output


@pytest.mark.parametrize("workers, how", [("0", "auto"), ("1", "must"), ("1", "auto")])
@pytest.mark.slow
def test_a_run_without_one_that_can_be_loaded_is_refused_and_stays_as_it_is(tmp_path, workers, how):
    run = train(tmp_path / "run", total_steps=6000, milestone_every=2000)
    for path in checkpoint.find_checkpoints(run):
        damage(path)
    for path in checkpoint.find_checkpoints(run):
        if "damaged" not in refusal(path):  # two names of one file: the bit is back
            damage(path)
    assert len([name for name in names(run) if name.startswith(("best", "milestone"))]) >= 3
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    arguments = ["--run-dir", "run", "--resume", how, "--workers", workers]
    command = Command(*arguments, cwd=tmp_path)
    assert command.finish() == 2, command.output
    assert "is not a readable checkpoint: it is damaged" in command.output
    assert "There is no older checkpoint that can be used." in command.output
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    # Nor is it begun anew where the folder itself is no folder any more.
    (run / "checkpoints").rename(run / "elsewhere")
    (run / "checkpoints").touch()
    command = Command(*arguments, cwd=tmp_path)
    assert command.finish() == 2, command.output
    assert ("cannot be read" if how == "auto" else "checkpoint") in command.output
    assert command.wait_until_alone(2.0) == {}


def refusal(path: Path) -> str:
    try:
        checkpoint.load(path)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_folder_that_is_a_file_for_a_while_costs_only_the_checkpoints_of_that_time(tmp_path):
    command = Command(*CARTPOLE, *TINY, "--save-every", "10u", cwd=tmp_path)
    command.wait_for("saved")
    folder = tmp_path / "run" / "checkpoints"
    while not folder.is_file():  # a save that comes in between makes it anew
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.touch(exist_ok=False)
        except OSError:
            continue
    command.wait_for("no checkpoint could be written to run/checkpoints/")
    command.wait_for("steps/s")
    folder.unlink()
    command.wait_for("saved")
    command.process.send_signal(signal.SIGINT)
    assert command.finish() == 130, command.output
    assert "Traceback" not in command.output
    assert load_newest(tmp_path / "run")["steps"] > 0
    assert command.wait_until_alone(2.0) == {}


@pytest.mark.slow
def test_a_run_whose_folder_disappears_goes_on_and_fails_at_the_end(tmp_path):
    command = Command(*CARTPOLE, *TINY, "--save-every", "10u", cwd=tmp_path)
    command.wait_for("saved")
    (tmp_path / "run").rename(tmp_path / "gone")  # at once, whatever is being written
    command.wait_for("no checkpoint could be written to run/checkpoints/")
    command.wait_for("steps/s")
    command.wait_for("no checkpoint could be written to run/checkpoints/")
    command.process.send_signal(signal.SIGINT)
    assert command.finish() == 1, command.output
    assert "The last checkpoint could not be written: " in command.output
    assert not (tmp_path / "run").exists(), "who removed it does not find it again"
    assert load_newest(tmp_path / "gone")["steps"] > 0
    assert command.wait_until_alone(2.0) == {}


def in_own_mounts(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount, which nobody else sees; `train` stands for the command."""
    code = "import sys; from fastrl.cli import train_main; sys.exit(train_main())"
    define = f'train() {{ {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"; }}\n'
    call = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c"]
    try:
        probe = subprocess.run([*call, "mount -t tmpfs none /mnt"], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"unshare cannot be run here: {error}")
    if probe.returncode != 0:
        pytest.skip(f"this user may not mount in a namespace of its own: {probe.stderr}")
    return subprocess.run(
        [*call, define + script], cwd=cwd, capture_output=True, text=True, timeout=HANG
    )


MANY = shlex.join([*CARTPOLE, *TINY, "--save-every", "5u", "--total-steps", "6000", "--keep", "99"])


@pytest.mark.slow
def test_a_full_disk_keeps_what_was_saved_and_training_goes_on(tmp_path):
    (tmp_path / "run").mkdir()
    done = in_own_mounts(
        f"""
mount -t tmpfs -o size=600k none run
code=0
train {MANY} --resume auto || code=$?
cp -r run copy
exit $code
""",
        tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    output = done.stdout
    assert "[Errno 28] No space left on device" in output
    assert "The last checkpoint could not be written: [Errno 28]" in output
    assert "the learner has finished" not in output
    trained, masked = re.search(r"([\d,]+) trained, ([\d,]+) masked", output).groups()
    assert int(trained.replace(",", "")) + int(masked.replace(",", "")) >= 6000, "to the end"
    found = checkpoint.find_checkpoints(tmp_path / "copy")
    assert [path.name for path in found] == names(tmp_path / "copy"), "nothing half written is left"
    assert len(found) >= 2
    for path in found:
        assert path.name == "best.pt" or f"saved run/checkpoints/{path.name}" in output
        checkpoint.load(path)


@pytest.mark.slow
def test_a_read_only_folder_is_told_and_training_goes_on(tmp_path):
    done = in_own_mounts(
        f"""
train {MANY} --total-steps 20000 &
until ls run/checkpoints/step_*.pt; do sleep 0.05; done
mount --bind run/checkpoints run/checkpoints
mount -o remount,bind,ro run/checkpoints
code=0
wait $! || code=$?
exit $code
""",
        tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = re.findall(r"no checkpoint could be written to .*Read-only file system", done.stdout)
    assert len(told) >= 2, "it went on after the first"
    assert "The last checkpoint could not be written: [Errno 30]" in done.stdout
    assert load_newest(tmp_path / "run")["steps"] < 20000
