"""R2D3 learns from demonstrations what R2D2 does not find.

pytest tests/learning/test_r2d3_learns.py -m slow -s
"""

import jax
import numpy as np
import pytest

from inner_loops import r2d3
from metaevo import envs, fitness
from metaevo.analysis import holdout
from metaevo.envs import gymnax

DEEP_SEA = r2d3.Config(50_000, num_demonstrations=10)
CAR = r2d3.Config(200_000)
MANY = r2d3.Meta(demo_ratio=0.25)
"""The paper's share, the default, is for lives of billions of frames."""
NONE = r2d3.Meta(demo_ratio=0.0)
"""Without demonstrations: R2D2."""


def final_returns(env, config, meta):
    """The deterministic policy's return after training, of 8 seeds."""
    runs = holdout.train_hand_made(
        r2d3.make(env, config, meta),
        fitness.final_return,
        jax.random.key(1),
        8,
        jax.devices()[:2],
    )
    returns = runs.final_return[0]
    print(f"\nr2d3: mean {returns.mean():.2f}, seeds {np.sort(returns).round(2)}")
    return returns


@pytest.mark.slow
def test_deep_sea_is_solved_with_10_demonstrations():
    assert final_returns(gymnax.deep_sea(12), DEEP_SEA, MANY).mean() >= 0.9


@pytest.mark.slow
def test_deep_sea_is_not_solved_without_demonstrations():
    assert final_returns(gymnax.deep_sea(12), DEEP_SEA, NONE).mean() <= 0.2


@pytest.mark.slow
def test_mountain_car_is_solved_with_50_demonstrations():
    car = envs.make("gymnax/MountainCar-v0")
    assert final_returns(car, CAR, MANY).mean() >= -140


@pytest.mark.slow
def test_mountain_car_is_not_solved_without_demonstrations():
    car = envs.make("gymnax/MountainCar-v0")
    assert final_returns(car, CAR, NONE).mean() <= -180
