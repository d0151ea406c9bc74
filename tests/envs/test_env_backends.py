"""Where two families offer the same environment, equal states and actions lead to the same."""

import gymnasium
import numpy as np
import pytest
from group import Group

from fastrl.envs import EnvOptions, describe
from fastrl.envs.spec import map_action

NO_MASK = EnvOptions(action_mask="off")


# How gymnasium's environment is put into the state that an observation shows.


def pendulum(obs):
    return np.array([np.arctan2(obs[1], obs[0]), obs[2]])


def acrobot(obs):
    return np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), *obs[4:]])


def itself(obs):
    return obs.astype(np.float64)


SAME = [
    ("CartPole-v1", "CartPole-v1", itself),
    ("Pendulum-v1", "Pendulum-v1", pendulum),
    ("MountainCar-v0", "MountainCar-v0", itself),
    ("MountainCarContinuous-v0", "MountainCarContinuous-v0", itself),
    ("Acrobot-v1", "Acrobot-v1", acrobot),
    ("Taxi-v3", "Taxi-v4", int),
    ("CliffWalking-v0", "CliffWalking-v1", int),
]


@pytest.mark.parametrize(("theirs", "name", "state_of"), SAME, ids=[case[0] for case in SAME])
def test_backends_agree_from_equal_states_and_actions(theirs, name, state_of):
    rows = Group(f"envpool:{theirs}", NO_MASK).play(60)
    env = gymnasium.make(name).unwrapped
    leaf = describe(f"gym:{name}", NO_MASK).action["action"]
    env.reset(seed=0)
    for t, e in zip(*np.nonzero(~rows.resets), strict=True):
        state = state_of(rows.obs[t, e])
        if isinstance(state, int):
            env.s = state
        else:
            env.state = state
        if name.startswith("CartPole"):
            env.steps_beyond_terminated = None
        obs, reward, terminated, _, _ = env.step(map_action(rows.action[t, [e]], leaf)[0])
        np.testing.assert_allclose(rows.obs[t + 1, e], obs, atol=1e-5)
        np.testing.assert_allclose(rows.reward[t, e], reward, atol=1e-5)
        assert rows.terminated[t, e] == terminated
