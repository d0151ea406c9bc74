import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

# The programs of this folder import each other as scripts do.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "peers"))
import venvs
from catalogue import FASTRL, FASTRL_FLAGS, PEERS, TOKEN, WORKS, environment_of, peer
from compare import Options, Trainer, choose, main, ratio_of, report_of, result_stem, tables
from peer_run import PeerFailed, PeerRun, end_all, result_of, run_peer, with_token
from plain_runner import WORKS as PLAIN_WORKS
from plain_runner import Work, advantages_of, train
from runner_lines import INTERVAL, Progress
from venvs import VenvFailed, ensure, is_current, stamp_of

from fastrl.bench.command import plan
from fastrl.bench.records import Rate, read_records
from fastrl.errors import ConfigError


def run_of(rate):
    return PeerRun(Rate(rate, rate, rate, rate, 6), 128, {"torch": "1"})


def trainers(ours, theirs):
    return [
        Trainer(FASTRL, "fastrl", "", ours),
        Trainer("other", "other trainer", "another network", theirs),
    ]


def lines_of(made):
    return "\n".join(line for table in made for line in table.lines())


# --- lines of a runner ----------------------------------------------------------------------------


def test_a_runner_tells_its_facts_then_its_steps(tmp_path, monkeypatch):
    now = iter([100.0, 101.0, 101.1, 102.0, 103.5])
    monkeypatch.setattr("runner_lines.time.perf_counter", lambda: next(now))
    progress = Progress(tmp_path, 2.0, 4, 128, ["numpy"])
    told = [progress.told(steps) for steps in (10, 20, 20, 30)]
    # The time begins with the first steps.
    assert told == [False, False, False, True]
    facts, *records = read_records(tmp_path)
    assert facts["frames_per_step"] == 4 and facts["environments"] == 128
    assert facts["versions"].keys() == {"numpy"} and facts["steps"] == 0
    # 101.1 lies less than INTERVAL after 101, and at 102 nothing had grown.
    assert INTERVAL > 0.1
    assert [(r["steps"], r["seconds"]) for r in records] == [(10, 1.0), (30, 3.5)]


def test_the_rate_is_the_slope_after_the_warm_up():
    facts = {"steps": 0, "seconds": 0.0, "environments": 8, "versions": {"torch": "1"}}
    # 10 steps/s for 20 s from second 5 on, then 1,000 steps/s.
    records = [{"steps": 10 * t, "seconds": 5.0 + t} for t in range(1, 21)]
    records += [{"steps": 200 + 1000 * t, "seconds": 25.0 + t} for t in range(1, 40)]
    run = result_of([facts, *records], warm_up=25.0, seconds=10.0)
    assert run.rate.mean == pytest.approx(1000.0)
    assert run.environments == 8 and run.versions == {"torch": "1"}
    assert result_of([facts, *records], 0.0, 15.0).rate.mean == pytest.approx(10.0)


# --- the run of a peer ----------------------------------------------------------------------------

RUNNER = """
import os, subprocess, sys, time
sys.path.insert(0, {folder!r})
from runner_lines import Progress, arguments
options = arguments(("pong", "cartpole"), "toy")
progress = Progress(options.folder, options.seconds, 1, 3, ())
steps = 0
{before}
while not progress.told(steps):
    steps += 50
    time.sleep(0.05)
{after}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    def make(before="", after=""):
        folder = str(Path(venvs.__file__).parent)
        text = RUNNER.format(folder=folder, before=before, after=after)
        (tmp_path / "toy_runner.py").write_text(text)
        monkeypatch.setattr("catalogue.HERE", tmp_path)
        return dataclasses.replace(PEERS[0], key="toy")

    return make


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")")[1].split()[0] != "Z"


def test_a_runner_is_measured_and_all_that_it_started_is_ended(toy, tmp_path):
    # A process in a session of its own, as some trainers start.
    note = tmp_path / "pid"
    before = (
        "p = subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))"
    )
    run = run_peer(Path(sys.executable), toy(before), "pong", 0.2, 2.0)
    assert 0 < run.rate.mean < 1010.0 and run.environments == 3
    pid = int(note.read_text())
    deadline = time.monotonic() + 10  # it was killed; the kernel may take a moment
    while (alive := lives(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive


def test_a_runner_that_fails_is_told_with_its_last_lines(toy):
    failing = toy(before="print('the reason'); sys.exit(3)")
    with pytest.raises(PeerFailed, match=r"code 3\.(.|\n)*the reason"):
        run_peer(Path(sys.executable), failing, "pong", 0.0, 1.0)


def test_a_runner_that_learns_nothing_is_ended(toy, monkeypatch):
    monkeypatch.setattr("peer_run.START_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(PeerFailed, match="Nothing was learned from"):
        run_peer(Path(sys.executable), toy(before="time.sleep(100)"), "pong", 0.0, 1.0)
    assert time.monotonic() - started < 60


def test_processes_are_known_by_their_token():
    process = subprocess.Popen(
        ["sleep", "100"], env=environment_of("a-token"), start_new_session=True
    )
    try:
        # Its environment is the new one once it has become sleep.
        deadline = time.monotonic() + 30
        while process.pid not in with_token("a-token") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert with_token("a-token") == [process.pid]
        assert with_token("a-toke") == []
    finally:
        end_all(process, "a-token")
    assert process.returncode == -signal.SIGTERM
    assert environment_of("x")[TOKEN] == "x"


# --- environments ---------------------------------------------------------------------------------


def test_a_stamp_is_what_an_environment_is_made_from():
    stamp = stamp_of("# why\nnumpy<2  # too\n\nray==1\n", "torch==2")
    assert stamp.splitlines()[1:] == ["torch==2", "numpy<2", "ray==1"]
    assert stamp == stamp_of("numpy<2\nray==1", "torch==2")
    assert stamp != stamp_of("numpy<2\nray==2", "torch==2")
    assert stamp != stamp_of("numpy<2\nray==1", "torch==3")


def test_an_environment_is_made_once_and_again_when_requirements_change(tmp_path, monkeypatch):
    done = []

    def pretend(command):
        done.append(command)
        (tmp_path / "venv").mkdir(exist_ok=True)

    monkeypatch.setattr(venvs, "_do", pretend)
    requirements = tmp_path / "peer.txt"
    requirements.write_text("one\n")
    folder = tmp_path / "venv"
    assert ensure(folder, requirements, "torch==2") == folder / "bin" / "python"
    assert len(done) == 3 and done[1][-1] == "torch==2"
    ensure(folder, requirements, "torch==2")
    assert len(done) == 3
    (folder / "left").touch()
    requirements.write_text("two\n")
    ensure(folder, requirements, "torch==2")
    assert len(done) == 6 and not (folder / "left").exists()


def test_an_environment_that_could_not_be_made_is_not_taken_for_one(tmp_path, monkeypatch):
    def refuse(command):
        raise VenvFailed("no")

    monkeypatch.setattr(venvs, "_do", refuse)
    requirements = tmp_path / "peer.txt"
    requirements.write_text("one\n")
    with pytest.raises(VenvFailed, match="no"):
        ensure(tmp_path / "venv", requirements, "torch")
    assert not is_current(tmp_path / "venv", stamp_of("one\n", "torch"))


def test_pip_speaks_through_the_error():
    with pytest.raises(VenvFailed, match=r"code 4\. Its last lines:\nsuch a pity"):
        venvs._do([sys.executable, "-c", "print('such a pity'); raise SystemExit(4)"])


# --- the table ------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_over_repetitions():
    ours, theirs = trainers(
        [run_of(100.0), run_of(300.0), run_of(80.0)], [run_of(50.0), run_of(100.0), run_of(80.0)]
    )
    ratio = ratio_of(ours, theirs)
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.0, 3.0)
    text = lines_of(tables("pong", [ours, theirs]))
    assert "2.00 (1.00 to 3.00)" in text
    assert "80 (50 to 100)" in text
    assert "other trainer (torch 1): another network" in text and "failures" not in text


def test_a_failure_is_in_the_table_with_its_lines():
    ours, theirs = trainers([run_of(100.0), run_of(100.0)], ["It ended.\nline 1\nline 2"] * 2)
    text = lines_of(tables("pong", [ours, theirs]))
    assert "failed" in text and "line 1" in text and "line 2" in text
    assert ratio_of(ours, theirs) is None and theirs.rate is None


def test_a_failure_among_others_leaves_them_their_ratio():
    ours, theirs = trainers([run_of(100.0), run_of(100.0)], ["It ended.", run_of(25.0)])
    text = lines_of(tables("pong", [ours, theirs]))
    assert "25, 1 failed" in text and "4.00" in text
    assert ratio_of(ours, theirs).count == 1


def test_the_report_is_json_and_png(tmp_path):
    options = Options("pong", seconds=5.0, flags=("--workers", "1"))
    machine = {"cpu": "A Processor (R) 9", "cores": 2, "load": 0.0}
    made = report_of(options, machine, ["--env", "x"], trainers([run_of(100.0)], ["It ended."]))
    made.deliver(tmp_path / "a.json", tmp_path / "a.png")
    read = json.loads((tmp_path / "a.json").read_text())
    expected = "python benchmarks/peers/compare.py pong --seconds 5.0 -- --workers 1"
    assert read["command"] == expected
    assert read["trainers"]["fastrl"]["steps_per_second"]["median"] == 100.0
    assert read["trainers"]["other"]["runs"] == [{"failed": "It ended."}]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert result_stem("pong", machine["cpu"]).endswith("-pong-a-processor-r-9")


def test_peers_that_there_are_not_are_refused(capsys):
    with pytest.raises(ConfigError, match="no peer 'nobody'"):
        choose(["plain", "nobody"])
    assert main(["pong", "--peers", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


@pytest.mark.parametrize("work", WORKS)
def test_every_peer_has_its_files_and_fastrl_its_flags(work):
    for one in PEERS:
        assert one.runner.is_file() and work in one.differs and peer(one.key) is one
        assert one.requirements.is_file() == one.own_environment
    config = plan([*FASTRL_FLAGS[work], "--seed", "1"]).config
    assert config.rollout_length == 32 and config.epochs == 1 and config.minibatches == 4


# --- the plain loop -------------------------------------------------------------------------------


def test_the_plain_loops_advantages_are_the_discounted_sum_of_errors():
    work = Work("", 2, False, 0.0, 0.0, num_steps=4, gamma=0.9, gae_lambda=0.7)
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(4, 2, generator=generator)
    values = torch.randn(5, 2, generator=generator)
    dones = torch.zeros(5, 2)
    dones[2, 1] = 1.0  # row 1 of the second environment ends an episode
    found = advantages_of(rewards, values, dones, work, out=torch.zeros(4, 2))
    for env in range(2):
        for t in range(4):
            expected, weight = 0.0, 1.0
            for k in range(t, 4):
                goes_on = 1.0 - dones[k + 1, env]
                error = rewards[k, env] + 0.9 * goes_on * values[k + 1, env] - values[k, env]
                expected += weight * error
                weight *= 0.9 * 0.7 * goes_on
            assert found[t, env] == pytest.approx(float(expected), abs=1e-5)


def test_the_plain_loop_trains_and_counts_no_resets(tmp_path):
    work = dataclasses.replace(PLAIN_WORKS["cartpole"], num_envs=8, num_steps=16)
    train(work, Progress(tmp_path, 2.0, 1, work.num_envs, ("envpool",)))
    records = read_records(tmp_path)
    steps = [record["steps"] for record in records]
    assert len(steps) > 3 and steps == sorted(steps) and steps[-1] > 0
    # Episodes of a beginner last some 20 steps, and the row after each of them resets.
    assert steps[1] < 8 * 16 or steps[-1] % (8 * 16) != 0
