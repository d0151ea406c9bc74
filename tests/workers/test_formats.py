"""The compute format: the cheaper one, tried once and remembered."""

from __future__ import annotations

import json

import pytest

from fastrl.config import TrainConfig
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.resolve import resolve
from fastrl.workers import formats

ACTION = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
SPEC = EnvSpec(
    "x:y", {"obs": ObservationSpec((4,), "float32", "vector", None)}, {"action": ACTION}, 1, None
)


def config_of(**options) -> TrainConfig:
    return resolve(TrainConfig(env="x:y", seed=1, **options), SPEC, 2, bf16_cpu=True)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "home" / "formats.json"


@pytest.mark.parametrize("bf16, chosen", [(0.5, "bf16"), (0.95, "f32"), (2.0, "f32")])
def test_the_cheaper_format_is_chosen_once_and_remembered(cache, monkeypatch, bf16, chosen):
    tried = []

    def cost(spec, config, dtype):
        tried.append(dtype)
        return {"f32": 1.0, "bf16": bf16}[dtype]

    monkeypatch.setattr(formats, "_cost", cost)
    for _ in range(2):
        assert formats.choose_dtype(SPEC, config_of(), cache) == chosen
    assert tried == ["f32", "bf16"]
    assert list(json.loads(cache.read_text()).values()) == [chosen]
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    # Another network is another question.
    formats.choose_dtype(SPEC, config_of(hidden=(8,)), cache)
    assert len(tried) == 4


def test_a_measurement_is_made_of_passes_in_both_formats(cache, monkeypatch):
    costs = []
    cost = formats._cost
    monkeypatch.setattr(formats, "_cost", lambda *args: costs.append(cost(*args)) or costs[-1])
    assert formats.choose_dtype(SPEC, config_of(), cache) in ("f32", "bf16")
    assert len(costs) == 2 and min(costs) > 0


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"x"', "\x00"])
def test_a_cache_that_is_none_is_written_anew(cache, monkeypatch, text):
    cache.parent.mkdir()
    cache.write_text(text)
    monkeypatch.setattr(formats, "_cost", lambda spec, config, dtype: 1.0)
    assert formats.choose_dtype(SPEC, config_of(), cache) == "f32"
    assert list(json.loads(cache.read_text()).values()) == ["f32"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(formats, "_cost", lambda spec, config, dtype: 1.0)
    assert formats.choose_dtype(SPEC, config_of(), tmp_path / "file" / "formats.json") == "f32"


def test_a_model_that_bf16_cannot_compute_is_trained_in_f32(cache, monkeypatch):
    def cost(spec, config, dtype):
        if dtype == "bf16":
            raise RuntimeError("not implemented for 'BFloat16'")
        return 1.0

    monkeypatch.setattr(formats, "_cost", cost)
    assert formats.choose_dtype(SPEC, config_of(), cache) == "f32"
