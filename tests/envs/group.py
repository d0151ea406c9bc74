"""A group of environments with arrays of its own, which records what a run of actions gives."""

from dataclasses import dataclass

import numpy as np

from fastrl.envs import EnvOptions, StepOut, make
from fastrl.envs.spec import ActionSpec, ObservationSpec, sample_actions

FLAGS = ("terminated", "truncated", "episode_over")


@dataclass
class Rows:
    """N steps of E environments; what is seen has the row before the first step as well."""

    observations: dict[str, np.ndarray]  # by leaf [N + 1, E, *shape]
    masks: dict[str, np.ndarray]  # by masked leaf [N + 1, E, mask_size]
    actions: dict[str, np.ndarray]  # by leaf [N, E, *shape]
    reward: np.ndarray  # [N, E]
    terminated: np.ndarray
    truncated: np.ndarray
    episode_over: np.ndarray
    info: np.ndarray  # [N, E, keys]

    @property
    def obs(self) -> np.ndarray:
        """The one leaf of the observation."""
        (only,) = self.observations.values()
        return only

    @property
    def action(self) -> np.ndarray:
        """The one leaf of the action."""
        (only,) = self.actions.values()
        return only

    @property
    def done(self) -> np.ndarray:
        return self.terminated | self.truncated

    @property
    def resets(self) -> np.ndarray:
        """bool [N, E]: the row after a done row."""
        first = np.zeros((1, self.done.shape[1]), dtype=bool)
        return np.concatenate([first, self.done[:-1]])

    def columns(self) -> dict[str, np.ndarray]:
        """All that the environments gave, by name."""
        return {
            **{f"observation {key}": array for key, array in self.observations.items()},
            **{f"mask {key}": array for key, array in self.masks.items()},
            **{flag: getattr(self, flag) for flag in FLAGS},
            "reward": self.reward,
            "info": self.info,
        }


class Group:
    """E environments. Every step is written to new arrays, full of something else before: an
    adapter must neither count on what was there nor write to the old ones."""

    def __init__(self, env_id, options=None, num_envs=4, first=0, seed=1, fill=77):
        self.options = options or EnvOptions()
        self.env = make(env_id, self.options, num_envs, first, seed)
        self.num_envs, self.first, self.seed, self.fill = num_envs, first, seed, fill
        self.spec = self.env.spec
        self.out = self._new_out()

    @property
    def obs_spec(self) -> ObservationSpec:
        (only,) = self.spec.observation.values()
        return only

    @property
    def action_spec(self) -> ActionSpec:
        (only,) = self.spec.action.values()
        return only

    @property
    def obs(self) -> np.ndarray:
        (only,) = self.out.obs.values()
        return only

    def _new_out(self) -> StepOut:
        E, keys = self.num_envs, len(self.options.log_info)
        return StepOut(
            obs={
                key: np.full((E, *leaf.shape), self.fill, leaf.dtype)
                for key, leaf in self.spec.observation.items()
            },
            reward=np.full(E, np.nan, np.float32),
            **{flag: np.ones(E, dtype=bool) for flag in FLAGS},
            action_mask={key: np.zeros((E, n), bool) for key, n in self.spec.masks.items()},
            info=np.full((E, keys), np.nan) if keys else None,
        )

    def reset(self, stagger_steps=None, rngs=None):
        self.out = self._new_out()
        return self.env.reset(self.out.obs, stagger_steps, rngs, self.out.action_mask)

    def step(self, action) -> StepOut:
        """`action`: by leaf, or that of the one leaf."""
        if not isinstance(action, dict):
            (key,) = self.spec.action
            action = {key: action}
        stored = {k: np.asarray(a, dtype=self.spec.action[k].dtype) for k, a in action.items()}
        self.out = self._new_out()
        self.env.step(stored, self.out)
        return self.out

    def rngs(self) -> list[np.random.Generator]:
        """One for each environment's actions, from its run-wide index alone."""
        # Not the engine's generators: a test may rest on what these actions lead to.
        return [np.random.default_rng([99, self.first + i]) for i in range(self.num_envs)]

    def draw(self, rngs) -> dict[str, np.ndarray]:
        """Random actions that are allowed now, by leaf; `rngs`: one each, or one for all."""
        masks = self.out.action_mask
        if isinstance(rngs, np.random.Generator):
            return {
                key: sample_actions(leaf, self.num_envs, rngs, masks.get(key))
                for key, leaf in self.spec.action.items()
            }
        return {
            key: np.concatenate(
                [
                    sample_actions(leaf, 1, rng, masks[key][[i]] if leaf.masked else None)
                    for i, rng in enumerate(rngs)
                ]
            )
            for key, leaf in self.spec.action.items()
        }

    def actions(self, steps) -> np.ndarray:
        """[steps, E, *shape] of the one leaf, without masks."""
        rngs = self.rngs()
        return np.stack([sample_actions(self.action_spec, steps, rng) for rng in rngs], axis=1)

    def play(self, steps, actions=None) -> Rows:
        """Reset, then step; `actions(t, obs)` gives those of a row, random ones if it is None.

        `obs` is by leaf, unless there is only one.
        """
        self.reset()
        rngs = self.rngs()
        outs, taken = [self.out], []
        for t in range(steps):
            seen = self.obs if len(self.out.obs) == 1 else self.out.obs
            action = self.draw(rngs) if actions is None else actions(t, seen)
            if not isinstance(action, dict):
                (key,) = self.spec.action
                action = {key: action}
            taken.append({key: np.array(value) for key, value in action.items()})
            outs.append(self.step(action))
        E, keys = self.num_envs, len(self.options.log_info)
        infos = [np.zeros((E, 0)) if out.info is None else out.info for out in outs[1:]]
        return Rows(
            observations=_stacked([out.obs for out in outs]),
            masks=_stacked([out.action_mask for out in outs]),
            actions=_stacked(taken),
            reward=np.stack([out.reward for out in outs[1:]]),
            **{flag: np.stack([getattr(out, flag) for out in outs[1:]]) for flag in FLAGS},
            info=np.stack(infos).reshape(steps, E, keys),
        )


def _stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def assert_same(a: Rows, b: Rows, columns=slice(None)) -> None:
    """Columns of `a` are those of `b`, bit for bit."""
    ours, theirs = a.columns(), b.columns()
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name][:, columns], theirs[name], err_msg=name)
