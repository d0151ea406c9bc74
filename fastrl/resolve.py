"""From the options that a user gave to those that a run has: preset, sizes, formats.

::

    options given ─▶ preset (presets/*.toml) ─▶ spread over processes ─▶ sizes of batches
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fastrl.config import TARGETS, TrainConfig, check_sizes, is_sync
from fastrl.envs.spec import EnvSpec
from fastrl.errors import ConfigError
from fastrl.preset import Preset, choose_preset, load_preset

WORKERS_PER_CORE = 2
"""With more workers than that a core always has another one to run."""

MOST_EXTRA = 1.25
"""At most this many times the preset's environments, as far as it may be chosen."""

FALLS = {
    "entropy_coef": "entropy_final",
    "barrier_coef": "barrier_final",
    "target_kl": "target_kl_final",
}
"""What a value falls to: that of the preset is set aside where the user names the value itself."""

LAG_IN_BATCHES = 8
"""Batches that a row may be older than the weights, where ``max_policy_lag`` is not given."""


def resolve(config: TrainConfig, spec: EnvSpec, cores: int, bf16_cpu: bool) -> TrainConfig:
    """Fill every UNSET option that shapes the run, from the preset and from the environment's
    spaces.

    ``cores`` is the number this process may use; ``bf16_cpu`` whether the processor computes in
    bf16: then ``dtype`` may stay UNSET, for the learner to try out. Raises ConfigError where the
    sizes that result contradict each other.
    """
    image = any(leaf.is_large_image for leaf in spec.observation.values())
    preset = load_preset(config.preset) if config.preset else choose_preset(config.env, image)
    values = {
        name: value for name, value in preset.options.items() if getattr(config, name) is None
    }
    for start, final in FALLS.items():
        if getattr(config, start) is not None:  # the preset's fall begins at the preset's value
            values.pop(final, None)
    if config.barrier_coef and all(leaf.kind == "continuous" for leaf in spec.action.values()):
        raise ConfigError(
            f"--barrier-coef is {config.barrier_coef}, but it keeps choices among discrete actions "
            "possible, and the actions here are continuous; leave it out."
        )
    sync = is_sync(config)
    values["preset"] = preset.name
    values["mode"] = "sync" if sync else "async"
    if config.algorithm in TARGETS:
        values["targets"] = TARGETS[config.algorithm]  # the presets think of appo
    if config.log_every is None:
        values["log_every"] = "10u" if sync else "5s"
    values |= _spread(config, preset, sync, cores)
    if config.dtype is None:
        values["dtype"] = _dtype(config, image, sync, bf16_cpu)
    resolved = dataclasses.replace(config, **values)
    if all(getattr(resolved, final) is None for final in FALLS.values()):
        if config.anneal_steps is not None:
            raise ConfigError(
                "--anneal-steps means nothing without --entropy-final, --barrier-final or "
                "--target-kl-final."
            )
        resolved = dataclasses.replace(resolved, anneal_steps=None)
    if config.batch_size is None:
        every_env = max(1, int(resolved.workers)) * resolved.envs_per_worker
        resolved = dataclasses.replace(resolved, batch_size=every_env * resolved.rollout_length)
    check_sizes(dataclasses.replace(resolved, minibatches=config.minibatches))
    if config.minibatches is None:
        # The preset thinks of its own number of environments; with fewer columns there are fewer
        # cuts.
        columns = resolved.batch_size // resolved.rollout_length
        cuts = range(1, min(resolved.minibatches, columns) + 1)
        resolved = dataclasses.replace(
            resolved, minibatches=max(n for n in cuts if columns % n == 0)
        )
    if config.max_policy_lag is None:
        resolved = dataclasses.replace(
            resolved, max_policy_lag=LAG_IN_BATCHES * versions_per_batch(resolved)
        )
    return resolved


def _dtype(config: TrainConfig, image: bool, sync: bool, bf16_cpu: bool) -> str | None:
    """The compute format, as far as it does not take a measurement."""
    if config.device != "cpu":
        return "bf16" if image and not sync else "f32"
    return "f32" if sync or not bf16_cpu else None


def _spread(config: TrainConfig, preset: Preset, sync: bool, cores: int) -> dict[str, int]:
    """Decide `workers`, `groups_per_worker` and `envs_per_worker` where the user has not."""
    envs, num_envs = config.envs_per_worker, preset.num_envs
    workers = cores if config.workers == "auto" else config.workers
    groups = config.groups_per_worker or default_groups(workers, envs, sync, cores)
    if envs is not None:
        return {"workers": workers, "groups_per_worker": groups}
    if not sync:
        allowed = range(cores, 0, -1) if config.workers == "auto" else [workers]
        # The columns of a batch, one per environment, are to be cut as the preset cuts them.
        cuts = config.minibatches or preset.options["minibatches"]
        workers, share = _even(allowed, groups, num_envs, cuts if config.batch_size is None else 1)
        return {
            "workers": workers, "groups_per_worker": groups, "envs_per_worker": groups * share
        }  # fmt: skip
    # In sync the number of environments must not depend on the machine.
    if config.workers == "auto":
        fitting = [n for n in range(1, cores + 1) if num_envs % (n * groups) == 0]
        workers = max(fitting, default=1)
    if num_envs % (max(1, workers) * groups):
        raise ConfigError(
            f"--workers {workers} x --groups-per-worker {groups} do not divide the "
            f"{num_envs} environments that sync mode takes by default; name "
            "--envs-per-worker."
        )
    share = num_envs // max(1, workers)
    return {"workers": workers, "groups_per_worker": groups, "envs_per_worker": share}


def _even(allowed: Sequence[int], groups: int, num_envs: int, multiple: int) -> tuple[int, int]:
    """The first number of workers that is `allowed`, and environments per group, such that all
    together are about `num_envs` and a multiple of `multiple`.

    With many more the batch would be larger than what the preset has been tried with. Where nothing
    fits, the last number of workers shares `num_envs`, rounded up.
    """
    for workers in allowed:
        least, most = num_envs / (workers * groups), MOST_EXTRA * num_envs / (workers * groups)
        for share in range(math.ceil(least), math.floor(most) + 1):
            if workers * groups * share % multiple == 0:
                return workers, share
    return allowed[-1], math.ceil(num_envs / (allowed[-1] * groups))


def default_groups(workers: int, envs: int | None, sync: bool, cores: int) -> int:
    """The default of `groups_per_worker`.

    A group's step has a price of its own (with many processes it finds the caches cold: about 100
    µs), so a second group is for workers that would otherwise idle while they wait for actions.
    """
    many = not sync and workers > WORKERS_PER_CORE * cores
    return 1 if many or (envs is not None and envs % 2) else 2


def versions_per_batch(config: TrainConfig) -> int:
    """Versions of the weights that a batch makes."""
    return config.minibatches * config.epochs if config.publish == "step" else 1
