"""R2D2 learns what needs memory, and DQN does not.

pytest tests/learning/test_r2d2_learns.py -m slow -s
"""

import jax
import numpy as np
import pytest

from inner_loops import dqn, r2d2
from metaevo import envs, fitness
from metaevo.analysis import holdout


def masked_cartpole():
    """Without the two velocities."""
    return envs.select(envs.make("gymnax/CartPole-v1"), (0, 2))


def final_returns(module, env, num_seeds, config, meta):
    """The deterministic policy's return after training, one per seed."""
    runs = holdout.train_hand_made(
        module.make(env, config, meta),
        fitness.final_return,
        jax.random.key(1),
        num_seeds,
        jax.devices()[:2],
    )
    returns = runs.final_return[0]
    name = module.__name__.rpartition(".")[-1]
    print(f"{name}: mean {returns.mean():.2f}, seeds {np.sort(returns).round(2)}")
    return returns


def test_r2d2_remembers_what_it_saw_at_the_start():
    """MemoryChain: 1 if the action at the end is that of the first observation."""
    config = r2d2.Config(30_000, num_segments=1)
    env = envs.make("gymnax/MemoryChain-bsuite")
    assert final_returns(r2d2, env, 3, config, r2d2.Meta()).mean() >= 0.5


@pytest.mark.slow
def test_memory_chain_of_5_is_solved():
    env = envs.make("gymnax/MemoryChain-bsuite")
    config = r2d2.Config(200_000)
    assert final_returns(r2d2, env, 8, config, r2d2.Meta()).mean() >= 0.9


@pytest.mark.slow
def test_masked_cartpole_needs_the_memory():
    config = r2d2.Config(1_000_000)
    returns = final_returns(r2d2, masked_cartpole(), 8, config, r2d2.Meta())
    assert returns.mean() >= 300
    # 15 % of the way from a random policy less, for three seeds in four.
    assert (returns >= 258).sum() >= 6


@pytest.mark.slow
def test_masked_cartpole_is_not_solved_without_it():
    returns = final_returns(
        dqn, masked_cartpole(), 8, dqn.Config(1_000_000), dqn.Meta()
    )
    assert returns.mean() <= 150
