"""The plain synchronous loop with the recipe of fastrl's preset for Atari, in f32: its curve.

``python benchmarks/peers/plain_learner.py --seed 1 --seconds 1500 --out plain-pong.json``

One process, one loop: 64 environments of envpool, 64 steps of each, then two epochs of minibatches
of 512 steps. Pixels are normalised one by one, returns as well, the learning rate follows the
divergence; what that is to be, the bonus on entropy and the log barrier fall. The curve goes to the
file that ``fastrl-bench learn --tasks pong --beside`` takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from pathlib import Path

import envpool
import numpy as np
import torch
from plain_runner import Agent, Work, advantages_of, of_actions
from runner_lines import cores, made
from torch import Tensor, nn

WORK = Work(
    "Pong-v5", 64, reward_clip=True, learning_rate=3e-4, clip=0.2, num_steps=64, minibatches=8,
    epochs=2, value_coef=1.0, max_grad_norm=1.0,
)  # fmt: skip
TARGET_KL, FACTOR, TOLERANCE = 0.02, 1.5, 2.0
TARGET_KL_FINAL, ENTROPY_FINAL, ANNEAL_STEPS = 0.01, 0.001, 600_000
BARRIER_COEF, BARRIER_FINAL = 0.02, 0.002
KL_ROWS, MOMENT_ROWS = 256, 256
RETURN_MEMORY = 64
"""Batches of returns that their statistics remember."""
WINDOW = 100


class Pixels:
    """Running mean and deviation of each pixel, of some rows of each batch; 1/255 until then."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = torch.zeros(shape)
        self.variance = torch.full(shape, 255.0**2)

    def merge(self, rows: Tensor) -> None:
        """Take in uint8 [N, *shape]."""
        x = rows.float()
        n, total = len(x), self.count + len(x)
        delta = x.mean(0) - self.mean
        squares = self.variance * self.count + x.var(0, unbiased=False) * n
        self.variance = (squares + delta.square() * (self.count * n / total)) / total
        self.mean = self.mean + delta * (n / total)
        self.count = total

    def __call__(self, rows: Tensor) -> Tensor:
        """uint8 [N, *shape] → f32, at least one grey level to a deviation, within ±5."""
        scale = self.variance.clamp_min(1.0).rsqrt()
        x = rows.to(torch.float32, memory_format=torch.channels_last)
        return x.sub_(self.mean).mul_(scale).clamp_(-5.0, 5.0)


class NormalisedAgent(Agent):
    """The agent of `plain_runner` on normalised pixels, whose value is in units of returns."""

    def __init__(self, shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__(shape, num_actions)
        layers = [nn.ELU(inplace=True) if isinstance(x, nn.ReLU) else x for x in self.body]
        self.body = nn.Sequential(*layers)
        self.pixels = Pixels(shape)
        self.mean, self.deviation, self.count = 0.0, 1.0, 0.0

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N, actions] and normalised values [N]."""
        features = self.body(self.pixels(obs))
        logits = self.policy(features)
        return logits.log_softmax(-1), self.value(features).squeeze(-1)

    @torch.no_grad()
    def merge_returns(self, returns: Tensor, longest: float) -> None:
        """Take in the targets of a batch; no value in units of returns changes by it."""
        n = float(returns.numel())
        kept = min(self.count, longest - n)
        total = kept + n
        mean, variance = float(returns.mean()), float(returns.var(unbiased=False))
        delta = mean - self.mean
        new_mean = self.mean + delta * n / total
        squares = self.deviation**2 * kept + variance * n + delta**2 * kept * n / total
        new_deviation = max(1e-4, (squares / total) ** 0.5)
        self.value.weight.mul_(self.deviation / new_deviation)
        bias = (self.deviation * self.value.bias + self.mean - new_mean) / new_deviation
        self.value.bias.copy_(bias)
        self.mean, self.deviation, self.count = new_mean, new_deviation, total


def train(seed: int, seconds: float, began: float) -> list[tuple[int, float, float]]:
    """Train for so long; (steps, seconds, mean return of the last 100 episodes) as they grow."""
    work = WORK
    torch.manual_seed(seed)
    envs = envpool.make_gymnasium(
        work.task, num_envs=work.num_envs, num_threads=cores(), seed=seed, reward_clip=True
    )
    shape, num_actions = envs.observation_space.shape, int(envs.action_space.n)
    agent = NormalisedAgent(shape, num_actions)
    rate = work.learning_rate
    optimizer = torch.optim.Adam(agent.parameters(), rate, eps=1e-5, fused=True)
    T, N = work.num_steps, work.num_envs
    first, _ = envs.reset()
    obs = torch.zeros((T + 1, N, *shape), dtype=torch.uint8)
    obs[T].copy_(torch.from_numpy(first))
    actions = torch.zeros((T, N), dtype=torch.int64)
    old_log_probs, rewards, advantages = torch.zeros((3, T, N)).unbind()
    values, dones = torch.zeros((2, T + 1, N)).unbind()
    score, recent = np.zeros(N), deque(maxlen=WINDOW)
    steps, curve = 0, []
    while time.monotonic() - began < seconds:
        with torch.inference_mode():
            obs[0].copy_(obs[T])
            dones[0].copy_(dones[T])
            for t in range(T):
                log_probs, value = agent.outputs(obs[t])
                race = torch.empty_like(log_probs).exponential_().log_().sub_(log_probs)
                torch.argmin(race, -1, out=actions[t])
                old_log_probs[t] = of_actions(log_probs, actions[t])
                values[t] = value * agent.deviation + agent.mean
                seen, reward, terminated, truncated, _ = envs.step(
                    actions[t].numpy().astype(np.int32)
                )
                over = terminated | truncated
                obs[t + 1].copy_(torch.from_numpy(seen))
                rewards[t].copy_(torch.from_numpy(reward))
                dones[t + 1].copy_(torch.from_numpy(over))
                score += reward
                recent.extend(score[over].tolist())
                score[over] = 0.0
            values[T] = agent.outputs(obs[T])[1] * agent.deviation + agent.mean
            advantages_of(rewards, values, dones, work, out=advantages)
            steps += T * N - int(dones[:T].sum())
        valid = (dones[:T] == 0).flatten().nonzero().squeeze(-1)
        flat_obs, flat_actions = obs[:T].flatten(0, 1), actions.flatten()
        flat_old, flat_advantages = old_log_probs.flatten(), advantages.flatten()
        returns = (advantages + values[:T]).flatten()
        some = valid[torch.randperm(len(valid))[:KL_ROWS]]
        with torch.inference_mode():
            before = agent.outputs(flat_obs[some])[0].clone()
        targets = (returns - agent.mean) / agent.deviation
        share = min(1.0, steps / ANNEAL_STEPS)
        target_kl = TARGET_KL + share * (TARGET_KL_FINAL - TARGET_KL)
        entropy_coef = work.entropy_coef + share * (ENTROPY_FINAL - work.entropy_coef)
        barrier_coef = BARRIER_COEF + share * (BARRIER_FINAL - BARRIER_COEF)
        for _ in range(work.epochs):
            for index in valid[torch.randperm(len(valid))].chunk(work.minibatches):
                log_probs, value = agent.outputs(flat_obs[index])
                ratio = (of_actions(log_probs, flat_actions[index]) - flat_old[index]).exp()
                advantage = flat_advantages[index]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1.0 - work.clip, 1.0 + work.clip)
                policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                value_loss = 0.5 * (value - targets[index]).square().mean()
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
                barrier = -log_probs.mean(-1).mean()  # KL(uniform, policy) but for a constant
                loss = policy_loss + work.value_coef * value_loss - entropy_coef * entropy
                loss = loss + barrier_coef * barrier
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(agent.parameters(), work.max_grad_norm)
                optimizer.step()
        with torch.inference_mode():
            after = agent.outputs(flat_obs[some])[0]
            kl = float((before.exp() * (before - after)).sum(-1).mean())
        if kl > target_kl * TOLERANCE:
            rate = max(1e-6, rate / FACTOR)
        elif kl < target_kl / TOLERANCE:
            rate = min(1e-2, rate * FACTOR)
        optimizer.param_groups[0]["lr"] = rate
        agent.pixels.merge(flat_obs[valid[torch.randperm(len(valid))[:MOMENT_ROWS]]])
        agent.merge_returns(returns[valid], RETURN_MEMORY * T * N)
        if len(recent) == WINDOW:
            curve.append((steps, time.monotonic() - began, float(np.mean(recent))))
            print(f"{curve[-1][1]:6.0f} s {steps:9,} steps  return {curve[-1][2]:7.2f}", flush=True)
    return curve


def process_start() -> float:
    """time.monotonic() of this process's start, its imports before it."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Train Pong for the time that the command line says."""
    began = process_start()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    curve = train(options.seed, options.seconds, began)
    columns = zip(*curve, strict=True) if curve else ((), (), ())
    names = ("steps", "seconds", "returns")
    result = {
        "trainer": "plain synchronous loop, the same recipe in f32",
        "env": "atari:Pong",
        "command": " ".join(["python", "benchmarks/peers/plain_learner.py", *sys.argv[1:]]),
        "made": made(("torch", "envpool")),
        "runs": [
            {
                "seed": options.seed,
                "curve": {
                    name: [round(x, 3) for x in column]
                    for name, column in zip(names, columns, strict=True)
                },
            }
        ],
    }
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
