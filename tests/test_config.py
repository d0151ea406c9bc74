"""Options: presets fill what is unset, and what is wrong is one sentence that names it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from fastrl.config import (
    SECTIONS,
    TrainConfig,
    check,
    field_names,
    log_interval,
    save_interval,
)
from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError
from fastrl.option_docs import option_docs
from fastrl.preset import load_preset, preset_names
from fastrl.resolve import resolve


def spec(kind: str, shape=(4, 84, 84)) -> EnvSpec:
    shape, dtype = (shape, "uint8") if kind == "image" else ((4,), "float32")
    action = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
    observation = ObservationSpec(shape, dtype, kind, None)
    return EnvSpec("x:y", {"obs": observation}, {"action": action}, 1, None)


def test_every_option_is_in_exactly_one_section_and_documented():
    names = field_names()
    assert len(names) == len(set(names))
    assert set(names) == {field.name for field in dataclasses.fields(TrainConfig)}
    for section in SECTIONS.values():
        docs = option_docs(section)
        assert list(docs) == [field.name for field in dataclasses.fields(section)]
        assert all(doc and "\n" not in doc for doc in docs.values())


@pytest.mark.parametrize(
    "env, observation, preset, reward_clip",
    [
        ("atari:Pong", spec("image"), "atari", "sign"),
        ("ale:pong", spec("image"), "atari", "sign"),
        ("x:y", spec("image"), "image", "off"),
        ("x:y", spec("image", (3, 7, 7)), "vector", "off"),
        ("x:y", spec("vector"), "vector", "off"),
        ("atari:Pong", spec("vector"), "vector", "off"),
        ("gym:CartPole-v1", spec("vector"), "classic-control", "off"),
        ("envpool:Acrobot-v1", spec("vector"), "classic-control", "off"),
        ("gym:Pendulum-v1", spec("vector"), "pendulum", "off"),
        ("envpool:LunarLander-v2", spec("vector"), "box2d", "off"),
        ("gym:LunarLanderContinuous-v3", spec("vector"), "box2d", "off"),
        ("envpool:HalfCheetah-v4", spec("vector"), "mujoco", "off"),
        ("gym:Humanoid-v5", spec("vector"), "mujoco", "off"),
        ("gym:Humanoid-v5", spec("image"), "image", "off"),
    ],
)
def test_the_preset_follows_the_environment_and_what_it_shows(
    env, observation, preset, reward_clip
):
    config = resolve(TrainConfig(env=env, seed=1), observation, cores=4, bf16_cpu=False)
    assert config.reward_clip == reward_clip
    assert (config.preset, config.dtype, config.workers) == (preset, "f32", 4)
    assert config.envs_per_worker == load_preset(preset).num_envs / 4
    unset = {name for name in field_names() if getattr(config, name) is None}
    falls = {"entropy_final", "barrier_final", "target_kl_final", "anneal_steps"}
    assert unset | falls | {"cnn_activation", "initial_std"} == {
        "stop_at_return", "run_dir", "init_from", "max_episode_steps", "frame_stack",
        "separate_critic", "channels", "initial_std", "image_features", "env_timeout",
        "milestone_every", "eval_every", "entropy_final", "eval_episodes", "anneal_steps",
        "cnn_activation", "target_kl_final", "barrier_final",
    }  # fmt: skip


def test_no_bf16_without_the_instructions():
    config = TrainConfig(env="x:y", seed=1)
    assert resolve(config, spec("image"), cores=4, bf16_cpu=False).dtype == "f32"


@pytest.mark.parametrize("preset", preset_names())
def test_presets_name_existing_options_and_the_user_wins(preset):
    values = load_preset(preset).options
    check(TrainConfig(env="x:y", **values))
    config = resolve(TrainConfig(env="x:y", seed=1, preset=preset), spec("vector"), 2, False)
    # The number of minibatches is adapted to the number of columns.
    assert all(getattr(config, n) == v for n, v in values.items() if n != "minibatches")
    mine = dataclasses.replace(TrainConfig(env="x:y", seed=1, preset=preset), learning_rate=0.125)
    assert resolve(mine, spec("vector"), 2, False).learning_rate == 0.125


def test_what_falls_in_the_preset_falls_unless_its_start_is_named():
    def falls(**mine):
        config = TrainConfig(env="x:y", seed=1, preset="atari", **mine)
        now = resolve(config, spec("image"), 2, False)
        return now.entropy_coef, now.entropy_final, now.target_kl, now.target_kl_final

    def barrier(**mine):
        config = TrainConfig(env="x:y", seed=1, preset="atari", **mine)
        now = resolve(config, spec("image"), 2, False)
        return now.barrier_coef, now.barrier_final

    assert falls() == falls(anneal_steps=10**6) == (0.01, 0.001, 0.02, 0.01)
    assert falls(entropy_final=0.0) == (0.01, 0.0, 0.02, 0.01)
    assert falls(entropy_coef=0.0) == (0.0, None, 0.02, 0.01), "it would rise to 0.001"
    assert falls(entropy_coef=0.02, entropy_final=0.01) == (0.02, 0.01, 0.02, 0.01)
    assert falls(target_kl=0.003) == (0.01, 0.001, 0.003, None)
    assert barrier() == barrier(entropy_coef=0.0) == (0.02, 0.002)
    assert barrier(barrier_coef=0.01) == (0.01, None)
    assert barrier(barrier_final=0.0) == (0.02, 0.0)
    neither = TrainConfig(
        env="x:y", seed=1, preset="atari", entropy_coef=0.0, barrier_coef=0.0, target_kl=0.01
    )
    assert resolve(neither, spec("image"), 2, False).anneal_steps is None
    with pytest.raises(ConfigError, match="--anneal-steps means nothing without --entropy-final"):
        resolve(dataclasses.replace(neither, anneal_steps=5), spec("image"), 2, False)


def test_a_barrier_is_for_discrete_actions():
    bounds = {"low": (-1.0,), "high": (1.0,)}
    action = ActionSpec("continuous", (1,), "float32", "float32", **bounds)
    continuous = dataclasses.replace(spec("vector"), action={"action": action})
    with pytest.raises(ConfigError, match=r"--barrier-coef is 0.01, but .* continuous"):
        resolve(TrainConfig(env="x:y", seed=1, barrier_coef=0.01), continuous, 2, False)
    off = TrainConfig(env="x:y", seed=1, barrier_coef=0.0)
    assert resolve(off, continuous, 2, False).barrier_coef == 0.0
    of_preset = TrainConfig(env="x:y", seed=1, preset="atari")
    assert resolve(of_preset, continuous, 2, False).barrier_coef == 0.02, "of no effect, no error"


@pytest.mark.parametrize(
    "workers, groups, envs_per_worker",
    [(1, 2, 128), (64, 2, 2), (100, 2, 2), (3, 2, 44), (2, 3, 66), (500, 2, 2)],
)
def test_the_default_environments_are_spread_evenly(workers, groups, envs_per_worker):
    config = TrainConfig(env="x:y", seed=1, workers=workers, groups_per_worker=groups)
    assert resolve(config, spec("vector"), 2, False).envs_per_worker == envs_per_worker


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("cores", [1, 2, 3, 5, 6, 7, 12, 13, 20, 24, 32, 48, 64, 96, 255])
def test_on_any_number_of_cores_a_batch_is_about_as_large_and_cut_as_the_preset_says(preset, cores):
    config = resolve(TrainConfig(env="x:y", seed=1, preset=preset), spec("vector"), cores, False)
    thought_of, cuts = load_preset(preset).num_envs, load_preset(preset).options["minibatches"]
    assert thought_of <= config.workers * config.envs_per_worker <= 1.25 * thought_of
    assert config.minibatches == cuts
    assert config.batch_size == config.workers * config.envs_per_worker * config.rollout_length
    assert min(cores, 32) * 2 / 3 <= config.workers <= cores
    mine = TrainConfig(env="x:y", seed=1, preset=preset, envs_per_worker=8)
    assert resolve(mine, spec("vector"), cores, False).workers == cores


def test_environments_are_spread_so_that_the_users_minibatches_fit_where_they_can():
    def envs(**mine):
        config = TrainConfig(env="x:y", seed=1, preset="atari", **mine)
        resolved = resolve(config, spec("image"), 6, False)
        return resolved.workers, resolved.envs_per_worker

    assert envs(minibatches=5) == (5, 14)
    assert envs(workers=3) == (3, 24), "72 columns are cut in 8, 66 would not be"
    assert envs(workers=3, minibatches=3) == (3, 22)
    assert envs(batch_size=64 * 6) == (6, 12)
    with pytest.raises(ConfigError, match="--minibatches 7 does not divide the 66 columns"):
        envs(workers=3, minibatches=7)


def test_a_batch_is_one_slot_of_every_group_and_is_cut_into_whole_columns():
    config = TrainConfig(env="x:y", seed=1, workers=3, envs_per_worker=2, preset="atari")
    resolved = resolve(config, spec("image"), 2, False)
    assert resolved.batch_size == 3 * 2 * 64
    assert resolved.minibatches == 6, "the preset's 8 do not divide 6 columns"
    with pytest.raises(ConfigError, match="--minibatches 4 does not divide the 6 columns"):
        resolve(dataclasses.replace(config, minibatches=4), spec("image"), 2, False)
    with pytest.raises(ConfigError, match="--batch-size 100 is not a multiple of 64"):
        resolve(dataclasses.replace(config, batch_size=100), spec("image"), 2, False)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"workers": -1}, "--workers is -1; it must be at least 0"),
        ({"workers": True}, "--workers is True; it must be a whole number or 'auto'"),
        ({"total_steps": 0}, "--total-steps is 0"),
        ({"learning_rate": -1.0}, "--learning-rate is -1.0"),
        ({"clip": 0.0}, "--clip is 0.0; it must be more than 0"),
        ({"max_grad_norm": float("inf")}, "--max-grad-norm is inf"),
        ({"c_bar": 2.0}, "--c-bar 2.0 is larger than --rho-bar 1.0"),
        (
            {"envs_per_worker": 3, "groups_per_worker": 2},
            "--envs-per-worker 3 is not a multiple of --groups-per-worker 2",
        ),
        ({"stop_at_return": float("nan")}, "--stop-at-return is nan"),
        ({"device": "gpu"}, "--device is 'gpu'"),
        ({"preset": "atri"}, "no preset 'atri'; there are: atari"),
        ({"lr_schedule": "cosine"}, "--lr-schedule is 'cosine'"),
        ({"save_every": "0s"}, "--save-every is '0s'"),
        (
            {"save_every": "0.5s"},
            "--save-every is '0.5s'; it must be a number of seconds, at least",
        ),
        ({"save_every": "0.5u"}, "--save-every is '0.5u'"),
        ({"save_every": "1.5u"}, "--save-every is '1.5u'"),
        ({"save_every": "infs"}, "--save-every is 'infs'"),
        ({"seed": 2**31}, "--seed is 2147483648"),
        ({"hidden": (0,)}, "--hidden is (0,); it must name one or more positive layer sizes"),
        ({"hidden": ()}, "--hidden is ()"),
        ({"activation": "gelu"}, "--activation is 'gelu'; it must be 'tanh' or 'relu' or 'elu'"),
        ({"noop_max": 0}, "--noop-max is 0; it must be 1 to"),
        ({"frame_skip": 0}, "--frame-skip is 0; it must be 1 to"),
        ({"frame_stack": -1}, "--frame-stack is -1; it must be 1 to"),
        ({"max_episode_steps": 0}, "--max-episode-steps is 0; it must be 1 to"),
        ({"max_episode_steps": 2**31}, "--max-episode-steps is 2147483648"),
        ({"sticky_actions": 1.0}, "--sticky-actions is 1.0; it must be a probability"),
        ({"sticky_actions": math.nan}, "--sticky-actions is nan"),
    ],
)
def test_wrong_values_are_refused_by_name(options, sentence):
    assert sentence in refusal(**options)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"env": 3}, "--env is 3; it must be a string."),
        ({"env": None}, "--env is not given; name an environment, such as --env atari:Pong"),
        ({"epochs": 1.5}, "--epochs is 1.5; it must be a whole number."),
        ({"epochs": "4"}, "--epochs is '4'; it must be a whole number."),
        ({"epochs": False}, "--epochs is False; it must be a whole number."),
        ({"rollout_length": 32.0}, "--rollout-length is 32.0; it must be a whole number."),
        ({"adam_eps": None}, "--adam-eps is None; it must be a number."),
        ({"gamma": "auto"}, "--gamma is 'auto'; it must be a number."),
        ({"gamma": True}, "--gamma is True; it must be a number."),
        ({"learning_rate": np.zeros(1)}, "--learning-rate is array([0.]); it must be a number."),
        ({"stop_at_return": 10**400}, "it must be a number."),
        ({"inference_wait": "soon"}, "--inference-wait is 'soon'; it must be a number or 'auto'."),
        ({"normalize_advantage": "yes"}, "--normalize-advantage is 'yes'; it must be true"),
        ({"separate_critic": 1}, "--separate-critic is 1; it must be true or false."),
        ({"initial_std": 0.0}, "--initial-std is 0.0; it must be at least 0.001 and at most"),
        ({"fire_reset": None}, "--fire-reset is None; it must be true or false."),
        ({"reward_clip": True}, "--reward-clip is True; it must be 'sign' or 'off' or a number."),
        ({"dtype": ["f32"]}, "--dtype is ['f32']; it must be 'f32' or 'bf16'."),
        ({"hidden": 64}, "--hidden is 64; it must be a list, each item a whole number."),
        ({"hidden": (64, 3.5)}, "--hidden is (64, 3.5); it must be a list, each item a whole"),
        ({"run_dir": 7}, "--run-dir is 7; it must be a path."),
        ({"run_dir": Path("a\udcff")}, "--run-dir is 'a\\udcff', which is no valid text (UTF-8)"),
        ({"env": "x:\ud800"}, "--env is 'x:\\ud800', which is no valid text (UTF-8)"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused_by_name(options, sentence):
    assert sentence in refusal(**options)


def refusal(**options) -> str:
    with pytest.raises(ConfigError) as caught:
        check(TrainConfig(**{"env": "x:y", **options}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_checked_configuration_has_the_declared_types():
    config = TrainConfig(
        env=np.str_("x:y"), run_dir="runs/x", hidden=[np.int64(32), 16], seed=np.uint8(3),
        gamma=np.float64(0.5), gae_lambda=1, fire_reset=np.bool_(False), inference_wait=2,
        workers=np.int32(2),
    )  # fmt: skip
    checked = check(config)
    expected = TrainConfig(
        env="x:y", run_dir=Path("runs/x"), hidden=(32, 16), seed=3,
        gamma=0.5, gae_lambda=1.0, fire_reset=False, inference_wait=2.0, workers=2,
    )  # fmt: skip
    assert checked == expected == check(expected)
    for name in field_names():
        value = getattr(checked, name)
        assert type(value) is type(getattr(expected, name)), name
    assert {type(width) for width in checked.hidden} == {int}


@pytest.mark.parametrize(
    "options, kind, bf16_cpu, dtype",
    [
        ({}, "image", True, None),
        ({}, "vector", True, None),
        ({}, "image", False, "f32"),
        ({"mode": "sync"}, "image", True, "f32"),
        ({"dtype": "bf16"}, "image", False, "bf16"),
        ({"device": "cuda"}, "image", False, "bf16"),
        ({"device": "cuda"}, "vector", True, "f32"),
    ],
)
def test_the_format_is_left_to_a_measurement_where_there_is_a_choice(
    options, kind, bf16_cpu, dtype
):
    config = TrainConfig(env="x:y", seed=1, **options)
    assert resolve(config, spec(kind), 2, bf16_cpu).dtype == dtype


@pytest.mark.parametrize(
    "workers, envs, mode, groups",
    [
        (4, None, "async", 2), (5, None, "async", 1), (64, 4, "async", 1), (64, 4, "sync", 2),
        (1, 3, "async", 1),
    ],
)  # fmt: skip
def test_many_workers_have_one_group_each(workers, envs, mode, groups):
    """On 2 cores: beyond two workers per core another one steps while a group waits."""
    config = TrainConfig(env="x:y", seed=1, workers=workers, envs_per_worker=envs, mode=mode)
    resolved = resolve(config, spec("vector"), 2, False)
    assert resolved.groups_per_worker == groups
    assert resolved.envs_per_worker % groups == 0


def test_what_is_unset_stays_unset():
    assert check(TrainConfig(env="x:y")) == TrainConfig(env="x:y")


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"batch_size": 100}, "--batch-size 100 is not a multiple of 24, the steps of one slot"),
        ({"batch_size": 12}, "--batch-size 12 is not a multiple of 24"),
        ({"batch_size": 48, "minibatches": 4}, "--minibatches 4 does not divide the 6 columns"),
    ],
)
def test_sizes_that_are_all_given_are_refused_before_the_spaces_are_known(options, sentence):
    sizes = {"workers": 2, "groups_per_worker": 2, "envs_per_worker": 6, "rollout_length": 8}
    assert sentence in refusal(**sizes, **options)
    config = TrainConfig(env="x:y", seed=1, **sizes, **options)
    with pytest.raises(ConfigError, match=sentence):
        resolve(config, spec("vector"), cores=2, bf16_cpu=False)
    check(TrainConfig(env="x:y", **sizes, batch_size=48, minibatches=3))


@pytest.mark.parametrize(
    "text, expected",
    [("300s", (300.0, "s")), ("10u", (10.0, "u")), ("1.5s", (1.5, "s")), ("1u", (1.0, "u"))],
)
def test_save_intervals(text, expected):
    assert save_interval(text) == expected


@pytest.mark.parametrize(
    "value, expected",
    [
        (5, (5.0, "s")),
        (0.1, (0.1, "s")),
        ("5", (5.0, "s")),
        ("0.5s", (0.5, "s")),
        ("10u", (10, "u")),
    ],
)
def test_log_intervals(value, expected):
    assert log_interval(value) == expected


@pytest.mark.parametrize("value", [0, 0.01, "0.5u", "0u", "-1s", "nan", "soon", "", "5m"])
def test_other_log_intervals_are_refused(value):
    assert "it must be a number of seconds, at least 0.1" in refusal(log_every=value)


@pytest.mark.parametrize("options", [{"mode": "sync"}, {"workers": 0}])
def test_in_sync_the_number_of_environments_does_not_depend_on_the_machine(options):
    for cores in (1, 2, 3, 5, 96):
        config = TrainConfig(env="x:y", seed=1, **options)
        config = resolve(config, spec("image"), cores=cores, bf16_cpu=True)
        assert max(1, config.workers) * config.envs_per_worker == load_preset("image").num_envs
        assert (config.mode, config.dtype, config.log_every) == ("sync", "f32", "10u")
        assert config.workers <= cores
    with pytest.raises(ConfigError, match="--workers 3 x --groups-per-worker 2 do not divide"):
        config = TrainConfig(env="x:y", seed=1, mode="sync", workers=3)
        resolve(config, spec("vector"), cores=4, bf16_cpu=True)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"workers": 0, "mode": "async"}, "--workers 0 runs everything in one process, so --mode"),
        ({"algorithm": "ppo", "mode": "async"}, "--algorithm ppo has no correction for policy lag"),
        ({"algorithm": "ppo", "targets": "minibatch"},
         "--targets is minibatch, but --algorithm ppo computes them once per batch"),
        ({"algorithm": "impala", "targets": "batch"},
         "--targets is batch, but --algorithm impala computes them once per minibatch"),
        ({"algorithm": "a2c"}, "--algorithm is 'a2c'; it must be 'appo' or 'impala' or 'ppo'"),
        ({"eval_every": 0}, "--eval-every is 0; it must be at least 1"),
        ({"eval_episodes": 5}, "--eval-episodes means nothing without --eval-every"),
        ({"mode": "sync", "log_every": 5.0}, "--log-every is 5.0 in sync mode"),
        ({"mode": "sync", "inference_wait": 3.0}, "--inference-wait is 3.0, but in sync mode"),
        ({"workers": 0, "log_every": "5s"}, "--log-every is 5s in sync mode"),
        ({"mode": "sync", "workers": 2, "envs_per_worker": 6, "rollout_length": 8,
          "batch_size": 48}, "--batch-size is 48, but in sync mode a batch is one rollout"),
    ],
)  # fmt: skip
def test_what_sync_cannot_keep_its_promise_with_is_refused(options, sentence):
    assert sentence in refusal(**options)


@pytest.mark.parametrize("env, of_appo", [("atari:Pong", "batch"), ("x:y", "minibatch")])
def test_when_targets_are_computed_is_appos_choice_alone(env, of_appo):
    chosen = {}
    observation = spec("image" if env.startswith("atari") else "vector")
    for algorithm in ("appo", "impala", "ppo"):
        config = TrainConfig(env=env, seed=1, algorithm=algorithm)
        chosen[algorithm] = resolve(config, observation, cores=2, bf16_cpu=False).targets
    assert chosen == {"appo": of_appo, "impala": "minibatch", "ppo": "batch"}


def test_the_lag_that_is_trained_on_is_counted_in_batches():
    sizes = {"workers": 2, "envs_per_worker": 6, "rollout_length": 8, "minibatches": 3, "epochs": 5}
    for publish, lag in (("batch", 8), ("step", 8 * 15)):
        config = TrainConfig(env="x:y", seed=1, publish=publish, **sizes)
        assert resolve(config, spec("vector"), cores=2, bf16_cpu=False).max_policy_lag == lag
