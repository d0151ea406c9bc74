"""What the sanity suite trains, how little training it takes, and what must have come of it.

A check is one environment of `sanity_envs` with its options; `judge` compares what was trained with
the numbers that are known exactly. A tolerance is what training noise needs, and a part of what the
bug that is named would make of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastrl.bench import sanity_envs as envs
from fastrl.bench.trained import Trained
from fastrl.envs.seeding import env_seed


@dataclass(frozen=True)
class Claim:
    """A number that training must reach."""

    what: str
    must: float
    tolerance: float
    reached: float

    @property
    def spent(self) -> float:
        """Share of the tolerance that the result takes; over 1 is a failure."""
        share = abs(self.reached - self.must) / self.tolerance
        return share if np.isfinite(share) else np.inf

    @property
    def passed(self) -> bool:
        """Whether it was reached."""
        return self.spent <= 1.0

    def __str__(self) -> str:
        return f"{self.what} = {self.must:.3g} ± {self.tolerance:.2g}"


@dataclass(frozen=True)
class Check:
    """One environment, its training and its claims."""

    name: str
    env: type[envs.Small]
    catches: str
    """What would explain a failure."""
    judge: Callable[[Trained], list[Claim]]
    options: dict[str, Any]
    """Of `TrainConfig`."""
    env_args: Callable[[int], tuple[str, ...]] | None = None
    """Arguments of the environment, where they follow from the seed."""

    def options_for(self, seed: int) -> dict[str, Any]:
        """All options but the environment, the seed and the folder."""
        return self.options | ({} if self.env_args is None else {"env_args": self.env_args(seed)})


ONE_PROCESS: dict[str, Any] = {
    "workers": 0,
    "envs_per_worker": 16,
    "rollout_length": 16,
    "total_steps": 6_000,
    "stagger": 8,
    "minibatches": 1,
    "epochs": 4,
    "learning_rate": 1e-2,
    "gamma": 0.9,
    "hidden": (32,),
    "log_every": "5u",
}
"""A training of seconds."""

ENGINE = ONE_PROCESS | {"workers": 2, "envs_per_worker": 8, "mode": "async"}
"""The same through all processes of the engine."""


def _values(trained: Trained, expected: dict[Any, float], tolerance: float) -> list[Claim]:
    """A claim for the value of each observation: a number, or what the environment shows."""
    shown = [np.array([seen], np.float32) if isinstance(seen, float) else seen for seen in expected]
    reached = trained.values(shown)
    return [
        Claim(f"V({seen:g})", must, tolerance, float(value))
        for (seen, must), value in zip(expected.items(), reached, strict=True)
    ]


def _last_return(trained: Trained, must: float, tolerance: float) -> Claim:
    """What the acting copy got in the last quarter of the training. It may be wrong where the
    policy is right: whatever acts, importance weights let the learner learn from it."""
    last = trained.config.total_steps * 3 // 4
    reached = trained.mean_metric("charts/episodic_return", last)
    return Claim("return in training", must, tolerance, reached)


def _ratio_error(trained: Trained) -> Claim:
    """How far the learner's probabilities are from those that were acted by, before it changes
    them."""
    return Claim("lag/ratio_error", 0.0, 1e-3, trained.mean_metric("lag/ratio_error"))


def _constant_reward(trained: Trained) -> list[Claim]:
    return _values(trained, {0.0: 1 / (1 - trained.config.gamma)}, 0.2)


def _observed_reward(trained: Trained) -> list[Claim]:
    return _values(trained, {-1.0: -1.0, 1.0: 1.0}, 0.06)


def _two_steps(trained: Trained) -> list[Claim]:
    return _values(trained, {0.0: trained.config.gamma, 1.0: 1.0}, 0.04)


def _match(trained: Trained) -> list[Claim]:
    left, right = (np.array([sign], np.float32) for sign in (-1, 1))
    return [
        Claim("π(0 | -1)", 1.0, 0.05, trained.policy_at(left)[0]),
        Claim("π(1 | 1)", 1.0, 0.05, trained.policy_at(right)[1]),
        Claim("return", 1.0, 0.1, trained.mean_return(400)),
        _last_return(trained, 1.0, 0.1),
        *_values(trained, {-1.0: 1.0, 1.0: 1.0}, 0.1),
    ]


def _bandit(trained: Trained) -> list[Claim]:
    best = envs.Bandit.best_policy(trained.config.entropy_coef)
    reached = trained.policy_at(np.zeros(1, np.float32))
    return [
        *(Claim(f"π({arm})", best[arm], 0.06, reached[arm]) for arm in range(len(best))),
        *_values(trained, {0.0: float(np.dot(best, envs.Bandit.means()))}, 0.06),
    ]


def _must_mix(trained: Trained) -> list[Claim]:
    p = trained.policy_at(np.zeros(1, np.float32))[0]
    return [
        Claim("π(0)", 2 / 3, 0.08, p),
        *_values(trained, {0.0: envs.MustMix.expected_return(2 / 3)}, 0.06),
    ]


def _truncation(trained: Trained) -> list[Claim]:
    places = range(envs.Ring.PLACES)
    return _values(
        trained, {place: envs.Ring.value(place, trained.config.gamma) for place in places}, 0.05
    )


def _mask(trained: Trained) -> list[Claim]:
    seen = np.zeros(1, np.float32)
    return [
        Claim("π(2 | allowed)", 1.0, 0.05, trained.policy_at(seen, [True, True, True])[2]),
        Claim("π(0 | 2 forbidden)", 1.0, 0.05, trained.policy_at(seen, [True, True, False])[0]),
        Claim("return", 0.75, 0.08, trained.mean_return(400)),
        _last_return(trained, 0.75, 0.08),
        *_values(trained, {0.0: 0.75}, 0.06),
        _ratio_error(trained),
    ]


def _spaces(trained: Trained) -> list[Claim]:
    env = envs.Nested()
    seen = [env.reset(seed=seed)[0] for seed in range(32)]
    return [
        Claim("return", 1.0, 0.05, trained.mean_return(320)),
        Claim("mean V", 1.0, 0.05, float(trained.values(seen).mean())),
        _ratio_error(trained),
    ]


def _own_number(trained: Trained) -> list[Claim]:
    config = trained.config
    numbers = []
    for index in range(max(1, int(config.workers)) * config.envs_per_worker):
        seen, _ = envs.OwnNumber().reset(seed=env_seed(config.seed, index))
        numbers += [seen, -seen]
    must = np.concatenate(numbers) / (1 - config.gamma)
    worst = float(np.abs(trained.values(numbers) - must).max())
    return [Claim("greatest error of V", 0.0, 0.2, worst)]


def _flip(trained: Trained) -> list[Claim]:
    best = envs.Flip.best_policy(trained.config.entropy_coef)
    right = (envs.Flip.PHASES - 1) % 2
    after = trained.config.total_steps // envs.Flip.PHASES
    mean_return = trained.mean_metric("charts/episodic_return", after)
    # To follow fast its rate is high to the end, so the numbers sway. Late by a whole part they
    # have the opposite sign.
    return [
        Claim(f"π({right})", best, 0.25, trained.policy_at(np.zeros(1, np.float32))[right]),
        *_values(trained, {0.0: 2 * best - 1}, 0.3),
        Claim("mean return after flips", 2 * best - 1, 0.4, mean_return),
    ]


def _slow_one(trained: Trained) -> list[Claim]:
    config, gamma = trained.config, trained.config.gamma
    others = max(1, int(config.workers)) * config.envs_per_worker - 1
    share = trained.mean_metric("info/slow")
    ratio = share / (1 - share) * others
    if config.workers == 0:
        held_up, tolerance = Claim("its episodes per other's", 1.0, 0.1, ratio), 0.1
    else:
        # In step it would be 1; how much less it is, is a matter of the machine.
        held_up, tolerance = Claim("its episodes per other's", 0.45, 0.45, ratio), 0.3
    values = {0.0: 1 / (1 - gamma), 1.0: 2 / (1 - gamma)}
    return [*_values(trained, values, tolerance), held_up]


def _slow_seed(seed: int) -> str:
    return f"slow_seed={env_seed(seed, 0)}"


OWN_NUMBER: dict[str, Any] = {"gamma": 0.5, "hidden": (64,), "total_steps": 10_000}

FLIP: dict[str, Any] = {
    "total_steps": 12_000,
    "minibatches": 2,
    "entropy_coef": 0.7,
    "normalize_advantage": False,
    "lr_schedule": "constant",
    "clip": 0.5,
}

SLOW_ONE: dict[str, Any] = {
    "gamma": 0.5,
    "envs_per_worker": 8,
    "rollout_length": 8,
    "total_steps": 1_600,
    "epochs": 8,
    "log_info": ("slow",),
}

CHECKS = (
    Check(
        "constant-reward",
        envs.ConstantReward,
        "a rollout's last row learned without the value of what comes after it",
        _constant_reward,
        ONE_PROCESS | {"total_steps": 8_000},
    ),
    Check(
        "observed-reward",
        envs.ObservedReward,
        "rewards of other rows than the observations, or reset rows that are trained on",
        _observed_reward,
        ONE_PROCESS,
    ),
    Check(
        "two-steps",
        envs.TwoSteps,
        "a discount that is forgotten or a step off, or an end that does not stop the value",
        _two_steps,
        ONE_PROCESS | {"gamma": 0.5},
    ),
    Check(
        "match",
        envs.Match,
        "actions of other rows than the rewards or the observations, or the wrong sign of an "
        "advantage",
        _match,
        ONE_PROCESS,
    ),
    Check(
        "bandit",
        envs.Bandit,
        "luck taken for chance: a biased advantage, samples unlike their log-probabilities, or a "
        "wrong weight of the entropy",
        _bandit,
        ONE_PROCESS
        | {
            "total_steps": 16_000,
            "entropy_coef": 0.25,
            "normalize_advantage": False,
            "learning_rate": 5e-3,
        },
    ),
    Check(
        "must-mix",
        envs.MustMix,
        "a policy driven to one action: a biased advantage, or a ratio of the wrong policies",
        _must_mix,
        ONE_PROCESS | {"gamma": 1.0, "entropy_coef": 0.0, "learning_rate": 3e-3},
    ),
    Check(
        "truncation",
        envs.Ring,
        "a cut taken for an end, or continued from another observation than the final one",
        _truncation,
        ONE_PROCESS | {"gamma": 0.8},
    ),
    Check(
        "mask",
        envs.Forbidden,
        "masks disregarded in acting or in learning, or taken from another row",
        _mask,
        ONE_PROCESS,
    ),
    Check(
        "spaces",
        envs.Nested,
        "a part of a Dict or Tuple that is taken for another, not seen, or not learned",
        _spaces,
        ONE_PROCESS | {"total_steps": 4_000},
    ),
    Check(
        "own-number",
        envs.OwnNumber,
        "rows or columns of different environments mixed up",
        _own_number,
        ONE_PROCESS | OWN_NUMBER,
    ),
    Check(
        "flip",
        envs.Flip,
        "acting with old weights, or learning from old rows",
        _flip,
        ONE_PROCESS | FLIP,
    ),
    Check(
        "slow-one",
        envs.SlowOne,
        "rows of a slow environment that are left out",
        _slow_one,
        ONE_PROCESS | SLOW_ONE,
        env_args=lambda seed: (_slow_seed(seed),),
    ),
    Check(
        "own-number-engine",
        envs.OwnNumber,
        "rows, columns or slots of different environments mixed up between processes",
        _own_number,
        ENGINE | OWN_NUMBER,
    ),
    Check(
        "flip-engine",
        envs.Flip,
        "acting with old weights, or learning from old slots",
        _flip,
        ENGINE | FLIP,
    ),
    Check(
        "slow-one-engine",
        envs.SlowOne,
        "a slow environment that holds up the others, or whose rows are late or never learned from",
        _slow_one,
        # What a slow environment brings is always old; here it must be learned from all the same.
        ENGINE
        | SLOW_ONE
        | {
            "envs_per_worker": 4,
            "rollout_length": 4,
            "total_steps": 3_000,
            "epochs": 4,
            "max_policy_lag": 10**6,
        },
        env_args=lambda seed: (_slow_seed(seed), "step=1e-3"),
    ),
)
