import json

import numpy as np
import pytest
from curve import first_reached, main, read_curve, smooth, table

from fastrl.config import TrainConfig
from fastrl.config_file import dump_config


def write_run(folder, returns, seed=1):
    """A run with a record every 2 s and 1,000 steps; None is a record without episodes."""
    folder.mkdir()
    (folder / "config.toml").write_text(dump_config(TrainConfig(env="atari:Pong", seed=seed)))
    records = []
    for number, value in enumerate(returns, 1):
        record = {"steps": 1000 * number, "seconds": 2.0 * number}
        records.append(record if value is None else record | {"charts/episodic_return": value})
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("window", [1, 2, 3, 10])
def test_smoothing_is_the_mean_of_the_last_records(window):
    returns = np.random.default_rng(0).normal(size=8)
    expected = [np.mean(returns[max(0, i + 1 - window) : i + 1]) for i in range(8)]
    np.testing.assert_allclose(smooth(returns, window), expected)


def test_a_threshold_takes_a_full_window():
    returns = np.array([9.0, 1.0, 2.0, 6.0, 8.0])
    assert first_reached(returns, 1, 5.0) == 0
    # Means of two: 5, 1.5, 4, 7.
    assert first_reached(returns, 2, 5.0) == 1
    assert first_reached(returns, 2, 5.5) == 4
    assert first_reached(returns, 2, 7.5) is None
    assert first_reached(returns, 6, 0.0) is None


def test_records_without_episodes_are_passed_over(tmp_path):
    curve = read_curve(write_run(tmp_path / "run", [None, 1.0, None, 3.0], seed=4))
    assert curve.steps.tolist() == [2000, 4000]
    assert curve.seconds.tolist() == [4.0, 8.0]
    assert curve.returns.tolist() == [1.0, 3.0]
    assert curve.label == "atari:Pong, seed 4"


def test_picture_table_and_json(tmp_path, capsys):
    good = write_run(tmp_path / "good", np.linspace(-21, 21, 40).tolist(), seed=1)
    bad = write_run(tmp_path / "bad", [-21.0] * 3, seed=2)
    out, report = tmp_path / "curve.png", tmp_path / "curve.json"
    arguments = [str(good), str(bad), "--out", str(out), "--json", str(report)]
    assert main([*arguments, "--threshold", "-15", "--window", "5"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    first, second = json.loads(report.read_text())["runs"]
    # -21 + i·42/39, of which the mean of five is the middle one: i = 6 is the first over -15.
    assert (first["steps_to_threshold"], first["seconds_to_threshold"]) == (9000, 18.0)
    assert first["last_return"] == pytest.approx(21 - 2 * 42 / 39)
    assert second["steps_to_threshold"] is None and second["best_return"] is None
    text = capsys.readouterr().out
    assert "means of 5 records" in text and "-15" in text and "9,000" in text


def test_columns_are_aligned():
    lines = table(
        [{"run": "a", "steps": 5, "return": None}, {"run": "bcd", "steps": 1000, "return": 2.5}]
    )
    assert lines == ["run  steps  return", "a        5       -", "bcd  1,000    2.50"]


def test_what_is_no_run_is_refused(tmp_path, capsys):
    out = str(tmp_path / "curve.png")
    assert main([str(tmp_path / "none"), "--out", out]) == 2
    assert "config.toml" in capsys.readouterr().err
    assert main([str(write_run(tmp_path / "young", [None])), "--out", out]) == 2
    assert "no finished episode" in capsys.readouterr().err
