"""Is an environment what Gymnasium and the engine take it for? `fastrl-check` prints what is found.

    describe ─▶ Gymnasium's own checker ─▶ groups played with equal actions, compared

Every finding is a sentence. A fault makes training wrong or ends it; a note is worth knowing.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from fastrl.envs.conversion import space_at
from fastrl.envs.gymnasium_checks import told
from fastrl.envs.options import EnvOptions
from fastrl.envs.registry import describe, make
from fastrl.envs.single_envs import SingleEnvs
from fastrl.envs.spaces import leaf_text
from fastrl.envs.spec import EnvSpec, sample_actions
from fastrl.envs.vector_env import StepOut, VectorEnv
from fastrl.errors import ConfigError

NUM_ENVS = 3


class Finding(NamedTuple):
    """One sentence about the environment."""

    kind: Literal["fault", "note"]
    text: str


@dataclass
class Played:
    """Rows of `NUM_ENVS` environments; dictionaries by leaf."""

    obs: dict[str, np.ndarray]
    """`[rows + 1, E, *shape]`."""
    reward: np.ndarray
    """f32 `[rows, E]`; the flags have its shape."""
    terminated: np.ndarray
    truncated: np.ndarray
    episode_over: np.ndarray
    seconds: float
    """That the steps took."""

    @property
    def resets(self) -> np.ndarray:
        """bool `[rows, E]`: rows after a done one."""
        done = self.terminated | self.truncated
        return np.concatenate([np.zeros((1, done.shape[1]), bool), done[:-1]])


@dataclass
class Report:
    """What was found out."""

    spec: EnvSpec
    findings: list[Finding]
    steps: int = 0
    """Steps played in the first run."""
    episodes: int = 0
    """Episodes that ended in it."""
    seconds_per_step: float | None = None
    """Of one environment, without inference and training; None where nothing was played."""

    @property
    def faults(self) -> list[str]:
        """The sentences that are no mere notes."""
        return [finding.text for finding in self.findings if finding.kind == "fault"]


def check(env_id: str, options: EnvOptions, rows: int = 2000, seed: int = 0) -> Report:
    """Check the environment of `env_id` under `options` by playing `rows` random steps in each of
    three, four times.

    Raises:
        ConfigError: it cannot be constructed or used at all; the sentence says why.
    """
    spec = describe(env_id, options)
    report = Report(spec, list(_of_gymnasium(env_id, options)))
    try:
        _play_and_compare(env_id, options, rows, seed, report)
    except ConfigError as error:
        report.findings.append(Finding("fault", str(error)))
    except Exception as error:
        notes = getattr(error, "__notes__", None)
        text = notes[-1] if notes else f"{env_id} raised {told(error)}."
        report.findings.append(Finding("fault", text))
    return report


def _of_gymnasium(env_id: str, options: EnvOptions) -> Iterator[Finding]:
    """What Gymnasium's checker says of a single environment; nothing for C++ families."""
    group = make(env_id, options, 1, 0, 0)
    try:
        env = getattr(group, "_env", group)  # out of a FrameStack
        if not isinstance(env, SingleEnvs):
            return
        if env.spec.masks:
            # It would sample forbidden actions.
            yield Finding("note", "Gymnasium's checker was left out: it knows no masks.")
            return
        found: list[str] = []
        said = io.StringIO()
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(said):
            warnings.simplefilter("always")
            with redirect_stderr(said):
                try:
                    checked = env.single if options.wrap else env.single.unwrapped
                    check_env(checked, skip_render_check=True, skip_close_check=True)
                except (Exception, SystemExit) as error:
                    found.append(told(error))
        for text in found:
            yield Finding("fault", f"Gymnasium's checker says: {text}")
        for message in dict.fromkeys(_plain(str(warning.message)) for warning in caught):
            if "different from the unwrapped version" in message:
                continue  # as asked for
            yield Finding("note", f"Gymnasium's checker says: {message}")
    finally:
        group.close()


def _plain(text: str) -> str:
    """Without the colours that gymnasium puts into its warnings."""
    text = text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: ")
    return " ".join(text.split())


def _play_and_compare(
    env_id: str, options: EnvOptions, rows: int, seed: int, report: Report
) -> None:
    spec = report.spec

    def play(first: int = 0, count: int = NUM_ENVS, other: Played | None = None) -> Played:
        env = make(env_id, options, count, first, seed)
        try:
            if (set_progress := getattr(env, "set_progress", None)) is not None:
                set_progress(0, 1)
            played = _play(env, first, rows, seed, other)
            if isinstance(env, SingleEnvs) and other is None and count == NUM_ENVS:
                outside[:] = _outside(env, played)
            return played
        finally:
            env.close()

    outside: list[Finding] = []
    first = play()
    report.findings += outside
    report.steps = int((~first.resets).sum())
    report.episodes = int(first.episode_over.sum())
    report.seconds_per_step = first.seconds / max(1, first.reward.size)
    report.findings += _of_rows(spec, first, rows)
    note = _difference(first, play())
    if note:
        report.findings.append(
            Finding(
                "fault",
                f"Equal seeds and actions do not give equal rows: {note}. It draws from something "
                "that reset(seed=...) does not seed: use self.np_random after "
                "super().reset(seed=seed), not numpy's or Python's global generator, or the clock.",
            )
        )
        return
    changed = _difference(first, play(other=first))
    if changed:
        report.findings.append(
            Finding(
                "fault",
                "The action of the step that only resets changed something, though it is to be "
                f"ignored: {changed}.",
            )
        )
    if spec.one_generator:
        report.findings.append(
            Finding(
                "note",
                "A group has one generator, so how environments are spread over workers and groups "
                "changes their episodes.",
            )
        )
        return
    alone = play(first=1, count=1)
    spread = _difference(_column(first, 1), alone)
    if spread:
        report.findings.append(
            Finding(
                "fault",
                f"An environment plays otherwise alone than beside others: {spread}. They share "
                "something, such as a variable of the class or a global generator.",
            )
        )


def _outside(env: SingleEnvs, played: Played) -> list[Finding]:
    """The first value of each Box leaf that lies outside of its bounds."""
    findings = []
    for key, leaf in env.spec.observation.items():
        space = space_at(env.single.observation_space, leaf.path)
        if leaf.kind != "vector" or not isinstance(space, spaces.Box):
            continue
        obs = played.obs[key].astype(np.float64)
        # Stored as float32: a bound may be rounded.
        low, high = (np.asarray(bound, np.float32).astype(np.float64) for bound in
                     (space.low, space.high))  # fmt: skip
        bad = np.argwhere((obs < low) | (obs > high))
        if len(bad):
            row, number, *element = bad[0].tolist()
            at = tuple(element)
            name = leaf_text("observation", leaf.path)
            findings.append(
                Finding(
                    "note",
                    f"{name} of environment {number} holds {obs[(row, number, *at)]:g} at "
                    f"{element} in row {row}, but its space says {low[at]:g} to {high[at]:g}.",
                )
            )
    return findings


def _of_rows(spec: EnvSpec, played: Played, rows: int) -> Iterator[Finding]:
    final = np.concatenate([np.zeros((1, NUM_ENVS), bool), played.terminated])
    for key, obs in played.obs.items():
        name = leaf_text("observation", spec.observation[key].path)
        if obs.dtype == np.float32:
            bad = ~np.isfinite(obs).reshape(*obs.shape[:2], -1).all(-1)
            if (bad & ~final).any():
                row, env = np.argwhere(bad & ~final)[0].tolist()
                yield Finding("fault", f"{name} of environment {env} is not finite in row {row}.")
            large = np.abs(np.where(np.isfinite(obs), obs, 0)).max(initial=0)
            if large > 1e6:
                yield Finding(
                    "note", f"{name} holds numbers as large as {large:.3g}; scale them down."
                )
        if rows > 10 and (obs == obs[0, 0]).all():
            yield Finding("note", f"{name} is the same in every row.")
    if not np.isfinite(played.reward).all():
        row, env = np.argwhere(~np.isfinite(played.reward))[0].tolist()
        yield Finding("fault", f"The reward of environment {env} is not finite in row {row}.")
    valid = played.reward[~played.resets]
    if len(valid) > 10 and (valid == valid[0]).all() and not played.episode_over.any():
        yield Finding("note", f"Every reward was {valid[0]:g}.")
    if not played.episode_over.any():
        yield Finding(
            "note",
            f"No episode ended in {rows} steps of random actions, so ends were not checked and no "
            "return will be reported before one does; --max-episode-steps sets a limit.",
        )


def _play(env: VectorEnv, first: int, rows: int, seed: int, other: Played | None) -> Played:
    """Play `rows` random steps; those that only reset get other actions where `other` has them."""
    spec, count = env.spec, env.num_envs
    obs = {key: np.zeros((rows + 1, count, *leaf.shape), leaf.dtype)
           for key, leaf in spec.observation.items()}  # fmt: skip
    masks = {key: np.ones((count, size), bool) for key, size in spec.masks.items()}
    reward = np.zeros((rows, count), np.float32)
    flags = np.zeros((3, rows, count), bool)
    rngs = [np.random.default_rng([seed, first + i]) for i in range(count)]
    env.reset({key: array[0] for key, array in obs.items()}, action_mask=masks)
    seconds = 0.0
    for row in range(rows):
        action = _actions(spec, rngs, masks)
        if other is not None:
            for key, leaf in spec.action.items():
                # Any other action will do: zeros are allowed in every space, in stored form.
                action[key][other.resets[row]] = np.zeros(leaf.shape, leaf.dtype)
        out = StepOut(
            {key: array[row + 1] for key, array in obs.items()},
            reward[row],
            flags[0, row],
            flags[1, row],
            flags[2, row],
            masks,
        )
        began = time.perf_counter()
        env.step(action, out)
        seconds += time.perf_counter() - began
    return Played(obs, reward, flags[0], flags[1], flags[2], seconds)


def _actions(
    spec: EnvSpec, rngs: list[np.random.Generator], masks: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """A random action of each environment, which does not depend on its neighbours."""
    return {
        key: np.concatenate(
            [
                sample_actions(leaf, 1, rng, masks[key][i : i + 1] if key in masks else None)
                for i, rng in enumerate(rngs)
            ]
        )
        for key, leaf in spec.action.items()
    }


def _column(played: Played, env: int) -> Played:
    at = slice(env, env + 1)
    return Played(
        {key: array[:, at] for key, array in played.obs.items()},
        played.reward[:, at],
        played.terminated[:, at],
        played.truncated[:, at],
        played.episode_over[:, at],
        played.seconds,
    )


def _difference(a: Played, b: Played) -> str | None:
    """The first thing that differs between two runs, for a sentence; None where all is equal."""
    pairs: list[tuple[str, np.ndarray, np.ndarray]] = [
        *((f"observation {key!r}", a.obs[key], b.obs[key]) for key in a.obs),
        ("the reward", a.reward, b.reward),
        ("`terminated`", a.terminated, b.terminated),
        ("`truncated`", a.truncated, b.truncated),
    ]
    earliest: tuple[int, str] | None = None
    for name, x, y in pairs:
        same = (x == y) | ((x != x) & (y != y))
        rows = np.flatnonzero(~same.reshape(len(same), -1).all(1))
        if rows.size and (earliest is None or rows[0] < earliest[0]):
            earliest = int(rows[0]), name
    return None if earliest is None else f"{earliest[1]} differs first in row {earliest[0]}"


def describe_spec(spec: EnvSpec) -> list[tuple[str, str]]:
    """Say what the engine makes of the spaces, as (name, text) rows."""
    rows = []
    for leaf in spec.observation.values():
        text = f"{leaf.kind}, {leaf.dtype} {list(leaf.shape)}"
        rows.append((leaf_text("observation", leaf.path), text + _counts(leaf.n, leaf.nvec)))
    for action in spec.action.values():
        text = f"{action.kind}, {list(action.shape)}{_counts(action.n, action.nvec)}"
        if action.masked:
            text += ", masked"
        rows.append((leaf_text("action", action.path), text))
    return rows


def _counts(n: int | None, nvec: tuple[int, ...] | None) -> str:
    sizes = (n,) if n is not None else nvec
    if sizes is None:
        return ""
    shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
    return f", {shown} values"
