"""Whether the engine computes on a CUDA device what it computes on the CPU.

``python benchmarks/gpu_check.py``: forward pass, sampling, V-trace, losses and one update on
synthetic rows, each against the CPU in f32, then a short run through ``fastrl-train``. One line per
check: what was compared, the largest difference, the tolerance.

cuDNN's convolutions use TF32 unless told otherwise, and so does the engine; "exact" f32 here is
without it, where rounding alone tells the devices apart.

Exit codes: 0 all agree, 1 some do not, 2 there is no CUDA device.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastrl.algo.appo import appo_loss
from fastrl.algo.impala import impala_loss
from fastrl.algo.vtrace import vtrace_appo, vtrace_impala
from fastrl.bench.engine_run import EngineFailed, command_line
from fastrl.bench.records import read_records
from fastrl.bench.synthetic_rows import (
    ACTIONS,
    filled_arena,
    spec_of,
    synthetic_rollout,
)
from fastrl.config import TrainConfig
from fastrl.envs import EnvSpec
from fastrl.models.acting import ActingPolicy
from fastrl.models.config import ModelConfig
from fastrl.models.distributions import Categorical, DiagonalGaussian
from fastrl.models.noise import uniform
from fastrl.models.passes import sample_observations
from fastrl.models.policy import ActorCritic
from fastrl.resolve import resolve
from fastrl.shm import Arena
from fastrl.workers.batch import BatchReader
from fastrl.workers.plan import Plan
from fastrl.workers.update import METRICS, Updater

Outcome = tuple[bool, str]
"""Whether a check passed, and the numbers."""

Check = Callable[[], Outcome]

ROWS = 512
ENGINE_STEPS = 50_000
ENGINE_SECONDS = 300.0
"""Five times what the short run takes at most: more means that it hangs."""


def config_of(spec: EnvSpec, device: str, dtype: str) -> TrainConfig:
    """Resolved options of a run of two groups of 8 on `device`, one optimiser step a batch."""
    config = TrainConfig(
        env="check:check",
        seed=1,
        workers=1,
        envs_per_worker=16,
        rollout_length=16,
        minibatches=1,
        epochs=1,
        device=device,
        dtype=dtype,
    )
    # Compared as well; continuous actions are not refused here, it adds 0 to their loss.
    return replace(resolve(config, spec, cores=1, bf16_cpu=False), barrier_coef=0.02)


@contextlib.contextmanager
def exact_f32() -> Iterator[None]:
    """Keep cuDNN from TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def difference(tensor: Tensor, reference: Tensor) -> float:
    """Largest difference, as a share of the largest number in `reference` where that is over 1."""
    reference = reference.detach().double().cpu()
    largest = max(1.0, float(reference.abs().max()))
    return float((tensor.detach().double().cpu() - reference).abs().max()) / largest


def largest_difference(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Largest `difference` of pairs; NaN where one is (max() could overlook it)."""
    return float(np.max([difference(a, b) for a, b in zip(found, expected, strict=True)]))


def metric_error(found: dict[str, float], expected: dict[str, float]) -> float:
    """Largest difference of a learner's metrics, relative where they are over 1."""
    return float(
        np.max([abs(found[n] - expected[n]) / max(1.0, abs(expected[n])) for n in METRICS])
    )


def within(found: float, tolerance: float, more: str = "") -> Outcome:
    """Compare with the tolerance; NaN is over every one."""
    return found <= tolerance, f"largest difference {found:.1e}, tolerance {tolerance:.0e}{more}"


def observations(spec: EnvSpec, rows: int = ROWS) -> dict[str, Tensor]:
    """The same random rows at every call."""
    return sample_observations(spec, rows, np.random.default_rng(0))


def network_of(spec: EnvSpec) -> ActorCritic:
    """A network on the CPU, the same at every call, with heads that prefer some actions."""
    torch.manual_seed(0)
    model = config_of(spec, "cpu", "f32").section(ModelConfig)
    network = ActorCritic(spec, model)
    with torch.no_grad():
        for head in network.policy_head.values():
            # Fresh heads are 0.01 of this: all actions alike, and any error would be 0.
            head.weight.mul_(100.0)
    return network


@torch.no_grad()
def check_forward(device: str, spec: EnvSpec, autocast: bool, tolerance: float) -> Outcome:
    """Heads' output on the device, with or without bf16 autocast, against f32 on the CPU."""
    network, obs = network_of(spec), observations(spec)
    expected = network(obs)
    twin = copy.deepcopy(network).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
        found = twin({key: leaf.to(device) for key, leaf in obs.items()})
    error = largest_difference(
        [found.value, *found.params.values()], [expected.value, *expected.params.values()]
    )
    return within(error, tolerance)


def boundary_distance(params: Tensor, u: Tensor, action: Tensor) -> Tensor:
    """How far u [N, 1] is from the interval of `action` [N] under params [N, n]; f64 [N]."""
    upper = torch.softmax(params.detach().double().cpu(), -1).cumsum(-1)
    lower = torch.cat((torch.zeros(len(upper), 1).double(), upper[:, :-1]), 1)
    index, point = action.long().cpu()[:, None], u.double().cpu()
    outside = torch.maximum(lower.gather(1, index) - point, point - upper.gather(1, index))
    return outside.clamp_min(0.0).squeeze(1)


def compare_actions(
    distribution: Categorical | DiagonalGaussian,
    params: Tensor,
    u: Tensor,
    action: Tensor,
    tolerance: float,
) -> Outcome:
    """Judge sampled actions against the parameters on the CPU that they should come from.

    A discrete action may differ from the CPU's where u is nearly at the border of two actions.
    """
    expected = distribution.sample(params, u)
    if isinstance(distribution, DiagonalGaussian):
        return within(difference(action, expected), tolerance)
    mismatches = int((action.cpu() != expected).sum())
    distance = float(boundary_distance(params, u, action).max())
    more = f" (u to the action's interval); {mismatches} of {len(expected)} actions differ"
    return within(distance, tolerance, more)


@torch.no_grad()
def check_sampling(device: str, action: str) -> Outcome:
    """The same parameters and u on both devices."""
    leaf = ACTIONS[action]
    distribution: Categorical | DiagonalGaussian = (
        Categorical(leaf.n) if leaf.n is not None else DiagonalGaussian(leaf.shape)
    )
    rows = 200_000
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(rows, distribution.num_params, generator=generator)
    index = np.arange(rows)
    u = torch.from_numpy(uniform(1, index, index, 0, distribution.noise_dims))
    found = distribution.sample(params.to(device), u.to(device))
    return compare_actions(distribution, params, u, found, 1e-6 if leaf.n else 1e-5)


@torch.no_grad()
def check_acting(device: str, spec: EnvSpec, dtype: str, tolerance: float) -> Outcome:
    """`ActingPolicy` on the device against the network on the CPU: actions, their log-probabilities
    and values."""
    network, obs = network_of(spec), observations(spec)
    policy = ActingPolicy(spec, config_of(spec, device, dtype))
    policy.load_state_dict(network.state_dict())
    index = np.arange(ROWS)
    u = torch.from_numpy(uniform(1, index, index, 0, policy.noise_dims["action"]))
    actions, log_prob, value = policy.act(obs, {"action": u})
    output = network(obs)
    expected, _ = network.evaluate(output, actions)
    passed, text = compare_actions(
        network.distributions["action"], output.params["action"], u, actions["action"], tolerance
    )
    error = largest_difference((log_prob, value), (expected, output.value))
    return passed and error <= tolerance, f"{text}; log-probability and value {error:.1e}"


def check_vtrace(device: str) -> Outcome:
    """Both kinds of targets and advantages."""
    return within(largest_difference(_targets(device), _targets("cpu")), 1e-5)


def _targets(device: str) -> list[Tensor]:
    rows = synthetic_rollout(device)
    ratio = (rows["log_prob"] - rows["behaviour"]).exp()
    targets: list[Tensor] = []
    for vtrace in (vtrace_appo, vtrace_impala):
        targets += vtrace(
            ratio,
            *(rows[name] for name in ("reward", "value", "terminated", "truncated", "ignored")),
            gamma=0.99,
            lambda_=0.95,
        )
    return targets


def check_losses(device: str) -> Outcome:
    """Every term of both losses, and the gradients of what goes in."""
    return within(largest_difference(_loss_terms(device), _loss_terms("cpu")), 1e-5)


def _loss_terms(device: str) -> list[Tensor]:
    rows = synthetic_rollout(device)
    names = ("log_prob", "entropy", "value", "kl_from_uniform")
    inputs = [rows[name][: len(rows["entropy"])] for name in names]
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    ratio = (rows["log_prob"] - rows["behaviour"]).exp()
    trace = [rows[n] for n in ("reward", "value", "terminated", "truncated", "ignored")]
    rest = (rows["weight"], rows["ignored"])
    more = {
        "value_coef": 0.5, "entropy_coef": 0.01, "kl_from_uniform": inputs[3], "barrier_coef": 0.02
    }  # fmt: skip
    appo = appo_loss(
        *inputs[:3],
        rows["behaviour"],
        vtrace_appo(ratio, *trace, gamma=0.99),
        *rest,
        clip=0.2,
        **more,
    )
    impala = impala_loss(
        *inputs[:3], rows["behaviour"], vtrace_impala(ratio, *trace, gamma=0.99), *rest, **more
    )
    terms: list[Tensor] = []
    for loss in (appo, impala):
        gradients = torch.autograd.grad(loss.loss, inputs, allow_unused=True)
        # A mean over the rows: its gradients are as small as the rows are many.
        terms += [*loss, *(g * ratio.numel() for g in gradients if g is not None)]
    return terms


def updated(device: str, spec: EnvSpec, dtype: str) -> tuple[Tensor, dict[str, float]]:
    """Change of the parameters f32 [num_params] and metrics of one update, from equal weights and
    rows."""
    config = config_of(spec, device, dtype)
    torch.manual_seed(0)
    updater = Updater(spec, config)
    before = torch.from_numpy(updater.flat_numpy().copy())
    plan = Plan(config, spec, updater.num_params, cores=1)
    with contextlib.closing(Arena.create()) as arena:
        plan = dataclasses.replace(plan, segment=arena.extend(plan.layout().nbytes))
        shared, slots = filled_arena(plan, arena)
        reader = BatchReader(shared, updater.chunk_rows)
        batch = reader.read(slots, version=1, max_lag=config.max_policy_lag)
        metrics = updater.update(batch, reader, update=0, progress=0.0)
        change = torch.from_numpy(updater.flat_numpy()) - before
        return change, {name: float(value) for name, value in metrics.items()}


def check_update(device: str, spec: EnvSpec, dtype: str, tolerance: float) -> Outcome:
    """One optimiser step: how far the parameters end from the CPU's in f32, as a share of the way.

    Lengths, not single parameters: Adam's first step is about as long for every parameter, so of
    1.7 million some have a gradient that is all rounding, and go the other way. The metrics' means
    are held to a tenth of the tolerance.
    """
    expected, expected_metrics = updated("cpu", spec, "f32")
    found, metrics = updated(device, spec, dtype)
    share = float((found - expected).norm() / expected.norm())
    passed, text = within(share, tolerance, " (share of the step)")
    error = metric_error(metrics, expected_metrics)
    return passed and error <= tolerance / 10, f"{text}; metrics {error:.1e}"


def check_engine(device: str) -> Outcome:
    """A short run through the command line, to its end."""
    with tempfile.TemporaryDirectory(prefix="fastrl-check-") as folder:
        run = Path(folder) / "run"
        command = command_line(
            "fastrl-train",
            *("--env", "envpool:CartPole-v1", "--device", device, "--seed", "1"),
            *("--total-steps", str(ENGINE_STEPS), "--workers", "2", "--run-dir", str(run)),
        )
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ENGINE_SECONDS,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-20:])
            return False, f"exit code {done.returncode}, its last lines:\n{tail}"
        last = read_records(run)[-1]
    steps, by = last["steps"], last.get("stopped_by")
    passed = steps >= ENGINE_STEPS and by == "total_steps"
    return passed, f"exit code 0, {steps:,} steps in {last['seconds']:.0f} s, stopped by {by}"


def comparisons(device: str) -> dict[str, Check]:
    """Everything but the run of the engine, by name; `device` "cpu" compares the CPU with
    itself."""
    image, vector = spec_of("image", "discrete"), spec_of("vector", "discrete")
    continuous = spec_of("vector", "continuous")
    exact = {
        "forward, image, exact f32": partial(check_forward, device, image, False, 1e-4),
        "forward, vector, exact f32": partial(check_forward, device, vector, False, 1e-5),
        "acting, image, exact f32": partial(check_acting, device, image, "f32", 1e-4),
        "acting, vector, exact f32": partial(check_acting, device, vector, "f32", 1e-5),
        "acting, continuous, exact f32": partial(check_acting, device, continuous, "f32", 1e-4),
        "update, image, exact f32": partial(check_update, device, image, "f32", 1e-2),
        "update, vector, exact f32": partial(check_update, device, vector, "f32", 1e-3),
        "update, continuous, exact f32": partial(check_update, device, continuous, "f32", 1e-3),
    }
    return {name: partial(_exactly, check) for name, check in exact.items()} | {
        "forward, image, f32 as the engine has it": partial(
            check_forward, device, image, False, 1e-2
        ),
        "forward, image, bf16 autocast": partial(check_forward, device, image, True, 5e-2),
        "acting, image, bf16": partial(check_acting, device, image, "bf16", 5e-2),
        "update, image, bf16": partial(check_update, device, image, "bf16", 0.2),
        "sampling, discrete": partial(check_sampling, device, "discrete"),
        "sampling, continuous": partial(check_sampling, device, "continuous"),
        "V-trace": partial(check_vtrace, device),
        "losses and their gradients": partial(check_losses, device),
    }


def _exactly(check: Check) -> Outcome:
    with exact_f32():
        return check()


def run_checks(checks: dict[str, Check]) -> int:
    """Run all, print one line each; return how many failed."""
    failed = 0
    for name, check in checks.items():
        try:
            passed, text = check()
        except (
            EngineFailed,
            OSError,
            RuntimeError,
            ValueError,
            subprocess.TimeoutExpired,
        ) as error:
            passed, text = False, f"{type(error).__name__}: {error}"
        failed += not passed
        print(f"{'ok    ' if passed else 'FAILED'} {name}: {text}", flush=True)
    return failed


def main() -> int:
    """Check the first CUDA device; return the exit code."""
    if not torch.cuda.is_available():
        print(
            f"gpu_check.py needs a CUDA device, and PyTorch {torch.__version__} sees none here.",
            file=sys.stderr,
        )
        return 2
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    checks = comparisons("cuda") | {"fastrl-train --device cuda": partial(check_engine, "cuda")}
    failed = run_checks(checks)
    print(f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
