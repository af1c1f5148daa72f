"""Gradient steps of TD3, SAC and DQN in PyTorch, for `experiments.update_step.run`.

    .venv-torch/bin/python experiments/update_step/torch_steps.py ALGORITHM WAY SIZE

WAY is `sequential`, modules and `torch.optim.Adam` member by member, or `vmap`, the
members stacked under `torch.func.vmap`. Networks, minibatches and numbers are those of
the loops that are timed beside it. Minibatches are random numbers, drawn before. For
each line of input, a number of steps, it prints the seconds that they took.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

GAMMA, TAU, LR, BATCH = 0.99, 0.005, 3e-4, 128
PIXELS_BATCH = 32
OBS, ACTIONS = 3, 1  # Pendulum
DISCRETE_OBS, NUM_ACTIONS = 4, 2  # CartPole


def mlp(inputs: int, outputs: int) -> nn.Module:
    layers = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, outputs))


def nature() -> nn.Module:
    layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
    layers += [nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(-3)]
    return nn.Sequential(*layers, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))


class Twin(nn.Module):
    """Two critics."""

    def __init__(self):
        super().__init__()
        self.one, self.two = mlp(OBS + ACTIONS, 1), mlp(OBS + ACTIONS, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], -1)
        return self.one(x)[..., 0], self.two(x)[..., 0]


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def forward(self):
        return self.log


# Losses of one member: `call(name, *inputs)` applies a network, `held` is what does not
# learn in the step.


def dqn_loss(call, batch):
    with torch.no_grad():
        later = call("target", batch["next_obs"]).max(-1).values
        target = batch["reward"] + GAMMA * (1 - batch["done"]) * later
    q = call("q", batch["obs"]).gather(-1, batch["choice"][:, None])[:, 0]
    return ((q - target) ** 2).mean()


def td3_critic(call, batch):
    with torch.no_grad():
        noise = (0.2 * batch["noise"]).clamp(-0.5, 0.5)
        action = (call("actor_target", batch["next_obs"]).tanh() + noise).clamp(-1, 1)
        later = torch.minimum(*call("critic_target", batch["next_obs"], action))
        target = batch["reward"] + GAMMA * (1 - batch["done"]) * later
    one, two = call("critic", batch["obs"], batch["action"])
    return ((one - target) ** 2).mean() + ((two - target) ** 2).mean()


def td3_actor(call, batch):
    action = call("actor", batch["obs"]).tanh()
    return -call("critic", batch["obs"], action)[0].mean()


def sampled(call, obs, noise):
    mean, log_std = call("policy", obs).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    pre = mean + log_std.exp() * noise
    action = pre.tanh()
    log_prob = -0.5 * noise**2 - log_std - 0.919 - (1 - action**2 + 1e-6).log()
    return action, log_prob.sum(-1)


def sac_critic(call, batch):
    with torch.no_grad():
        action, log_prob = sampled(call, batch["next_obs"], batch["noise"])
        later = torch.minimum(*call("critic_target", batch["next_obs"], action))
        later = later - call("temperature").exp() * log_prob
        target = batch["reward"] + GAMMA * (1 - batch["done"]) * later
    one, two = call("critic", batch["obs"], batch["action"])
    return ((one - target) ** 2).mean() + ((two - target) ** 2).mean()


def sac_actor(call, batch):
    action, log_prob = sampled(call, batch["obs"], batch["noise"])
    q = torch.minimum(*call("critic", batch["obs"], action))
    return (call("temperature").exp().detach() * log_prob - q).mean()


def sac_temperature(call, batch):
    with torch.no_grad():
        log_prob = sampled(call, batch["obs"], batch["noise"])[1]
    return -(call("temperature") * (log_prob - ACTIONS)).mean()


# name: networks, targets (target -> network), steps: (network, loss, every)
ALGORITHMS = {
    "td3": (
        {"actor": lambda: mlp(OBS, ACTIONS), "critic": Twin},
        {"actor_target": "actor", "critic_target": "critic"},
        [("critic", td3_critic, 1), ("actor", td3_actor, 2)],
    ),
    "sac": (
        {
            "policy": lambda: mlp(OBS, 2 * ACTIONS),
            "critic": Twin,
            "temperature": Temperature,
        },
        {"critic_target": "critic"},
        [
            ("critic", sac_critic, 1),
            ("policy", sac_actor, 1),
            ("temperature", sac_temperature, 1),
        ],
    ),
    "dqn": (
        {"q": lambda: mlp(DISCRETE_OBS, NUM_ACTIONS)},
        {"target": "q"},
        [("q", dqn_loss, 1)],
    ),
    "dqn_nature": ({"q": nature}, {"target": "q"}, [("q", dqn_loss, 1)]),
}


def minibatch(name: str, size: int) -> dict[str, torch.Tensor]:
    """One minibatch of each member, leaves [P, B, ...]."""
    count = PIXELS_BATCH if name == "dqn_nature" else BATCH
    shape = {"dqn": (DISCRETE_OBS,), "dqn_nature": (4, 84, 84)}.get(name, (OBS,))
    return {
        "obs": torch.randn(size, count, *shape),
        "next_obs": torch.randn(size, count, *shape),
        "action": torch.rand(size, count, ACTIONS) * 2 - 1,
        "noise": torch.randn(size, count, ACTIONS),
        "choice": torch.randint(0, NUM_ACTIONS, (size, count)),
        "reward": torch.randn(size, count),
        "done": (torch.rand(size, count) < 0.01).float(),
    }


def sequential(name: str, size: int):
    """A function of one step of all members, one after the other."""
    makers, targets, losses = ALGORITHMS[name]
    members = []
    for _ in range(size):
        nets = {key: make() for key, make in makers.items()}
        nets |= {key: make_copy(nets[of], makers[of]()) for key, of in targets.items()}
        steps = [
            (loss, every, torch.optim.Adam(nets[key].parameters(), LR))
            for key, loss, every in losses
        ]
        members.append((nets, steps))
    batches = minibatch(name, size)

    def step(i):
        for member, (nets, steps) in enumerate(members):
            batch = {key: x[member] for key, x in batches.items()}

            def call(key, *inputs, nets=nets):
                return nets[key](*inputs)

            for loss, every, optimizer in steps:
                if i % every == 0:
                    optimizer.zero_grad()
                    loss(call, batch).backward()
                    optimizer.step()
            with torch.no_grad():
                for key, of in targets.items():
                    own, new = nets[key].parameters(), nets[of].parameters()
                    torch._foreach_lerp_(list(own), list(new), TAU)

    return step


def make_copy(net, other):
    other.load_state_dict(net.state_dict())
    return other


def stacked(name: str, size: int):
    """A function of one step of all members under `vmap`."""
    makers, targets, losses = ALGORITHMS[name]
    modules, params = {}, {}
    for key, make in makers.items():
        modules[key] = make().to("meta")
        found = stack_module_state([make() for _ in range(size)])[0]
        params[key] = {k: x.detach() for k, x in found.items()}
    for key, of in targets.items():
        modules[key] = modules[of]
        params[key] = {k: x.clone() for k, x in params[of].items()}
    moments = {
        key: [[torch.zeros_like(x) for x in params[key].values()] for _ in range(2)]
        for key, _, _ in losses
    }
    batches, counts = minibatch(name, size), dict.fromkeys(makers, 0)

    def gradient_of(key, loss):
        def of_member(learned, held, batch):
            def call(name, *inputs):
                values = learned if name == key else held[name]
                return functional_call(modules[name], values, inputs)

            return loss(call, batch)

        return vmap(grad(of_member), randomness="error")

    gradients = [(key, gradient_of(key, loss), every) for key, loss, every in losses]

    def step(i):
        for key, gradient, every in gradients:
            if i % every:
                continue
            found = list(gradient(params[key], params, batches).values())
            values, (first, second) = list(params[key].values()), moments[key]
            counts[key] += 1
            torch._foreach_lerp_(first, found, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, found, found, 0.001)
            correction = (1 - 0.999 ** counts[key]) ** 0.5
            root = torch._foreach_sqrt(second)
            torch._foreach_div_(root, correction)
            torch._foreach_add_(root, 1e-8)
            rate = -LR / (1 - 0.9 ** counts[key])
            torch._foreach_addcdiv_(values, first, root, rate)
        for key, of in targets.items():
            torch._foreach_lerp_(
                list(params[key].values()), list(params[of].values()), TAU
            )

    return step


def main() -> None:
    name, way, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    step = {"sequential": sequential, "vmap": stacked}[way](name, size)
    for i in range(4):
        step(i)
    for line in sys.stdin:
        began = time.perf_counter()
        for i in range(int(line)):
            step(i)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
