"""Recurrent PPO learns what needs memory, and PPO does not."""

import jax
import numpy as np
import pytest

from inner_loops import ppo, ppo_rnn
from metaevo import envs, fitness
from metaevo.analysis import holdout


def masked_cartpole():
    """Without the two velocities."""
    return envs.select(envs.make("gymnax/CartPole-v1"), (0, 2))


def final_returns(module, num_seeds, config, meta):
    """The deterministic policy's return after training, one per seed."""
    loop = module.make(masked_cartpole(), config, meta)
    runs = holdout.train_hand_made(
        loop, fitness.final_return, jax.random.key(1), num_seeds, jax.devices()[:2]
    )
    returns = runs.final_return[0]
    name = module.__name__.rpartition(".")[-1]
    print(f"{name}: mean {returns.mean():.1f}, seeds {np.sort(returns).round(1)}")
    return returns


def test_recurrent_ppo_learns_masked_cartpole():
    """To several times what a policy without memory reaches."""
    config = ppo_rnn.Config(100_000, num_segments=1)
    returns = final_returns(ppo_rnn, 3, config, ppo_rnn.Meta(lr=1e-3))
    assert returns.mean() >= 150


@pytest.mark.slow
def test_masked_cartpole_needs_the_memory():
    config = ppo_rnn.Config(500_000)
    returns = final_returns(ppo_rnn, 8, config, ppo_rnn.Meta(lr=1e-3))
    assert returns.mean() >= 300
    # With PPO's own defaults, and twice the frames.
    returns = final_returns(ppo, 8, ppo.Config(1_000_000), ppo.Meta())
    assert returns.mean() <= 150
