"""rejax's PPO with an evolved value loss.

    metaevo export runs/loss to=jax out=evolved.py
    python examples/rejax_ppo.py                   # its own clipped squared error
    python examples/rejax_ppo.py evolved.py        # the evolved loss

rejax needs gymnax before 1.0, and metaevo a later one: so this runs in an environment
of its own, `pip install rejax 'gymnax<1'`, and the exported file needs no metaevo. The
subclass replaces the loss of the critic, which rejax computes in one method.
"""

import inspect
import runpy
import sys

import jax
from rejax import PPO


class EvolvedPPO(PPO):
    """PPO whose critic minimizes `value_loss(value, target, old_value)`."""

    value_loss = None

    def update_critic(self, ts, batch):
        old_value, target = batch.trajectories.value, batch.targets

        def loss(params):
            value = self.critic.apply(params, batch.trajectories.obs)
            losses = type(self).value_loss(value, target, old_value)
            return self.vf_coef * losses.mean()

        gradient = jax.grad(loss)(ts.critic_ts.params)
        return ts.replace(critic_ts=ts.critic_ts.apply_gradients(grads=gradient))


def evolved(path):
    """A PPO with the value loss of an exported file."""
    loss = runpy.run_path(path)["value_loss"]
    scaled = "return_std" in inspect.signature(loss).parameters

    class Agent(EvolvedPPO):
        @staticmethod
        def value_loss(value, target, old_value):
            # A loss that is free of the scale of rewards measures errors in this.
            more = [target.std()] if scaled else []
            return loss(value, target, old_value, *more)

    return Agent


SETTINGS = {
    "num_envs": 4,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 2.5e-3,
    "max_grad_norm": 0.5,
    "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)},
}


def main(path=None, num_frames=32_768, num_seeds=8):
    """Train agents one by one; return their states and their mean returns [seeds]."""
    agent = (evolved(path) if path else PPO).create(
        env="CartPole-v1", total_timesteps=num_frames, eval_freq=num_frames, **SETTINGS
    )
    train = jax.jit(agent.train)
    found = [train(jax.random.key(seed)) for seed in range(num_seeds)]
    states = [state for state, _ in found]
    returns = [float(x[-1].mean()) for _, (_, x) in found]
    mean = sum(returns) / num_seeds
    print(f"{path or 'clipped squared error'}: return {mean:.1f}")
    return states, returns


if __name__ == "__main__":
    main(*sys.argv[1:2])
