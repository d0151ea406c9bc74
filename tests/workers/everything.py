"""Random environments with every kind of leaf in observation and action, and masks."""

from __future__ import annotations

import numpy as np

from fastrl.envs import ActionSpec, EnvSpec, ObservationSpec

OBSERVATION = {
    "vector": ObservationSpec((3,), "float32", "vector", path=("vector",)),
    "far.off": ObservationSpec((2, 2), "float32", "vector", path=("far.off",)),
    "place": ObservationSpec((), "int32", "discrete", 5, path=("place",)),
    "cards/0": ObservationSpec(
        (2,), "int32", "multi_discrete", nvec=(3, 4), start=(0, 0), path=("cards", 0)
    ),
    "bits": ObservationSpec((6,), "int8", "vector", path=("bits",)),
}
IMAGE = {"camera": ObservationSpec((3, 40, 44), "uint8", "image", path=("camera",))}
ACTION = {
    "move": ActionSpec("discrete", (), "int32", "int64", n=5, masked=True, path=("move",)),
    "tools": ActionSpec(
        "multi_discrete",
        (2,),
        "int32",
        "int64",
        nvec=(3, 4),
        starts=(0, 0),
        masked=True,
        path=("tools",),
    ),
    "switches": ActionSpec("multi_binary", (3,), "int32", "int8", path=("switches",)),
    "arm": ActionSpec(
        "continuous",
        (2, 2),
        "float32",
        "float32",
        low=(-1.0,) * 4,
        high=(1.0,) * 4,
        path=("arm",),
    ),
}


def spec(image: bool = False, masked: bool = True) -> EnvSpec:
    """All leaves; a camera image as well where `image`, masks where `masked`."""
    action = dict(ACTION)
    if not masked:
        action = {
            key: ActionSpec(**{**leaf.__dict__, "masked": False}) for key, leaf in action.items()
        }
    return EnvSpec("everything:x", OBSERVATION | (IMAGE if image else {}), action, 1, None)


class EverythingEnv:
    """A group whose rows are drawn at random, whatever it is told to do; see `VectorEnv`."""

    def __init__(self, env_spec: EnvSpec, num_envs: int, first_env_index: int) -> None:
        self.spec = env_spec
        self.num_envs = num_envs
        self._rng = np.random.default_rng(first_env_index)
        self._done = np.zeros(num_envs, bool)

    def _observe(self, obs, action_mask) -> None:
        rng = self._rng
        for key, leaf in self.spec.observation.items():
            rows = obs[key]
            if leaf.dtype == "float32":
                # Far from mean 0 and deviation 1, so that normalising changes much.
                rows[...] = 20 + 7 * rng.standard_normal(rows.shape)
            else:
                most = {"image": 256, "vector": 2}.get(leaf.kind, leaf.nvec or leaf.n)
                rows[...] = rng.integers(0, most, rows.shape)
        for key, mask in action_mask.items():
            mask[...] = rng.random(mask.shape) < 0.5
            first = 0
            leaf = self.spec.action[key]
            for size in leaf.nvec or (leaf.n,):
                part = mask[:, first : first + size]
                part[np.arange(len(part)), rng.integers(0, size, len(part))] = True
                first += size
            mask[self._done] = True

    def reset(self, obs, stagger_steps=None, rngs=None, action_mask=None):
        self._observe(obs, action_mask or {})
        return np.zeros(self.num_envs), np.zeros(self.num_envs, int)

    def step(self, action, out) -> None:
        for key, leaf in self.spec.action.items():
            assert action[key].shape == (self.num_envs, *leaf.shape)
            assert action[key].dtype == leaf.dtype
        drawn = self._rng.random(self.num_envs)
        resets = self._done
        out.reward[...] = np.where(resets, 0, 10 * self._rng.standard_normal(self.num_envs))
        out.terminated[...] = (drawn < 0.1) & ~resets
        out.truncated[...] = (drawn > 0.9) & ~resets
        self._done = out.terminated | out.truncated
        out.episode_over[...] = self._done
        self._observe(out.obs, out.action_mask)

    def close(self) -> None:
        pass
