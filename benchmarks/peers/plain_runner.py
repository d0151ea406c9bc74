"""A plain synchronous PPO: envpool and torch in one process, one loop, one file.

::

    T x [ act on all environments ─▶ step all of them ] ─▶ GAE ─▶ E epochs of M minibatches ─▶ ...

It does what a good single-file implementation does, and takes care of its copies: observations
are stored once, as bytes, and acted upon and learned from where they lie. Everything is f32, with
torch's own number of threads. While environments step the network waits, and the other way round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import envpool
import numpy as np
import torch
import torch.nn.functional as F
from runner_lines import FRAMES_PER_STEP, Progress, arguments, cores
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """What is trained, and how."""

    task: str
    num_envs: int
    reward_clip: bool
    learning_rate: float
    clip: float
    num_steps: int = 32
    minibatches: int = 4
    epochs: int = 1
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


WORKS = {
    "pong": Work("Pong-v5", 128, reward_clip=True, learning_rate=5e-4, clip=0.1),
    "cartpole": Work("CartPole-v1", 1024, reward_clip=False, learning_rate=1e-3, clip=0.2),
}


def layer(module: nn.Conv2d | nn.Linear, gain: float = math.sqrt(2.0)) -> nn.Module:
    """Initialise orthogonally, without a bias."""
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """Nature CNN for images [N, C, 84, 84], 2 x 64 tanh for vectors [N, D]; then two heads."""

    def __init__(self, shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.is_image = len(shape) == 3
        if self.is_image:
            self.body = nn.Sequential(
                layer(nn.Conv2d(shape[0], 32, 8, 4)),
                nn.ReLU(inplace=True),
                layer(nn.Conv2d(32, 64, 4, 2)),
                nn.ReLU(inplace=True),
                layer(nn.Conv2d(64, 64, 3, 1)),
                nn.ReLU(inplace=True),
                nn.Flatten(),
                layer(nn.Linear(64 * 7 * 7, 512)),
                nn.ReLU(inplace=True),
            ).to(memory_format=torch.channels_last)
        else:
            self.body = nn.Sequential(
                layer(nn.Linear(shape[0], 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
            )
        size = 512 if self.is_image else 64
        self.policy = layer(nn.Linear(size, num_actions), 0.01)
        self.value = layer(nn.Linear(size, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Observations → log-probabilities f32 [N, actions], values f32 [N]."""
        if self.is_image:
            obs = obs.to(torch.float32, memory_format=torch.channels_last).mul_(1.0 / 255.0)
        features = self.body(obs)
        return F.log_softmax(self.policy(features), -1), self.value(features).squeeze(-1)


def of_actions(log_probs: Tensor, actions: Tensor) -> Tensor:
    """Pick the log-probability of each row's action: f32 [N] of f32 [N, A] and int64 [N]."""
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def advantages_of(
    rewards: Tensor, values: Tensor, dones: Tensor, work: Work, out: Tensor
) -> Tensor:
    """GAE, into `out` f32 [T, N]; `values` and `dones` (what follows is a new episode) [T + 1, N].

    `dones[t]` says of row t that it begins an episode, so row t - 1 has no successor.
    """
    later = torch.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - dones[t + 1]
        delta = rewards[t] + work.gamma * goes_on * values[t + 1] - values[t]
        later = delta + work.gamma * work.gae_lambda * goes_on * later
        out[t] = later
    return out


def train(work: Work, progress: Progress, seed: int = 1) -> None:
    """Train until `progress` says that it is enough."""
    torch.manual_seed(seed)
    options = {"reward_clip": True, "episodic_life": True} if work.reward_clip else {}
    envs = envpool.make_gymnasium(
        work.task, num_envs=work.num_envs, num_threads=cores(), seed=seed, **options
    )
    shape, num_actions = envs.observation_space.shape, int(envs.action_space.n)
    agent = Agent(shape, num_actions)
    optimizer = torch.optim.Adam(agent.parameters(), work.learning_rate, eps=1e-5, fused=True)
    steps, rows = work.num_steps, (work.num_steps, work.num_envs)
    first, _ = envs.reset()
    obs = torch.zeros((steps + 1, work.num_envs, *shape), dtype=torch.from_numpy(first[:1]).dtype)
    obs[steps].copy_(torch.from_numpy(first))
    actions = torch.zeros(rows, dtype=torch.int64)
    old_log_probs, rewards, advantages = torch.zeros((3, *rows)).unbind()
    values, dones = torch.zeros((2, steps + 1, work.num_envs)).unbind()
    size = steps * work.num_envs
    learned = 0

    @torch.inference_mode()
    def collect() -> int:
        """Fill the arrays; return the steps that had effect (a row that resets has none)."""
        obs[0].copy_(obs[steps])
        dones[0].copy_(dones[steps])
        for t in range(steps):
            log_probs, value = agent(obs[t])
            # Exponential race: the smallest of E/p is distributed as p.
            race = torch.empty_like(log_probs).exponential_().log_().sub_(log_probs)
            torch.argmin(race, -1, out=actions[t])
            old_log_probs[t], values[t] = of_actions(log_probs, actions[t]), value
            seen, reward, terminated, truncated, _ = envs.step(actions[t].numpy().astype(np.int32))
            obs[t + 1].copy_(torch.from_numpy(seen))
            rewards[t].copy_(torch.from_numpy(reward))
            dones[t + 1].copy_(torch.from_numpy(terminated | truncated))
        values[steps] = agent(obs[steps])[1]
        advantages_of(rewards, values, dones, work, out=advantages)
        return size - int(dones[:steps].sum())

    while True:
        effective = collect()
        returns = (advantages + values[:steps]).flatten()
        flat_obs = obs[:steps].flatten(0, 1)
        flat_actions, flat_old = actions.flatten(), old_log_probs.flatten()
        flat_advantages = advantages.flatten()
        for _ in range(work.epochs):
            for index in torch.randperm(size).chunk(work.minibatches):
                log_probs, value = agent(flat_obs[index])
                ratio = (of_actions(log_probs, flat_actions[index]) - flat_old[index]).exp()
                advantage = flat_advantages[index]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1.0 - work.clip, 1.0 + work.clip)
                policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                value_loss = 0.5 * F.mse_loss(value, returns[index])
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
                loss = policy_loss + work.value_coef * value_loss - work.entropy_coef * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), work.max_grad_norm)
                optimizer.step()
        learned += effective
        if progress.told(learned):
            return


def main() -> None:
    """Train one of the works for the time that the command line says."""
    options = arguments(tuple(WORKS), "A plain synchronous PPO with envpool.")
    work = WORKS[options.work]
    if options.environments is not None:
        work = Work(**{**vars(work), "num_envs": options.environments})
    frames = FRAMES_PER_STEP[options.work]
    train(
        work,
        Progress(options.folder, options.seconds, frames, work.num_envs, ("envpool", "torch")),
    )


if __name__ == "__main__":
    main()
