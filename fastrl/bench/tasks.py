"""The tasks of `fastrl-bench learn`: what is trained with its preset, and what it must reach."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A point of a curve that others have published."""

    steps: int
    value: float
    source: str


@dataclass(frozen=True)
class Task:
    """One environment and its threshold."""

    name: str
    env: str
    threshold: float | None
    """Mean raw return of the last 100 episodes while training, as `--stop-at-return` counts it;
    None: the task is a curve of `max_steps`, to lie beside a published one."""
    seconds: float
    """From the command's start to the threshold, at most; without one, to the last step."""
    max_steps: int
    """Of a run that does not reach it."""
    marks: tuple[float, ...] = ()
    """Lower returns whose time is told as well."""
    flags: tuple[str, ...] = ()
    """Of fastrl-train, beside those that say what is trained and for how long."""
    goal: float | None = None
    """What `--stop-at-return` is given where that is more than the threshold. A run stops at the
    first hundred episodes that reach its goal, good luck among them: near the best that can be
    reached, a policy that stops at the threshold is as likely worse than it as better."""
    published: tuple[Published, ...] = ()

    @property
    def stop_at(self) -> float | None:
        """The return at which a run ends."""
        return self.threshold if self.goal is None else self.goal

    @property
    def least_evaluation(self) -> float:
        """What the final checkpoint must reach in fresh episodes: 95 % of the threshold."""
        if self.threshold is None:
            return -math.inf
        return self.threshold - 0.05 * abs(self.threshold)


_SCHULMAN = "Schulman et al. 2017 (arXiv:1707.06347), table 6, mean of the last 100 episodes"
_TIANSHOU = (
    "Tianshou's PPO, mean of its test episodes over its seeds (github.com/thu-ml/tianshou, "
    "examples/atari/benchmark/{}NoFrameskip-v4/result.json)"
)
_SB3_CHEETAH = (
    "Stable-Baselines3's PPO of RL Zoo on HalfCheetah-v3, deterministic actions "
    "(huggingface.co/sb3/ppo-HalfCheetah-v3)"
)

TASKS = {
    task.name: task
    for task in (
        Task("cartpole", "envpool:CartPole-v1", 475, 20, 2_000_000, (195, 400)),
        Task("acrobot", "envpool:Acrobot-v1", -90, 60, 5_000_000, (-200, -100, -90), goal=-87),
        Task(
            "lunarlander", "envpool:LunarLander-v2", 200, 240, 20_000_000, (0, 100, 200), goal=220
        ),
        Task("pendulum", "envpool:Pendulum-v1", -250, 180, 10_000_000, (-800, -250), goal=-190),
        Task(
            "minigrid", "envpool:MiniGrid-Empty-5x5-v0", 0.9, 120, 5_000_000, (0.5, 0.9), goal=0.93
        ),
        Task(
            *("halfcheetah", "envpool:HalfCheetah-v4", 3000, 720, 20_000_000, (1000, 2000)),
            published=(Published(1_000_000, 5836, _SB3_CHEETAH),),
        ),
        Task(
            *("pong", "atari:Pong", 18, 720, 1_000_000, (-10, 0, 10)),
            published=(
                Published(500_000, -9.6, _TIANSHOU.format("Pong")),
                Published(700_000, -4.4, _TIANSHOU.format("Pong")),
                Published(1_000_000, 5.7, _TIANSHOU.format("Pong")),
                Published(10_000_000, 20.7, _SCHULMAN),
            ),
        ),
        Task(
            *("breakout", "atari:Breakout", None, 2400, 1_500_000),
            published=(
                Published(500_000, 11.3, _TIANSHOU.format("Breakout")),
                Published(1_000_000, 17.0, _TIANSHOU.format("Breakout")),
                Published(1_500_000, 26.4, _TIANSHOU.format("Breakout")),
                Published(10_000_000, 274.8, _SCHULMAN),
            ),
        ),
    )
}
