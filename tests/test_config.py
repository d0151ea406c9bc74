"""Options: presets fill what is unset, files go there and back, what is wrong is one sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fastrl.config import (
    SECTIONS,
    TrainConfig,
    check,
    dump_config,
    field_names,
    flatten_toml,
    load_config,
    load_preset,
    preset_names,
    resolve,
    save_interval,
)
from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError


def spec(kind: str) -> EnvSpec:
    shape, dtype = ((4, 84, 84), "uint8") if kind == "image" else ((4,), "float32")
    action = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
    observation = ObservationSpec(shape, dtype, kind, None)
    return EnvSpec("x:y", {"obs": observation}, {"action": action}, 1, None)


def test_every_option_is_in_exactly_one_section_and_documented():
    names = field_names()
    assert len(names) == len(set(names))
    assert set(names) == {field.name for field in dataclasses.fields(TrainConfig)}
    for section in SECTIONS.values():
        lines = Path(__import__("inspect").getfile(section)).read_text().splitlines()
        for field in dataclasses.fields(section):
            at = next(i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: "))
            assert lines[at + 1].strip().startswith('"""'), field.name


@pytest.mark.parametrize(
    "kind, preset, dtype", [("image", "atari", "bf16"), ("vector", "vector", "f32")]
)
def test_the_preset_follows_the_kind_of_observation(kind, preset, dtype):
    config = resolve(TrainConfig(env="x:y", seed=1), spec(kind), cores=4, bf16_cpu=True)
    assert (config.preset, config.dtype, config.workers) == (preset, dtype, 4)
    assert config.envs_per_worker == 32, "128 environments over 4 workers"
    unset = [name for name in field_names() if getattr(config, name) is None]
    assert set(unset) == {"stop_at_return", "run_dir", "max_episode_steps", "separate_critic"}


def test_no_bf16_without_the_instructions():
    config = TrainConfig(env="x:y", seed=1)
    assert resolve(config, spec("image"), cores=4, bf16_cpu=False).dtype == "f32"


@pytest.mark.parametrize("preset", preset_names())
def test_presets_name_existing_options_and_the_user_wins(preset):
    values = load_preset(preset)
    config = resolve(TrainConfig(env="x:y", seed=1, preset=preset), spec("vector"), 2, False)
    # The number of minibatches is adapted to the number of columns.
    assert all(getattr(config, n) == v for n, v in values.items() if n != "minibatches")
    mine = dataclasses.replace(TrainConfig(env="x:y", seed=1, preset=preset), learning_rate=0.125)
    assert resolve(mine, spec("vector"), 2, False).learning_rate == 0.125


@pytest.mark.parametrize(
    "workers, groups, envs_per_worker",
    [(1, 2, 128), (64, 2, 2), (100, 2, 2), (3, 2, 44), (2, 3, 66), (500, 2, 2)],
)
def test_the_default_environments_are_spread_evenly(workers, groups, envs_per_worker):
    config = TrainConfig(env="x:y", seed=1, workers=workers, groups_per_worker=groups)
    assert resolve(config, spec("vector"), 2, False).envs_per_worker == envs_per_worker


def test_a_batch_is_one_slot_of_every_group_and_is_cut_into_whole_columns():
    config = TrainConfig(env="x:y", seed=1, workers=3, envs_per_worker=2, preset="atari")
    resolved = resolve(config, spec("image"), 2, False)
    assert resolved.batch_size == 3 * 2 * 32
    assert resolved.minibatches == 6, "the preset's 16 do not divide 6 columns"
    with pytest.raises(ConfigError, match="--minibatches 4 does not divide the 6 columns"):
        resolve(dataclasses.replace(config, minibatches=4), spec("image"), 2, False)
    with pytest.raises(ConfigError, match="--batch-size 100 is not a multiple of 32"):
        resolve(dataclasses.replace(config, batch_size=100), spec("image"), 2, False)


def test_a_configuration_goes_to_its_file_and_back(tmp_path):
    config = TrainConfig(
        env='envpool:quoted"\\name', seed=3, run_dir=Path("a b/ü"), hidden=(32, 16),
        stop_at_return=-1.5, separate_critic=True, normalize_advantage=False,
        inference_wait=2.5, save_every="10u",
    )  # fmt: skip
    resolved = resolve(config, spec("vector"), cores=2, bf16_cpu=False)
    path = tmp_path / "config.toml"
    path.write_text(dump_config(resolved), encoding="utf-8")
    assert load_config(path) == resolved


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[lern]\n", "no section \\[lern\\], perhaps you meant 'learn'"),
        ("[learn]\nepoch = 1\n", "no option 'epoch', perhaps you meant 'epochs'"),
        ("learn = 3\n", "no section \\[learn\\]"),
        ("[learn]\n", "no `env`"),
        ("[learn\n", "cannot be read"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = 1.5\n', "--gamma is 1.5; it must be at least 0"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = "high"\n', "--gamma is 'high'; it must be a number"),
        ('[run]\nenv = "x:y"\n[learn]\ngamma = nan\n', "--gamma is nan; it must be a number"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_one_sentence(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        load_config(path)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"workers": 0}, "--workers is 0; it must be at least 1"),
        ({"workers": True}, "--workers is True; it must be a number"),
        ({"total_steps": 0}, "--total-steps is 0"),
        ({"learning_rate": -1.0}, "--learning-rate is -1.0"),
        ({"clip": 0.0}, "--clip is 0.0; it must be more than 0"),
        ({"max_grad_norm": float("inf")}, "--max-grad-norm is inf"),
        ({"c_bar": 2.0}, "--c-bar 2.0 is larger than --rho-bar 1.0"),
        ({"envs_per_worker": 3}, "--envs-per-worker 3 is not a multiple of --groups-per-worker 2"),
        ({"stop_at_return": float("nan")}, "--stop-at-return is nan"),
        ({"device": "gpu"}, "--device is 'gpu'"),
        ({"preset": "atri"}, "no preset 'atri'; there are: atari"),
        ({"lr_schedule": "cosine"}, "--lr-schedule is 'cosine'"),
        ({"save_every": "0s"}, "--save-every is '0s'"),
        ({"seed": 2**31}, "--seed is 2147483648"),
    ],
)
def test_wrong_values_are_refused_by_name(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check(TrainConfig(env="x:y", **options))


@pytest.mark.parametrize(
    "text, expected", [("300s", (300.0, "s")), ("10u", (10.0, "u")), ("0.5s", (0.5, "s"))]
)
def test_save_intervals(text, expected):
    assert save_interval(text) == expected


def test_sections_without_a_file_need_no_order():
    assert flatten_toml({"learn": {"epochs": 2}, "run": {"env": "x:y"}}, "t") == {
        "epochs": 2,
        "env": "x:y",
    }
