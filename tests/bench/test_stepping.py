"""Environments as pieces of work: rows, steps, and the processes that measure them."""

from __future__ import annotations

import pytest
from outputs import check_spread, interrupt, run_bench

from fastrl.bench import envs
from fastrl.bench.envs import Rates, Stepped, choose, report_of
from fastrl.bench.options import EnvsOptions
from fastrl.bench.report import Spread
from fastrl.bench.stepping import adapter_work, raw_backend, raw_work
from fastrl.bench.synthetic_rows import OBSERVATIONS
from fastrl.bench.team import Pace, Team, pace
from fastrl.envs import ActionSpec, EnvSpec, FunctionEnvs, register_family
from fastrl.envs.options import EnvOptions
from fastrl.errors import ConfigError

CARTPOLE = "envpool:CartPole-v1"


class EndsEverySecondStep:
    """An episode has two steps; the row after it is a reset row."""

    def __init__(self, num_envs):
        move = ActionSpec("discrete", (), "int32", "int32", n=2)
        self.spec = EnvSpec("two", {"obs": OBSERVATIONS["vector"]}, {"action": move}, 1, None)
        self.num_envs = num_envs
        self.rows = 0

    def reset(self, obs, stagger_steps=None, rngs=None, action_mask=None):
        pass

    def step(self, action, out):
        self.rows += 1
        out.terminated[...] = self.rows % 3 == 2
        out.truncated[...] = False

    def close(self):
        pass


def test_only_steps_that_had_effect_are_counted():
    two = FunctionEnvs(
        lambda env_id, options: EndsEverySecondStep(1).spec,
        lambda env_id, options, num_envs, first, seed: EndsEverySecondStep(num_envs),
    )
    register_family("two", two)
    work = adapter_work("two:two", EnvOptions(), num_envs=5, seed=1)
    assert [work() for _ in range(7)] == [5, 5, 0, 5, 5, 0, 5]


@pytest.mark.parametrize("env_id", [CARTPOLE, "gym:CartPole-v1"])
def test_the_backend_by_itself_counts_as_the_adapter_does(env_id):
    # Every episode ends at its third step, so every fourth row only resets.
    options = EnvOptions(max_episode_steps=3)
    raw = raw_work(env_id, options, num_envs=2, threads=1, seed=1)
    adapter = adapter_work(env_id, options, num_envs=2, seed=1)
    rows = [(raw(), adapter()) for _ in range(8)]
    assert rows == [(2, 2), (2, 2), (2, 2), (0, 0)] * 2


def test_actions_are_chosen_among_those_that_masks_allow():
    # An action that Game2048 does not allow would end its episode at once.
    work = adapter_work("envpool:Game2048-v1", EnvOptions(), num_envs=3, seed=1)
    assert all(work() == 3 for _ in range(20))


@pytest.mark.parametrize(
    ("env_id", "options", "backend"),
    [
        (CARTPOLE, EnvOptions(), "envpool"),
        (CARTPOLE, EnvOptions(action_repeat=2), None),
        ("envpool:Game2048-v1", EnvOptions(), None),
        ("gym:CartPole-v1", EnvOptions(), "gymnasium"),
        ("gym:CartPole-v1", EnvOptions(vector_entry_point=True), None),
    ],
)
def test_what_can_be_stepped_without_the_adapter(env_id, options, backend):
    assert raw_backend(env_id, options) == backend


def test_a_pace_is_pieces_and_steps_per_second():
    turns = iter([3, 5, 7, 9])
    found = pace(lambda: next(turns), seconds=0.0, at_least=3)
    assert found.steps / found.pieces == pytest.approx((3 + 5 + 7) / 3)
    assert next(turns) == 9


def broken(copy):
    raise ConfigError(f"copy {copy} is broken")


def dying(copy):
    raise SystemExit(3)


@pytest.mark.slow
def test_what_fails_in_a_process_is_told():
    with pytest.raises(ConfigError, match="copy 0 is broken"):
        Team(broken, cores=1, threads=1, warm_up=0.0)
    with pytest.raises(RuntimeError, match=r"has died \(exit code 3\)"):
        Team(dying, cores=1, threads=1, warm_up=0.0)
    with pytest.raises(ValueError, match="2 threads do not fit on 1 cores"):
        Team(broken, cores=1, threads=2, warm_up=0.0)


# --- fastrl-bench envs ----------------------------------------------------------------------------


def test_every_size_is_tried_on_every_side_there_is():
    assert choose("envpool", [8, 1, 8], cores=2) == [
        Stepped(side, size) for size in (1, 8) for side in ("backend", "pool", "adapter")
    ]
    assert {stepped.side for stepped in choose("envpool", [1], cores=1)} == {"backend", "adapter"}
    assert {stepped.side for stepped in choose("gymnasium", [1], 2)} == {"backend", "adapter"}
    assert {stepped.side for stepped in choose(None, [1], 2)} == {"adapter"}


def test_rows_are_those_of_all_environments(monkeypatch):
    class Made:
        """A team whose every process does 10 pieces and 1 step a second."""

        def __init__(self, build, cores, threads, warm_up):
            self.copies, self.threads = cores // threads, threads

        def rates(self, at, seconds):
            return [Pace(10.0, 1.0)] * self.copies

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(envs, "Team", Made)
    tried = choose("envpool", [8], cores=4)
    options = EnvsOptions(env=CARTPOLE, repeats=2)
    rates = envs.measure(options, EnvOptions(), tried, cores=4, seed=1)
    # 8 environments on each of 4 cores either way: 4 processes, or one pool of 32.
    assert rates[Stepped("backend", 8)].rows == Spread(320.0, 320.0, 320.0, 2)
    assert rates[Stepped("adapter", 8)].rows.median == 320.0
    assert rates[Stepped("pool", 8)].rows.median == 320.0
    assert rates[Stepped("adapter", 8)].steps.median == 4.0


def test_the_report_compares_adapter_and_backend():
    def rate(rows):
        return Rates(Spread.of([rows]), Spread.of([rows / 2]))

    rates = {
        Stepped("backend", 4): rate(1000.0),
        Stepped("pool", 4): rate(1500.0),
        Stepped("adapter", 4): rate(800.0),
    }
    options = EnvsOptions(env=CARTPOLE, sizes=(4,))
    report = report_of(options, "envpool", rates, {"cpu": "x", "cores": 2, "load": 0.0})
    text = "\n".join(report.lines())
    for words in ("0.800", "adapter / envpool", "envpool, 1 x 2 threads", "only reset"):
        assert words in text
    assert report.values["largest_raw_rows_per_second"] == 1500.0
    alone = {Stepped("adapter", 4): rate(800.0)}
    report = report_of(options, None, alone, {"cpu": "x", "cores": 2, "load": 0.0})
    assert report.values["largest_raw_rows_per_second"] is None
    assert "adapter /" not in "\n".join(report.lines())


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    flags = ["--env", CARTPOLE, "--sizes", "2", "--seconds", "0.05", "--repeats", "2"]
    # Every fourth row only resets.
    engine = ["--", "--max-episode-steps", "3"]
    values = run_bench(tmp_path, "envs", *flags, *engine)
    assert values["command"].endswith("-- --max-episode-steps 3")
    assert values["backend"] == "envpool"
    for rate in values["rates"]:
        share = rate["steps_per_second"]["median"] / rate["rows_per_second"]["median"]
        assert share == pytest.approx(0.75, abs=0.05)
        check_spread(rate["rows_per_second"], 2)
    assert "Rows per second" in capsys.readouterr().out


def test_an_interrupted_bench_leaves_no_process():
    arguments = ("envs", "--env", CARTPOLE, "--sizes=2", "--seconds=100")
    assert interrupt(2, *arguments) == (130, set())
