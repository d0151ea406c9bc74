"""A run of the engine as a bench has it."""

from __future__ import annotations

import pytest
from outputs import interrupt

from fastrl.bench.engine_run import EngineFailed, run_engine, seconds_until_all_step


def test_the_log_says_when_all_workers_step():
    assert seconds_until_all_step("a plan\nall 64 workers step after 12.3 s\n") == 12.3
    assert seconds_until_all_step("the worker steps after 1.5 s\n") == 1.5
    assert seconds_until_all_step("interrupted\n") is None


@pytest.mark.slow
def test_the_end_of_a_run_that_fails_is_told():
    with pytest.raises(EngineFailed, match=r"code 2(.|\n)*There is no environment"):
        run_engine(["--env", "envpool:Nothing-v9"], warm_up=0.0, seconds=1.0)


@pytest.mark.slow
def test_an_interrupted_bench_leaves_nothing_of_the_engine():
    flags = ("--env=envpool:CartPole-v1", "--envs=2", "--workers=1", "--warm-up=100")
    # fastrl-train, its forkserver, its learner, its inference, its worker.
    assert interrupt(5, "scale", *flags) == (130, set())
