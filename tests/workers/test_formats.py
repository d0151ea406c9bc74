"""The compute format: the cheaper one, tried once and remembered."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fastrl.config import TrainConfig
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.models.registry import register_model
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

    def costs(spec, config):
        tried.append(config)
        return {"f32": 1.0, "bf16": bf16}

    monkeypatch.setattr(formats, "_costs", costs)
    for _ in range(2):
        assert formats.choose_dtype(SPEC, config_of(), cache) == chosen
    assert len(tried) == 1
    assert list(json.loads(cache.read_text()).values()) == [chosen]
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    # Another network is another question.
    formats.choose_dtype(SPEC, config_of(hidden=(8,)), cache)
    assert len(tried) == 2


def test_a_measurement_is_made_of_passes_in_both_formats(cache):
    costs = formats._costs(SPEC, config_of())
    assert set(costs) == {"f32", "bf16"} and 0 < min(costs.values()) < max(costs.values()) < 1e-3


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"x"', "\x00"])
def test_a_cache_that_is_none_is_written_anew(cache, monkeypatch, text):
    cache.parent.mkdir()
    cache.write_text(text)
    monkeypatch.setattr(formats, "_costs", lambda spec, config: {"f32": 1.0, "bf16": 1.0})
    assert formats.choose_dtype(SPEC, config_of(), cache) == "f32"
    assert list(json.loads(cache.read_text()).values()) == ["f32"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(formats, "_costs", lambda spec, config: {"f32": 1.0, "bf16": 1.0})
    assert formats.choose_dtype(SPEC, config_of(), tmp_path / "file" / "formats.json") == "f32"


class OnlyExact(torch.nn.Module):
    """A model of the user's own that insists on f32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        assert x.dtype == torch.float32
        return self.linear(x)


def test_a_model_that_bf16_cannot_compute_is_trained_in_f32_and_tried_each_time(cache):
    register_model("only_exact", lambda spec: OnlyExact())
    config = config_of(model="only_exact")
    assert formats._costs(SPEC, config)["bf16"] == math.inf
    assert formats.choose_dtype(SPEC, config, cache) == "f32"
    assert not cache.exists(), "its name says nothing of what it is tomorrow"


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(formats.Path, "home", no_home)
    monkeypatch.setattr(formats, "_costs", lambda spec, config: {"f32": 1.0, "bf16": 0.5})
    assert formats.choose_dtype(SPEC, config_of()) == "bf16"
