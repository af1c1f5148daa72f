"""Stable-Baselines3's DQN with an evolved loss of the temporal difference.

    metaevo export runs/td_loss to=torch out=evolved.py
    python examples/sb3_dqn.py                   # its own Huber loss
    python examples/sb3_dqn.py evolved.py        # the evolved loss

Stable-Baselines3 has no argument for the loss of its critic. The subclass puts one in
the place of the Huber loss while the agent learns, and changes nothing else.
"""

import inspect
import runpy
import sys
from unittest import mock

from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.dqn import dqn


def evolved(path):
    """A DQN that minimizes `td_loss(q, target)` of an exported file."""
    loss = runpy.run_path(path)["td_loss"]
    scaled = "return_std" in inspect.signature(loss).parameters

    def mean_loss(q, target):
        # A loss that is free of the scale of rewards measures errors in this.
        more = [target.std()] if scaled else []
        return loss(q, target, *more).mean()

    class EvolvedDQN(DQN):
        def train(self, *args, **kwargs):
            with mock.patch.object(dqn.F, "smooth_l1_loss", mean_loss):
                super().train(*args, **kwargs)

    return EvolvedDQN


def main(path=None, num_frames=50_000, seed=0, **settings):
    """Train one agent with settings of DQN; return its mean return on ten episodes.

    The settings that are not given are those of rl-baselines3-zoo for CartPole, but for
    its networks of 256 units.
    """
    make = evolved(path) if path else DQN
    usual = {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
    }
    settings = usual | settings
    agent = make("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", **settings)
    agent.learn(num_frames)
    mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
    print(f"{path or 'Huber loss'}: return {mean:.1f}")
    return agent, mean


if __name__ == "__main__":
    main(*sys.argv[1:2])
