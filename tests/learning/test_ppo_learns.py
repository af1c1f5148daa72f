"""PPO reaches its targets: a short run here, 32 seeds of each in the slow tests."""

import jax
import numpy as np
import pytest

from inner_loops import ppo
from metaevo import envs, fitness
from metaevo.analysis import holdout

# env: (config, meta, threshold of the mean, seeds that must reach `floor`, floor)
CONTROL = {"num_epochs": 10, "num_minibatches": 16, "normalize_reward": True}
CONTROL |= {"normalize_observation": True}
TARGETS = {
    "gymnax/CartPole-v1": (ppo.Config(500_000), ppo.Meta(), 475.0),
    "gymnax/Acrobot-v1": (ppo.Config(500_000), ppo.Meta(), -100.0),
    "gymnax/Pendulum-v1": (
        ppo.Config(150_000, 8, 128, **CONTROL),
        ppo.Meta(lr=1e-3, gamma=0.95, ent_coef=0.0),
        -300.0,
    ),
    "gymnax/MountainCarContinuous-v0": (
        ppo.Config(200_000, 16, 128, **CONTROL),
        ppo.Meta(lr=1e-3, gamma=0.999, ent_coef=0.0),
        80.0,
    ),
}


def final_returns(env, config, meta, num_seeds):
    """The deterministic policy's return after training, one per seed."""
    loop = ppo.make(envs.make(env), config, meta)
    runs = holdout.train_hand_made(
        loop, fitness.final_return, jax.random.key(1), num_seeds, jax.devices()[:2]
    )
    returns = runs.final_return[0]
    print(f"{env}: mean {returns.mean():.1f}, seeds {np.sort(returns).round(1)}")
    return returns


def test_ppo_learns_cartpole():
    env = "gymnax/CartPole-v1"
    config, meta, threshold = TARGETS[env]
    assert final_returns(env, config, meta, 3).mean() >= threshold


@pytest.mark.slow
@pytest.mark.parametrize("env", TARGETS)
def test_ppo_reaches_its_target(env):
    """32 seeds: about one in 150 collapses on CartPole, and 8 say little of that."""
    config, meta, threshold = TARGETS[env]
    returns = final_returns(env, config, meta, 32)
    if "MountainCar" in env:
        assert (returns >= threshold).mean() >= 6 / 8
    else:
        assert returns.mean() >= threshold
