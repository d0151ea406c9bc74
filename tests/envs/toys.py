"""Toy environments, each with one habit that real ones have."""

import gymnasium
import numpy as np

spaces = gymnasium.spaces
LENGTHS = (3, 11)  # of a Ledger's episodes, drawn uniformly
ENDS = [(True, False), (False, True), (True, True)]  # (terminated, truncated), drawn likewise


class Toy(gymnasium.Env):
    """Never ends; observation zeros."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        return self.look(), 0.0, False, False, {}

    def look(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


class Ledger(Toy):
    """Observation: (number of the episode, steps in it, a number drawn at its start), in the same
    array every time. Reward: 10 * step + action. An episode's length is drawn, and whether it
    terminates, is truncated, or both."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float64)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self):
        self.row = np.zeros(3)

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.row[:] = self.row[0] + 1, 0, self.np_random.uniform()
        self.length = self.np_random.integers(*LENGTHS)
        self.end = ENDS[self.np_random.integers(3)]
        return self.row, {}

    def step(self, action):
        assert self.action_space.contains(action)
        ends, cut = self.move_on()
        return self.row, 10 * self.row[1] + action, ends, cut, {}

    def move_on(self):
        assert self.row[1] < self.length, "stepped after the end"
        self.row[1] += 1
        return self.end if self.row[1] == self.length else (False, False)


def ledgers(num_envs):
    return gymnasium.vector.SyncVectorEnv([Ledger] * num_envs)


class Nested(Ledger):
    """A Ledger whose spaces have a leaf of every kind, all in the same arrays every time.

    The observation tells episode, step and the number drawn (`state`), and each leaf that an action
    has been taken: `clock` counts steps in three ways, `camera` has the step in its channel 1, and
    `echo` the last force. The reward is 4096 * step + a number that stands for the integer parts of
    the action.
    """

    observation_space = spaces.Dict(
        {
            "state": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "camera": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "clock": spaces.Tuple(
                [
                    spaces.Discrete(20, start=3),
                    spaces.MultiDiscrete([20, 2], start=[1, -2]),
                    spaces.Dict({"bits": spaces.MultiBinary(4)}),
                ]
            ),
            "e/cho": spaces.Box(-2, 6, (), np.float32),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3, start=5),
            "grip": spaces.Tuple(
                [spaces.MultiDiscrete([2, 3], start=[-1, 4]), spaces.MultiBinary(3)]
            ),
            "force": spaces.Box(-2, 6, (1,), np.float64),
            "level": spaces.Box(-1, 2, (2,), np.int64),
        }
    )

    def __init__(self):
        super().__init__()
        self.camera = np.zeros((6, 5, 3), np.uint8)
        self.pair = np.zeros(2, np.int64)
        self.bits = np.zeros(4, np.int8)
        self.echo = np.zeros((), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.echo[...] = 0
        return self.look(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        grip, bits = action["grip"]
        ends, cut = self.move_on()
        self.echo[...] = action["force"][0]
        digits = [
            (action["move"] - 5, 3),
            (grip[0] + 1, 2),
            (grip[1] - 4, 3),
            *((bit, 2) for bit in bits),
            *((level + 1, 4) for level in action["level"]),
        ]
        code = 0
        for digit, base in digits:
            assert 0 <= digit < base
            code = code * base + int(digit)
        return self.look(), 4096.0 * self.row[1] + code, ends, cut, {}

    def look(self):
        step = int(self.row[1])
        self.camera[..., 1] = step
        self.pair[:] = step + 1, step % 2 - 2
        self.bits[:] = [step >> k & 1 for k in range(4)]
        return {
            "state": self.row,
            "camera": self.camera,
            "clock": (step + 3, self.pair, {"bits": self.bits}),
            "e/cho": self.echo,
        }


def nesteds(num_envs):
    """Its arrays, too, are the same ones at every step."""
    return gymnasium.vector.SyncVectorEnv([Nested] * num_envs, copy=False)


class Masked(Ledger):
    """A Ledger of four actions. Those that a part of the observation does not allow, at random at
    every step, may not be taken."""

    observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(4),
            "state": spaces.Box(-1000, 1000, (3,), np.float64),
        }
    )
    action_space = spaces.Discrete(4, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.draw_mask()
        return self.tell({})

    def step(self, action):
        self.check(action)
        _, reward, ends, cut, _ = super().step(action)
        self.draw_mask()
        if ends or cut:
            self.mask[...] = 0  # nothing can be done
        observation, info = self.tell({})
        return observation, reward, ends, cut, info

    def draw_mask(self):
        self.mask = self.np_random.integers(2, size=4).astype(np.int8)
        self.mask[self.np_random.integers(4)] = 1

    def check(self, action):
        assert self.mask[action - 5], f"{action} is not allowed"

    def tell(self, info):
        return {"action_mask": self.mask, "state": self.row}, info


class MaskedByInfo(Masked):
    """Another part tells it: info."""

    observation_space = Ledger.observation_space

    def tell(self, info):
        return self.row, {"action_mask": self.mask}


class MaskedTurns(Ledger):
    """A choice of two and one of three in `turn`, each with a mask, and a free one; the masks are
    a pair of arrays, as those of gymnasium's own spaces."""

    action_space = spaces.Dict(
        {"turn": spaces.MultiDiscrete([2, 3], start=[1, 5]), "lamp": spaces.MultiBinary(1)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.row, {"allowed": self.draw_masks()}

    def step(self, action):
        assert self.action_space.contains(action)
        a, b = action["turn"] - (1, 5)
        assert self.masks[0][a] and self.masks[1][b], f"{action} is not allowed"
        ends, cut = self.move_on()
        reward = 10 * self.row[1] + a + 2 * b
        # After the end there need not be any.
        info = {} if ends or cut else {"allowed": self.draw_masks()}
        return self.row, reward, ends, cut, info

    def draw_masks(self):
        self.masks = tuple(self.np_random.integers(2, size=n).astype(bool) for n in (2, 3))
        for mask in self.masks:
            mask[self.np_random.integers(len(mask))] = True
        return {"turn": self.masks}


def maskeds(num_envs):
    return gymnasium.vector.SyncVectorEnv([Masked] * num_envs)


def maskeds_by_info(num_envs):
    return gymnasium.vector.SyncVectorEnv([MaskedByInfo] * num_envs)


class Curriculum(Ledger):
    """Told how far training is, it shows that in its observation from the next episode on."""

    level = -1.0

    def set_training_progress(self, steps, total_steps):
        self.level = steps / total_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row[2] = self.level
        return self.row, {}


class Reporter(Ledger):
    """Tells in info how an episode went, at its end alone; `score` there is 100 * episode + steps,
    and `parts` has what is no number."""

    def step(self, action):
        observation, reward, ends, cut, _ = super().step(action)
        if not (ends or cut):
            return observation, reward, ends, cut, {"score": -1.0}
        score = 100 * self.row[0] + self.row[1]
        parts = {"half": score / 2, "name": "end"}
        return observation, reward, ends, cut, {"score": score, "parts": parts, "a.b": 7}


def reporters(num_envs):
    return gymnasium.vector.SyncVectorEnv([Reporter] * num_envs)


# Under these names `gym:toys:NAME` finds them.
for name, single, vector in (
    ("Ledger-v0", Ledger, ledgers),
    ("Nested-v0", Nested, nesteds),
    ("Masked-v0", Masked, maskeds),
):
    gymnasium.register(f"toys/{name}", single, vector_entry_point=vector)
