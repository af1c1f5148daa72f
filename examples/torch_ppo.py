"""PPO in PyTorch, in one file, with an evolved value loss.

The layout is that of CleanRL's single-file PPO (Huang et al., 2022), with a CartPole in
PyTorch so that it needs nothing else. The evolved loss is an exported file:

    metaevo export runs/loss to=torch out=evolved.py
    python examples/torch_ppo.py                 # squared error
    python examples/torch_ppo.py evolved.py      # the evolved one
"""

import inspect
import runpy
import sys

import torch
from torch import nn

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 4, 64, 4, 4
LR, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 1e-3, 0.99, 0.95, 0.2, 0.01, 0.5


def squared_error(value, target, old_value):
    return 0.5 * (value - target) ** 2


def evolved(path):
    """The value loss of an exported file."""
    loss = runpy.run_path(path)["value_loss"]
    if "return_std" not in inspect.signature(loss).parameters:
        return loss

    def value_loss(value, target, old_value):
        # A loss that is free of the scale of rewards measures errors in this.
        return loss(value, target, old_value, target.std())

    return value_loss


# --- CartPole (Barto, Sutton and Anderson, 1983), reset after 500 steps ---------------


def start(num, generator):
    return 0.1 * torch.rand(num, 4, generator=generator) - 0.05


def step(state, action):
    _, v, angle, spin = state.unbind(1)
    force = torch.where(action == 1, 10.0, -10.0)
    sin, cos = torch.sin(angle), torch.cos(angle)
    push = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    slide = push - 0.05 * turn * cos / 1.1
    state = state + 0.02 * torch.stack([v, slide, spin, turn], 1)
    return state, (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2095)


# --- PPO ------------------------------------------------------------------------------


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = network(2, 0.01), network(1, 1.0)

    def act(self, obs, generator):
        log_p = torch.log_softmax(self.actor(obs), -1)
        action = torch.multinomial(log_p.exp(), 1, generator=generator)
        return action[:, 0], log_p.gather(1, action)[:, 0], self.critic(obs)[:, 0]


def network(num_outputs, gain):
    layers = [nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, num_outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def loss_of(agent, batch, value_loss):
    obs, action, old_log_prob, old_value, advantage, target = batch
    log_p = torch.log_softmax(agent.actor(obs), -1)
    ratio = (log_p.gather(1, action[:, None])[:, 0] - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    entropy = -(log_p.exp() * log_p).sum(-1)
    value = agent.critic(obs)[:, 0]
    return (
        -surrogate.mean()
        + VALUE * value_loss(value, target, old_value).mean()
        - ENTROPY * entropy.mean()
    )


def rollout(agent, obs, length, generator):
    """NUM_STEPS of each environment: records, the next start, and ended episodes."""
    records, ended = [], []
    for _ in range(NUM_STEPS):
        action, log_prob, value = agent.act(obs, generator)
        after, done = step(obs, action)
        length = length + 1
        done = done | (length >= 500)
        records.append((obs, action, log_prob, value, done.float()))
        ended += length[done].tolist()
        obs = torch.where(done[:, None], start(NUM_ENVS, generator), after)
        length = torch.where(done, 0, length)
    return [torch.stack(x) for x in zip(*records, strict=True)], obs, length, ended


def advantages(value, done, last_value):
    """Generalized advantages (Schulman et al., 2016) for a reward of 1 a step."""
    found, advantage, after = [], torch.zeros_like(last_value), last_value
    for t in reversed(range(NUM_STEPS)):
        going = 1 - done[t]
        delta = 1.0 + GAMMA * after * going - value[t]
        advantage = delta + GAMMA * LAMBDA * going * advantage
        after = value[t]
        found.append(advantage)
    return torch.stack(found[::-1])


def train(value_loss, num_updates, seed):
    """One agent: -> agent, returns of the episodes of the last quarter."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    obs, length = start(NUM_ENVS, generator), torch.zeros(NUM_ENVS)
    returns = []
    for i in range(num_updates):
        optimizer.param_groups[0]["lr"] = LR * (1 - i / num_updates)
        with torch.no_grad():
            records, obs, length, ended = rollout(agent, obs, length, generator)
            states, action, log_prob, value, done = records
            advantage = advantages(value, done, agent.critic(obs)[:, 0])
        batch = (states, action, log_prob, value, advantage, advantage + value)
        batch = [x.reshape(-1, *x.shape[2:]) for x in batch]
        for _ in range(EPOCHS):
            order = torch.randperm(NUM_ENVS * NUM_STEPS, generator=generator)
            for chosen in order.chunk(MINIBATCHES):
                optimizer.zero_grad()
                loss_of(agent, [x[chosen] for x in batch], value_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if i >= num_updates * 3 // 4:
            returns += ended
    return agent, returns


def main(path=None, num_updates=256, num_seeds=4):
    """Train `num_seeds` agents; return their mean returns."""
    value_loss = evolved(path) if path else squared_error
    found = [train(value_loss, num_updates, seed)[1] for seed in range(num_seeds)]
    means = [sum(x) / max(len(x), 1) for x in found]
    total = sum(means) / num_seeds
    print(f"{path or 'squared error'}: last quarter's return {total:.1f}")
    return means


if __name__ == "__main__":
    main(*sys.argv[1:2])
