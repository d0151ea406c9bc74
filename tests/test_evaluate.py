"""Playing a checkpoint: which episodes count, what they returned, and what is played at all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fastrl import checkpoint
from fastrl.config import TrainConfig
from fastrl.config_file import dump_config
from fastrl.envs import ActionSpec, EnvOptions, EnvSpec, ObservationSpec, StepOut, describe
from fastrl.errors import ConfigError
from fastrl.evaluate import _play, evaluate, load_policy
from fastrl.models.config import ModelConfig
from fastrl.models.policy import ActorCritic

CARTPOLE = "envpool:CartPole-v1"
INDEX, EPISODE, RESET = range(3)


class Scripted:
    """Episode e of environment i has ``length(i, e)`` steps; step s of it pays ``100 e + s``.

    The reward of a reset row is 0. Where ``late(i, e)``, the last step is a lost life (terminated,
    not over) and the episode is over in the reset row after it. Observation: (i, e, reset row
    next).
    """

    spec = EnvSpec(
        "test:scripted",
        {"obs": ObservationSpec((3,), "float32", "vector")},
        {"action": ActionSpec("discrete", (), "int32", "int32", n=1000)},
        1,
        None,
    )

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.episode = [0] * num_envs
        self.at = [0] * num_envs
        self.ended = [False] * num_envs
        self.calls = 0
        self.actions: list[np.ndarray] = []

    @staticmethod
    def length(i: int, e: int) -> int:
        return 1 + (3 * i + 2 * e) % 5

    @staticmethod
    def late(i: int, e: int) -> bool:
        return (i + e) % 3 == 0

    @classmethod
    def true_episode(cls, i: int, e: int) -> tuple[float, int]:
        n = cls.length(i, e)
        return 100.0 * e * n + n * (n - 1) / 2, n

    def observe(self, obs) -> None:
        for i in range(self.num_envs):
            obs["obs"][i] = (i, self.episode[i], self.ended[i])

    def reset(self, obs, stagger_steps=None, rngs=None, action_mask=None):
        assert stagger_steps is None, "evaluation does not stagger"
        self.observe(obs)
        return np.zeros(self.num_envs), np.zeros(self.num_envs, int)

    def step(self, action, out: StepOut) -> None:
        self.actions.append(action["action"].copy())
        for i in range(self.num_envs):
            out.reward[i] = 0
            out.terminated[i] = out.truncated[i] = out.episode_over[i] = False
            e = self.episode[i]
            if self.ended[i]:
                out.episode_over[i] = self.late(i, e)
                self.episode[i], self.at[i], self.ended[i] = e + 1, 0, False
                continue
            out.reward[i] = 100 * e + self.at[i]
            self.at[i] += 1
            if self.at[i] == self.length(i, e):
                self.ended[i] = True
                done = out.truncated if (i + e) % 2 and not self.late(i, e) else out.terminated
                done[i] = True
                out.episode_over[i] = not self.late(i, e)
        self.observe(out.obs)

    def close(self) -> None:
        pass


class FakePolicy:
    """Takes the observation's environment as its action, and keeps what it was given."""

    noise_dims = {"action": 2}  # noqa: RUF012

    def __init__(self) -> None:
        self.obs: list[np.ndarray] = []
        self.noise: list[dict[str, torch.Tensor] | None] = []

    def act(self, obs, noise, action_mask):
        self.obs.append(obs["obs"].numpy().copy())
        self.noise.append(noise)
        action = obs["obs"][:, INDEX].int()
        return {"action": action}, torch.zeros(len(action)), torch.zeros(len(action))


@pytest.mark.parametrize("quota", [[1], [1, 1, 1], [4, 3, 3], [7] * 4 + [6] * 12])
def test_the_first_episodes_of_each_environment_count_whole(quota):
    env, policy = Scripted(len(quota)), FakePolicy()
    records = _play(policy, env, np.array(quota), seed=3, greedy=False)
    assert records == [
        [Scripted.true_episode(i, e) for e in range(wanted)] for i, wanted in enumerate(quota)
    ]
    # The policy saw what the environment showed, and the environment did what the policy chose.
    assert {tuple(row) for row in policy.obs[0]} == {(i, 0, 0) for i in range(len(quota))}
    assert all((actions == np.arange(len(quota))).all() for actions in env.actions)
    # It stopped at the step in which the last of them ended.
    steps = [
        sum(Scripted.length(i, e) + 1 for e in range(wanted)) - (not Scripted.late(i, wanted - 1))
        for i, wanted in enumerate(quota)
    ]
    assert len(env.actions) == max(steps)


def test_sampled_actions_get_noise_of_their_own_and_greedy_ones_none():
    def noise_of(seed: int) -> torch.Tensor:
        policy = FakePolicy()
        _play(policy, Scripted(3), np.array([4, 4, 4]), seed, greedy=False)
        return torch.stack([noise["action"] for noise in policy.noise])

    noise = noise_of(5)
    assert noise.shape[1:] == (3, 2)
    assert ((noise > 0) & (noise < 1)).all()
    assert len(noise.unique()) == noise.numel(), "each step, environment and dimension its own"
    assert torch.equal(noise, noise_of(5))
    assert not torch.equal(noise, noise_of(6))
    policy = FakePolicy()
    _play(policy, Scripted(3), np.array([4, 4, 4]), seed=5, greedy=True)
    assert set(policy.noise) == {None}


def cartpole_network(left: float) -> ActorCritic:
    """A policy that prefers pushing left by `left` in log-odds, whatever it sees."""
    spec = describe(CARTPOLE, EnvOptions())
    network = ActorCritic(spec, ModelConfig())
    head = network.policy_head["action"]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([left, 0.0]))
    return network


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "config.toml").write_text(dump_config(TrainConfig(env=CARTPOLE, dtype="f32")))
    return tmp_path


def save(run: Path, steps: int, left: float = 1e-3) -> Path:
    return checkpoint.save(run, steps, {"model": cartpole_network(left).state_dict()})


def test_an_even_policy_is_random_when_sampled_and_constant_when_greedy(run):
    path = save(run, 70)
    greedy = evaluate(run, episodes=100, seed=1, greedy=True)
    assert (greedy.path, greedy.steps, greedy.seed) == (path, 70, 1)
    # A pole that is pushed one way only has fallen after 8 to 11 steps.
    assert len(greedy.returns) == 100
    assert set(greedy.lengths) <= {8, 9, 10, 11}
    # CartPole pays 1 per step.
    assert (greedy.returns == greedy.lengths).all()
    sampled = evaluate(run, episodes=100, seed=1)
    assert sampled.lengths.mean() > 1.5 * greedy.lengths.mean()
    again, other = evaluate(run, episodes=100, seed=1), evaluate(run, episodes=100, seed=2)
    assert (sampled.returns == again.returns).all()
    assert (sampled.returns != other.returns).any()
    assert (
        f"seed 1: 100 episodes, sampled actions\nreturn mean {sampled.returns.mean():.3f} ± "
        f"{sampled.margin():.3f} (95 %)" in again.describe()
    )
    assert "the most probable actions" in greedy.describe()


def test_the_margin_is_that_of_a_normal_mean(run):
    save(run, 1)
    result = evaluate(run, episodes=100, seed=1)
    error = result.returns.std(ddof=1) / 10
    assert result.margin() == pytest.approx(1.96 * error, rel=1e-4)
    assert result.margin(0.999) == pytest.approx(3.29 * error, rel=1e-3)
    assert math.isnan(evaluate(run, episodes=1, seed=1).margin())
    assert result.as_json()["returns"] == result.returns.tolist()


@pytest.mark.parametrize("episodes", [1, 3, 128, 131])
def test_as_many_episodes_as_were_asked_for(run, episodes):
    save(run, 1)
    result = evaluate(run, episodes, seed=1, greedy=True)
    assert len(result.returns) == len(result.lengths) == episodes
    # In the order of (environment, episode): environment 0 plays the same ones in each case.
    assert result.returns[0] == evaluate(run, 1, seed=1, greedy=True).returns[0]


def test_no_episode_is_refused(run):
    save(run, 1)
    with pytest.raises(ConfigError, match=r"--episodes is 0; it must be at least 1\."):
        evaluate(run, episodes=0)


def test_the_callers_threads_are_as_they_were(run):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with pytest.raises(ConfigError, match="has no checkpoint yet"):
            evaluate(run, 1)
        assert torch.get_num_threads() == 3
        save(run, 1)
        evaluate(run, 1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_checkpoint_gives_way_to_the_one_before(run, capsys):
    oldest, middle, newest = save(run, 1, left=-1.0), save(run, 2), save(run, 3)
    assert load_policy(run)[3:] == (newest, 3)
    assert capsys.readouterr() == ("", "")
    cut(newest)
    policy, *_, path, steps = load_policy(run)
    assert (path, steps) == (middle, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{newest} is not a readable checkpoint: ")
    assert line.endswith(f" {middle} is used instead.")
    checkpoint.save(run, 2, {"seed": 1})
    policy, *_, path, steps = load_policy(run)
    assert (path, steps) == (oldest, 1)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(str(newest)) and first.endswith(f" {oldest} is used instead.")
    assert second == f"{middle} has no 'model'. {oldest} is used instead."
    # Its weights and no mixture: the oldest alone prefers pushing right.
    actions, _, _ = policy.act({"obs": torch.zeros(1, 4)}, None)
    assert actions["action"].tolist() == [1]
    assert evaluate(run, 1, seed=1).path == oldest


def test_where_none_can_be_read_the_newest_is_named(run, capsys):
    for steps in (1, 2):
        cut(save(run, steps))
    newest = checkpoint.checkpoint_path(run, 2)
    with pytest.raises(ConfigError, match=f"^{newest} is not a readable checkpoint: .* no older"):
        load_policy(run)
    assert capsys.readouterr() == ("", "")


def test_a_network_of_another_size_is_one_sentence(run):
    network = ActorCritic(describe(CARTPOLE, EnvOptions()), ModelConfig(hidden=(8,)))
    path = checkpoint.save(run, 5, {"model": network.state_dict()})
    with pytest.raises(ConfigError) as caught:
        load_policy(run)
    assert str(caught.value).startswith(f"{path} does not fit the network of {CARTPOLE}: ")
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run's folder: it has no config\.toml\."):
        load_policy(tmp_path)


def test_an_episode_that_never_ends_is_a_sentence_and_no_silence(monkeypatch, run):
    save(run, 1)
    monkeypatch.setattr("fastrl.evaluate.EPISODE_LIMIT", 5)  # no CartPole falls over so soon
    with pytest.raises(ConfigError, match="has not ended after 5 steps"):
        evaluate(run, episodes=2, seed=1)


def test_one_that_has_played_its_episodes_may_go_on_as_it_likes(monkeypatch):
    class Endless(Scripted):
        @staticmethod
        def length(i, e):
            return 10**6 if (i, e) == (0, 1) else 8

        @staticmethod
        def late(i, e):
            return False

    monkeypatch.setattr("fastrl.evaluate.EPISODE_LIMIT", 10)
    records = _play(FakePolicy(), Endless(2), np.array([1, 3]), seed=3, greedy=False)
    assert [[length for _, length in done] for done in records] == [[8], [8, 8, 8]]
    with pytest.raises(ConfigError, match="has not ended after 10 steps"):
        _play(FakePolicy(), Endless(2), np.array([2, 3]), seed=3, greedy=False)


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused_by_its_flag(run, seed):
    save(run, 1)
    with pytest.raises(ConfigError, match=f"--seed is {seed}"):
        evaluate(run, episodes=2, seed=seed)
