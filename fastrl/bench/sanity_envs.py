"""The environments of the sanity suite: each so small that what must be learned in it is known
exactly, and made so that one kind of bug changes that number.

The derivation is in each class's docstring; V is the value of an observation, γ the discount that
`sanity_checks` trains the environment with. They are ordinary environments of a user's and import
numpy and gymnasium alone::

    fastrl-train --env py:fastrl.bench.sanity_envs:TwoSteps --workers 0 --gamma 0.5
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Result = tuple[Any, float, bool, bool, dict[str, Any]]


class Small(gymnasium.Env[Any, Any]):
    """What most of them share: numbers to see, two actions, and a look at the state."""

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.begin()
        return self.look(), {}

    def begin(self) -> None:
        """Set the state at an episode's start."""

    def look(self) -> Any:
        """The observation of the present state."""
        return np.zeros(1, np.float32)


class ConstantReward(Small):
    """A reward of 1 in every step, for ever.

    V = 1 + γ + γ² + … = 1 / (1 - γ). No rollout is long enough to see that: each must take the
    value of its last row for what comes after it. Without, V is what a rollout can still collect.
    """

    def step(self, action: int) -> Result:
        """1, whatever is done."""
        return self.look(), 1.0, False, False, {}


class ObservedReward(Small):
    """One step; its reward is the observation, -1 or 1 with equal probability.

    V(x) = x. The final observation shows -x, and nothing is to be learned from it: were it trained
    on, half of all rows at x would have the reward 0.
    """

    def begin(self) -> None:
        """Draw the sign."""
        self.sign = 2.0 * self.np_random.integers(2) - 1.0

    def look(self) -> Any:
        """The sign."""
        return np.array([self.sign], np.float32)

    def step(self, action: int) -> Result:
        """The sign that was seen; another is shown."""
        reward, self.sign = self.sign, -self.sign
        return self.look(), reward, True, False, {}


class TwoSteps(Small):
    """Two steps, 0 and 1 in turn, and a reward of 1 for the second.

    V(1) = 1, and V(0) = γ: the reward of the second step, discounted once. The final observation
    shows 0 again, which is worth something to whoever does not stop at an end: then V(1) would be
    1 / (1 - γ²).
    """

    def begin(self) -> None:
        """To the first step."""
        self.steps = 0

    def look(self) -> Any:
        """The number of the step."""
        return np.array([self.steps % 2], np.float32)

    def step(self, action: int) -> Result:
        """1 at the end."""
        self.steps += 1
        return self.look(), float(self.steps == 2), self.steps == 2, False, {}


class Match(Small):
    """One step: 1 for the action that the observation (-1 or 1) names, -1 for the other.

    The best policy does as it is told, and V = 1 then; in general V(x) = 2π(right|x) - 1.
    """

    def begin(self) -> None:
        """Draw what is right."""
        self.right = int(self.np_random.integers(2))

    def look(self) -> Any:
        """What is right, as a sign."""
        return np.array([2 * self.right - 1], np.float32)

    def step(self, action: int) -> Result:
        """Compare."""
        return self.look(), 1.0 if action == self.right else -1.0, True, False, {}


class Bandit(Small):
    """One step, five arms; arm a pays PAYS[a] with the probability CHANCES[a], else nothing.

    With an entropy bonus of weight β the best policy maximises Σ π(a)·mean(a) + β·H(π), mean being
    pay times chance, so π(a) = exp(mean(a)/β) / Σ exp(mean/β), and V = Σ π(a)·mean(a). The last arm
    pays much and seldom: where gains and losses do not weigh the same, it is chosen too often or
    too seldom.
    """

    PAYS = (1.0, 1.0, 1.0, 1.0, 4.0)
    CHANCES = (0.1, 0.3, 0.9, 0.5, 0.175)
    action_space = spaces.Discrete(5)

    @classmethod
    def means(cls) -> list[float]:
        """What each arm pays on average."""
        return [pay * chance for pay, chance in zip(cls.PAYS, cls.CHANCES, strict=True)]

    @classmethod
    def best_policy(cls, entropy_weight: float) -> list[float]:
        """π as above, of each arm."""
        powers = [math.exp(mean / entropy_weight) for mean in cls.means()]
        return [power / sum(powers) for power in powers]

    def step(self, action: int) -> Result:
        """Pull an arm."""
        lucky = self.np_random.random() < self.CHANCES[action]
        return self.look(), self.PAYS[action] if lucky else 0.0, True, False, {}


class MustMix(Small):
    """Two steps that look alike, and one reward at the end: 1 for two different actions, SAME[a]
    for twice the same action a.

    A policy sees nothing to tell the steps by, so it has one number p = π(0), and the return is
    2p(1-p) + SAME[0]·p² + SAME[1]·(1-p)². With SAME = (1/2, 0) that is 2p - 3p²/2, whose maximum is
    at p = 2/3 and 2/3 (γ = 1, no entropy bonus); V is the same. The best policies that never mix
    get 1/2.
    """

    SAME = (0.5, 0.0)

    @classmethod
    def expected_return(cls, p: float) -> float:
        """Of the policy that takes action 0 with probability p."""
        return 2 * p * (1 - p) + cls.SAME[0] * p * p + cls.SAME[1] * (1 - p) ** 2

    def begin(self) -> None:
        """Nothing is done yet."""
        self.first: int | None = None

    def step(self, action: int) -> Result:
        """Remember the first action; compare the second."""
        if self.first is None:
            self.first = action
            return self.look(), 0.0, False, False, {}
        reward = self.SAME[action] if action == self.first else 1.0
        return self.look(), reward, True, False, {}


class Ring(Small):
    """Four places in a ring, walked for ever, with a reward of 1 for leaving the last one. But what
    is played are pieces of two steps, cut by truncation, from a place drawn uniformly.

    A cut is no end: V(place) = γ^(3 - place) / (1 - γ⁴), from the final observation's own value.
    Taken for an end, V(3) = 1, V(2) = γ, V(1) = V(0) = 0; with the value of the next episode's
    first observation, whose mean is the same for all places, it is none of the two.
    """

    PLACES, PIECE = 4, 2
    observation_space = spaces.Discrete(PLACES)

    @classmethod
    def value(cls, place: int, gamma: float) -> float:
        """V as above."""
        return float(gamma ** (cls.PLACES - 1 - place) / (1 - gamma**cls.PLACES))

    def begin(self) -> None:
        """Anywhere in the ring."""
        self.place = int(self.np_random.integers(self.PLACES))
        self.steps = 0

    def look(self) -> Any:
        """The place."""
        return self.place

    def step(self, action: int) -> Result:
        """Go on."""
        reward = float(self.place == self.PLACES - 1)
        self.place = (self.place + 1) % self.PLACES
        self.steps += 1
        return self.look(), reward, False, self.steps == self.PIECE, {}


class Forbidden(Small):
    """One step; action 2 pays 1, action 0 pays 1/2, action 1 nothing. Half of the time the mask (in
    info) forbids action 2, which would pay all the same, and nothing else tells.

    The best policy takes 2 where it may and else 0: V = 1/2·1 + 1/2·1/2 = 3/4. Whoever disregards
    masks when acting gets 1. Whoever disregards them when learning takes action 0, where 2 is
    forbidden, for one that the policy hardly ever chooses: π(0) = 0.
    """

    PAYS = (0.5, 0.0, 1.0)
    action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw whether action 2 is allowed."""
        observation, _ = super().reset(seed=seed)
        allowed = bool(self.np_random.integers(2))
        return observation, {"action_mask": np.array([1, 1, allowed], np.int8)}

    def step(self, action: int) -> Result:
        """Pay."""
        return self.look(), self.PAYS[action], True, False, {}


class Nested(Small):
    """One step; the reward is the share of the action's five parts that are as the observation's
    part of the same name says.

    Every part of the observation is drawn by itself and tells of one part of the action, so the
    best return is 1; with one part not seen, or not learned, that part is right half of the time:
    0.9. An action that is not in the space is refused, and those of equal type count from different
    numbers: in the place of another they would not be.
    """

    observation_space = spaces.Dict(
        {
            "turn": spaces.Discrete(2, start=3),
            "pair": spaces.Tuple((spaces.Box(-1, 1, (1,), np.float64), spaces.Discrete(2))),
            "lamps": spaces.MultiBinary(1),
            "doors": spaces.MultiDiscrete([2]),
        }
    )
    action_space = spaces.Dict(
        {
            "turn": spaces.Discrete(2, start=-1),
            "pair": spaces.Tuple((spaces.Box(-3, 3, (1,), np.float32), spaces.Discrete(2))),
            "lamps": spaces.MultiBinary(1),
            "doors": spaces.MultiDiscrete([2]),
        }
    )

    def begin(self) -> None:
        """Draw five bits."""
        self.bits = self.np_random.integers(2, size=5)

    def look(self) -> Any:
        """The bits, each in its own part."""
        turn, left, right, lamp, door = self.bits.tolist()
        return {
            "turn": 3 + turn,
            "pair": (np.array([2.0 * left - 1.0]), right),
            "lamps": np.array([lamp], np.int8),
            "doors": np.array([door], np.int64),
        }

    def step(self, action: dict[str, Any]) -> Result:
        """Compare part by part; ValueError for an action that is none."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        left, right = action["pair"]
        done = (
            action["turn"] + 1,
            float(left[0]) > 0,
            right,
            action["lamps"][0],
            action["doors"][0],
        )
        reward = float(np.mean([bit == part for bit, part in zip(self.bits, done, strict=True)]))
        return self.look(), reward, True, False, {}


class OwnNumber(Small):
    """Each environment draws a number from [-1, 1] once; it sees nothing else and is paid nothing
    else, in pieces of PIECE steps, cut by truncation, with the other sign in every second piece.

    V(x) = x / (1 - γ). All rows of a piece are alike, so only what belongs to another environment,
    or to another time of this one, can be wrong: where rows, columns or slots are mixed, numbers
    meet the rewards of others, and V goes to the mean of all, 0. PIECE is no multiple of a
    rollout, so that two slots of one environment differ.
    """

    PIECE = 24
    number = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw the number in the first episode; later change its sign."""
        if seed is not None:
            self.number = float(np.random.default_rng(seed).uniform(-1, 1))
        else:
            self.number = -self.number
        self.steps = 0
        return super().reset(seed=seed)

    def look(self) -> Any:
        """The number."""
        return np.array([self.number], np.float32)

    def step(self, action: int) -> Result:
        """The number."""
        self.steps += 1
        return self.look(), self.number, False, self.steps == self.PIECE, {}


class Flip(Small):
    """One step; 1 for the right action, -1 for the wrong one, and nothing tells which is right: the
    two change places each time another of PHASES equal parts of the training begins.

    With an entropy bonus of weight β the best policy has π(right) = 1 / (1 + exp(-2/β)), and
    V = 2π(right) - 1. To have that at the end of the last part, a policy that was as sure of the
    opposite must have followed within that part; and the mean return over all parts tells how long
    it took. Whoever learns from old rows, or acts with old weights, is late every time.
    """

    PHASES = 3
    right = 0

    @classmethod
    def best_policy(cls, entropy_weight: float) -> float:
        """π(right) as above."""
        return 1.0 / (1.0 + math.exp(-2.0 / entropy_weight))

    def set_training_progress(self, steps: int, total_steps: int) -> None:
        """Change sides in each part of the training."""
        part = min(self.PHASES - 1, self.PHASES * steps // total_steps)
        self.right = part % 2

    def step(self, action: int) -> Result:
        """Compare."""
        return self.look(), 1.0 if action == self.right else -1.0, True, False, {}


class SlowOne(Small):
    """A step takes `step` seconds, and in one of the environments, that whose first seed is
    `slow_seed`, 50 times as long. It is paid 2 a step, the others 1, and each sees which it is.

    V(1) = 2 / (1 - γ) for the slow one and V(0) = 1 / (1 - γ) for the others (pieces of 8 steps,
    cut by truncation): its few rows must arrive, and be learned from, whatever the others do
    meanwhile. Where everyone waits for everyone it plays as many episodes as another, else fewer.
    """

    TIMES, PIECE = 50, 8

    def __init__(self, slow_seed: int = 0, step: float = 1e-4) -> None:
        self.slow_seed = slow_seed
        self.seconds = step
        self.slow = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Find out who one is."""
        self.slow = self.slow or seed == self.slow_seed
        self.steps = 0
        return super().reset(seed=seed)

    def look(self) -> Any:
        """Whether this is the slow one."""
        return np.array([self.slow], np.float32)

    def step(self, action: int) -> Result:
        """Take one's time."""
        time.sleep(self.seconds * (self.TIMES if self.slow else 1))
        self.steps += 1
        reward = 2.0 if self.slow else 1.0
        return self.look(), reward, False, self.steps == self.PIECE, {"slow": float(self.slow)}
