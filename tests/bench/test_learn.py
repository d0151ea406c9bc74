"""`fastrl-bench learn`: what it refuses, what it says, and that the fast tasks are learned."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from outputs import refusal

from fastrl.bench import learn, learn_run
from fastrl.bench.curves import Curve
from fastrl.bench.engine_run import EngineFailed
from fastrl.bench.learn_run import Trained, command_of, training_of
from fastrl.bench.tasks import TASKS
from fastrl.cli import bench_main

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--tasks", "cartpol"], "--tasks: there is no task 'cartpol'; there are: cartpole,"),
        (["--seeds", "-1"], "--seeds is (-1,)"),
        (["--patience", "0"], "--patience is 0.0; it must be more than 0"),
        (["--beside", "nothing.json"], "--beside nothing.json is no file of curves"),
        (["--write", "/nowhere/page.md"], "--write /nowhere/page.md cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused(capsys, arguments, sentence):
    assert sentence in refusal(capsys, "learn", *arguments)


@pytest.mark.parametrize(
    "change", [{"made": {"date": "2021-03-04"}}, {"made": "x"}, {"runs": [{"seed": 1}]}]
)
def test_half_a_file_of_curves_is_refused_before_anything_is_trained(tmp_path, capsys, change):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"trainer": "x", "env": "y", "command": "z", "runs": []} | change))
    assert "is no file of curves" in refusal(capsys, "learn", "--beside", str(path))


def made_up(task, seed: int, goal: float | None, evaluation: float) -> Trained:
    curve = Curve(np.array([100.0, 200.0]), np.array([1.0, 2.0]), np.array([10.0, 480.0]))
    result = {"mean": evaluation, "margin_95": 1.5, "returns": [evaluation], "lengths": [1]}
    return Trained(seed, "fastrl-train x", curve, goal, 200, "stop_at_return", result)


@pytest.mark.parametrize(
    "goal, evaluation, code", [(12.0, 470.0, 0), (21.0, 470.0, 1), (None, 470.0, 1), (9.0, 440, 1)]
)
def test_a_seed_must_keep_all_that_its_task_asks_for(
    tmp_path, monkeypatch, capsys, goal, evaluation, code
):
    monkeypatch.setattr(
        learn,
        "train_task",
        lambda task, seed, patience, flags: made_up(task, seed, goal, evaluation),
    )
    beside = tmp_path / "other.json"
    curve = {"steps": [5, 50], "seconds": [3.0, 30.0], "returns": [0.0, 476.0]}
    other = {"trainer": "another", "env": "envpool:CartPole-v1", "command": "python other.py"}
    beside.write_text(json.dumps({**other, "runs": [{"seed": 4, "curve": curve}]}))
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    arguments = ["learn", "--tasks", "cartpole", "--seeds", "1", "2", "--patience", "1.5"]
    arguments += ["--beside", str(beside)]
    assert bench_main([*arguments, "--folder", str(folder), "--write", str(page)]) == code
    told = capsys.readouterr().out
    assert ("NOT KEPT" in told) == (code == 1)
    text = page.read_text()
    written = f"{shlex.join(arguments)} --folder {folder} --write {page}"
    assert f"`fastrl-bench {written}`" in text, "the command is shown as it was given"
    assert "![learning curves of cartpole](folder/cartpole.png)" in text
    assert "| another, seed 4 | 30.0 s, 50 | 30.0 s, 50 | 30.0 s, 50 |" in text
    assert (folder / "cartpole.png").read_bytes().startswith(b"\x89PNG")
    values = json.loads((folder / "cartpole.json").read_text())
    assert [run["kept"] for run in values["runs"]] == [code == 0] * 2
    assert values["runs"][0]["curve"]["returns"] == [10.0, 480.0]


@pytest.mark.parametrize("steps, code", [(1_500_000, 0), (900_000, 1)])
def test_a_task_without_a_threshold_is_a_curve_beside_published_points(
    tmp_path, monkeypatch, capsys, steps, code
):
    curve = Curve(
        np.array([4e5, 5e5, 6e5, steps]), np.array([1.0, 2, 3, 9]), np.array([8.0, 11, 12, 30])
    )
    result = {"mean": 31.0, "margin_95": 1.5, "returns": [31.0], "lengths": [1]}
    one = Trained(1, "fastrl-train x", curve, None, steps, "total_steps", result)
    monkeypatch.setattr(learn, "train_task", lambda *rest: one)
    arguments = ["learn", "--tasks", "breakout", "--seeds", "1", "--folder", str(tmp_path)]
    assert bench_main(arguments) == code
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = [line for line in lines if line[:3] == ["1", "9.0", f"{steps:,}"]]
    assert row[-1] == ("kept" if code == 0 else "KEPT")
    cells = [line[:3] for line in lines]
    assert ["500,000", "11.3", "11.0"] in cells
    end = "30.0" if code == 0 else "-"
    assert ["1,500,000", "26.4", end] in cells, "nothing where the run did not come"
    assert (tmp_path / "breakout.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_drawn_again_beside_others_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        learn, "train_task", lambda task, seed, patience, flags: made_up(task, seed, 12.0, 470.0)
    )
    folder, page = tmp_path / "folder", tmp_path / "page.md"
    made = ["learn", "--tasks", "cartpole", "--seeds", "5", "--folder", str(folder)]
    assert bench_main(made) == 0
    path = folder / "cartpole.json"
    before = json.loads(path.read_text())
    before["date"] = "2020-02-02"
    path.write_text(json.dumps(before))
    monkeypatch.delattr(learn, "train_task")
    beside = tmp_path / "other.json"
    curve = {"steps": [5, 50], "seconds": [3.0, 30.0], "returns": [0.0, 476.0]}
    other = {"trainer": "another", "env": "envpool:CartPole-v1", "command": "python other.py"}
    other["made"] = {"date": "2021-03-04", "cpu": "a chip", "cores": 3, "versions": {"x": "1.2"}}
    beside.write_text(json.dumps({**other, "runs": [{"seed": 4, "curve": curve}]}))
    again = ["learn", "--redraw", "--tasks", "cartpole", "--folder", str(folder)]
    assert bench_main([*again, "--beside", str(beside), "--write", str(page)]) == 0
    text = page.read_text()
    assert "- 2020-02-02, " in text and f"`fastrl-bench {shlex.join(made)}`" in text
    how = f"learn --tasks cartpole --beside {beside} --folder {folder} --redraw --write {page}"
    assert f"- drawn anew by `fastrl-bench {how}`" in text
    assert "| another, seed 4 | 30.0 s, 50 |" in text and "| 5 | 12.0 | 200 |" in text
    assert "a share of that of another**" in text and "| seed 5 | 0.07 | 0.07 | 0.07 |" in text
    assert "| another | python other.py | 2021-03-04, a chip, 3 cores; x 1.2 |" in text
    after = json.loads(path.read_text())
    assert [one["trainer"] for one in after.pop("beside")] == ["another"]
    assert before.pop("beside") == [] and after == before
    # What stands beside stays, where nothing is given in its place.
    assert bench_main(again) == 0
    assert [one["trainer"] for one in json.loads(path.read_text())["beside"]] == ["another"]
    assert "--redraw needs --folder" in refusal(capsys, "learn", "--redraw")
    for flags in (["--seeds", "1"], ["--patience", "3"], ["--", "--epochs", "1"]):
        assert "--redraw trains nothing; leave out" in refusal(capsys, *again, *flags)
    path.write_text("{}")
    assert "cartpole.json is no file of runs" in refusal(capsys, *again)


def test_seeds_of_an_earlier_command_stand_beside_those_of_a_later_one(
    tmp_path, monkeypatch, capsys
):
    def train(task, seed, patience, flags):
        one = made_up(task, seed, 12.0, 470.0)
        return dataclasses.replace(one, command=command_of(training_of(task, seed, flags)))

    monkeypatch.setattr(learn, "train_task", train)
    folder, page = tmp_path / "folder", tmp_path / "page.md"
    learn_it = ["learn", "--tasks", "cartpole", "--folder", str(folder), "--write", str(page)]
    assert bench_main([*learn_it, "--seeds", "5", "3"]) == 0
    path, earlier = folder / "cartpole.json", tmp_path / "earlier.json"
    earlier.write_text(path.read_text().replace('"load": ', '"load": 7'))
    more = [*learn_it, "--seeds", "4", "--add", str(earlier)]
    assert bench_main(more) == 0
    text = page.read_text()
    assert "- seeds 3, 5: `fastrl-bench learn --tasks cartpole --seeds 5 3 --folder" in text
    rows = [line for line in text.splitlines() if line.endswith("| kept |")]
    assert [row.split()[1] for row in rows] == ["3", "4", "5"]
    # A later drawing has them from the one file, whatever is added to it.
    earlier.unlink()
    two = tmp_path / "two.json"
    values = json.loads(path.read_text())
    values["runs"] = [
        dict(values["runs"][1], seed=8, command=train(TASKS["cartpole"], 8, 1, ()).command)
    ]
    two.write_text(json.dumps(values))
    redraw = ["learn", "--redraw", *learn_it[1:]]
    assert bench_main([*redraw, "--add", str(two)]) == 0
    runs = json.loads(path.read_text())["runs"]
    assert [(run["seed"], "made" in run) for run in runs] == [
        (3, True), (4, False), (5, True), (8, True),
    ]  # fmt: skip
    assert "- seed 8: `fastrl-bench learn" in page.read_text()
    assert bench_main(redraw) == 0
    assert json.loads(path.read_text())["runs"] == runs
    capsys.readouterr()
    # What cannot stand beside the others is refused before anything is trained.
    monkeypatch.delattr(learn, "train_task")
    refused = [
        ([*redraw, "--add", str(two)], "has seed 8, which is there already"),
        ([*learn_it, "--seeds", "8", "--add", str(two)], "has seed 8, which is there already"),
        ([*learn_it, "--add", str(two), str(two)], "has seed 8, which is there already"),
        ([*learn_it, "--add", str(two), "--", "--epochs", "1"], "has another training"),
        (["learn", "--tasks", "acrobot", "--add", str(two)], "which --tasks does not name"),
        ([*learn_it, "--add", str(page)], "page.md is no file of runs"),
    ]
    for flags, sentence in refused:
        assert sentence in refusal(capsys, *flags)
    for broken in ({"made": {}}, {"made": 3}, {"made": {**values, "machine": {}}}):
        two.write_text(json.dumps({**values, "runs": [{**values["runs"][0], **broken}]}))
        assert "is no file of runs" in refusal(capsys, *learn_it, "--add", str(two))


@pytest.mark.parametrize("task", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_every_result_that_is_kept_can_be_drawn_again(tmp_path, task):
    for path in RESULTS.glob(f"{task}.json"):
        (tmp_path / path.name).write_text(path.read_text())
    page = tmp_path / "results.md"
    flags = ["--tasks", task, "--folder", str(tmp_path), "--write", str(page)]
    code = bench_main(["learn", "--redraw", *flags])
    values = json.loads((tmp_path / f"{task}.json").read_text())
    assert values == json.loads((RESULTS / f"{task}.json").read_text())
    assert code == (0 if all(run["kept"] for run in values["runs"]) else 1)
    # The page that is kept says the same of it.
    shown = (RESULTS.parent / "results.md").read_text()
    for run in values["runs"]:
        assert f"| {run['seed']} | " in shown and f"{run['steps']:,}" in shown


def test_a_command_that_fails_ends_the_bench(monkeypatch, capsys):
    def fail(task, seed, patience, flags):
        raise EngineFailed("fastrl-train ended with code 1.")

    monkeypatch.setattr(learn, "train_task", fail)
    assert bench_main(["learn", "--tasks", "acrobot"]) == 1
    assert "fastrl-train ended with code 1." in capsys.readouterr().out


def test_a_goal_beyond_the_threshold_is_what_the_run_stops_at(tmp_path, monkeypatch, capsys):
    commands = []

    def fail(command):
        commands.append(command)
        raise EngineFailed("not started")

    monkeypatch.setattr(learn_run, "_Watch", fail)
    assert bench_main(["learn", "--tasks", "acrobot", "cartpole", "--seeds", "1"]) == 1
    goals = [command[command.index("--stop-at-return") + 1] for command in commands]
    assert goals == ["-87", "475"]
    # The time that counts is that of the goal.
    one = made_up(TASKS["acrobot"], 1, 61.0, -80.0)
    assert not one.reaches(TASKS["acrobot"])
    assert made_up(TASKS["acrobot"], 1, 59.0, -94.0).reaches(TASKS["acrobot"])


def test_the_evaluation_must_be_within_five_percent_of_the_threshold():
    assert TASKS["cartpole"].least_evaluation == pytest.approx(0.95 * 475)
    assert TASKS["acrobot"].least_evaluation == pytest.approx(-94.5)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("task", ["cartpole", "acrobot"])
def test_a_preset_learns(tmp_path, capsys, task):
    # A test says nothing about speed: that of a machine that others share least of all.
    flags = ["--tasks", task, "--seeds", "1", "--patience", "20", "--folder", str(tmp_path)]
    code = bench_main(["learn", *flags])
    values = json.loads((tmp_path / f"{task}.json").read_text())
    (run,) = values["runs"]
    assert run["stopped_by"] == "stop_at_return", capsys.readouterr().out
    # Not significantly less: a hundred episodes scatter.
    evaluation = run["evaluation"]
    assert evaluation["mean"] + evaluation["margin_95"] >= TASKS[task].least_evaluation
    assert code == (0 if run["kept"] else 1)
