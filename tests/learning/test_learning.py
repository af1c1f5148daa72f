"""Algorithms learn: short runs of some, published scores in slow ones.

    pytest tests/learning/test_learning.py -m slow -s -k "sac-Pendulum"

runs one target. Keys are fixed, so a run repeats on one platform; scores are those of
the deterministic policy after training. PPO's own targets are in test_ppo.py, those of
recurrent PPO in test_ppo_rnn.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from inner_loops import (
    a2c,
    apex,
    apex_ddpg,
    dqn,
    gorila,
    gumbel_alphazero,
    impala,
    ppo,
    pqn,
    qtopt,
    sac,
    td3,
)
from metaevo import envs, fitness
from metaevo.analysis import holdout


class Target(NamedTuple):
    """A score to reach, by the mean over seeds or by some of them.

    Attributes:
        module, env, config, meta: what is trained.
        threshold: of the mean over seeds.
        random: what a random policy reaches; three seeds in four must get as far as
            the threshold less 15 % of the way from there.
        each: if given, how many seeds must reach the threshold, in place of the mean.
        num_seeds: seeds.
    """

    module: Any
    env: str
    config: dict
    meta: Any
    threshold: float
    random: float
    each: int | None = None
    num_seeds: int = 8


CARTPOLE, ACROBOT = "gymnax/CartPole-v1", "gymnax/Acrobot-v1"
PENDULUM, CAR = "gymnax/Pendulum-v1", "gymnax/MountainCarContinuous-v0"
SMALL = {"features": (64, 64), "batch_size": 64}
FAST = {"actor_lr": 1e-3, "critic_lr": 1e-3}
UPHILL = {"tau": 0.01, "noise_correlation": 0.9}

MINATAR = {"total_timesteps": 1_000_000, "num_envs": 64, "num_steps": 32}
MINATAR |= {"num_minibatches": 8, "activation": "relu"}
INVERTED = {"total_timesteps": 2_000_000, "num_envs": 64, "num_steps": 16}
INVERTED |= {"num_minibatches": 8, "normalize_observation": True}
INVERTED |= {"initial_log_std": -1.0}

C51 = {"head": "categorical", "num_atoms": 51, "v_min": 0.0}

A3C = {"num_envs": 16, "num_workers": 4, "max_delay": 4}

TARGETS = {
    # Calibrated once: mean of 16 seeds less three standard errors of a mean of 8.
    "ppo-Breakout": Target(
        ppo, "gymnax/Breakout-MinAtar", MINATAR, ppo.Meta(lr=2.5e-3), 6, 0.4
    ),
    "ppo-SpaceInvaders": Target(
        ppo,
        "gymnax/SpaceInvaders-MinAtar",
        MINATAR,
        ppo.Meta(lr=2.5e-3),
        95,
        4,
    ),
    "ppo-inverted_pendulum": Target(
        ppo,
        "brax/inverted_pendulum/spring",
        INVERTED,
        ppo.Meta(ent_coef=0.0, gamma=0.97, lr=3e-4),
        950,
        8,
    ),
    "a2c-CartPole": Target(a2c, CARTPOLE, {}, a2c.Meta(), 450, 22.5),
    "a2c-Acrobot": Target(a2c, ACROBOT, {}, a2c.Meta(), -110, -500),
    "a3c-CartPole": Target(a2c, CARTPOLE, A3C, a2c.Meta(), 400, 22.5),
    "impala-CartPole": Target(impala, CARTPOLE, {}, impala.Meta(delay=0.0), 450, 22.5),
    "impala-CartPole-late": Target(
        impala, CARTPOLE, {"max_delay": 16}, impala.Meta(), 400, 22.5
    ),
    "gorila-CartPole": Target(gorila, CARTPOLE, {}, gorila.Meta(), 430, 22.5),
    "gumbel_alphazero-sparse-CartPole": Target(
        gumbel_alphazero,
        f"sparse/{CARTPOLE}",
        {"total_timesteps": 100_000, "num_envs": 16, "num_steps": 32},
        gumbel_alphazero.Meta(lr=1e-3, value_mix=0.9),
        200,
        22.5,
    ),
    "apex-CartPole": Target(apex, CARTPOLE, {}, apex.Meta(), 400, 22.5),
    "dqn-CartPole": Target(dqn, CARTPOLE, {}, dqn.Meta(), 450, 22.5),
    "c51-CartPole": Target(dqn, CARTPOLE, C51, dqn.Meta(), 440, 22.5),
    "dqn-Acrobot": Target(dqn, ACROBOT, {}, dqn.Meta(), -105, -500),
    "pqn-CartPole": Target(pqn, CARTPOLE, {}, pqn.Meta(), 450, 22.5),
    "pqn-Acrobot": Target(pqn, ACROBOT, {}, pqn.Meta(), -110, -500),
    "td3-Pendulum": Target(
        td3,
        PENDULUM,
        {"total_timesteps": 20_000} | SMALL,
        td3.Meta(**FAST),
        -200,
        -1219,
    ),
    "sac-Pendulum": Target(
        sac,
        PENDULUM,
        {"total_timesteps": 20_000} | SMALL,
        sac.Meta(temperature_lr=1e-3, **FAST),
        -200,
        -1219,
    ),
    "apex_ddpg-Pendulum": Target(
        apex_ddpg,
        PENDULUM,
        {"total_timesteps": 40_000, "features": (64, 64)},
        apex_ddpg.Meta(actor_lr=1e-3),
        -160,
        -1219,
    ),
    "qtopt-Pendulum": Target(
        qtopt,
        PENDULUM,
        {"total_timesteps": 30_000, "num_samples": 32} | SMALL,
        qtopt.Meta(),
        -250,
        -1219,
    ),
    "td3-MountainCarContinuous": Target(
        td3,
        CAR,
        {"total_timesteps": 10_000} | SMALL,
        td3.Meta(exploration_noise=0.5, **FAST, **UPHILL),
        85,
        -32,
        each=5,
    ),
    "sac-MountainCarContinuous": Target(
        sac,
        CAR,
        {"total_timesteps": 50_000, "num_envs": 4, "num_steps": 2}
        | {"num_gradient_steps": 8}
        | SMALL,
        sac.Meta(temperature_lr=1e-3, **FAST, **UPHILL),
        85,
        -32,
        each=2,
        num_seeds=3,
    ),
}

# At full length, for an accelerator; on 2 cores each would take a day.
BRAX_PPO = {"total_timesteps": 50_000_000, "num_envs": 2048, "num_steps": 10}
BRAX_PPO |= {"num_minibatches": 32, "features": (64, 64), "num_eval_envs": 64}
BRAX_PPO |= {"normalize_observation": True, "normalize_reward": True}
PPO_BRAX = ppo.Meta(lr=3e-4, ent_coef=0.0)
GPU_TARGETS = {
    "ppo-ant": Target(ppo, "brax/ant/positional", BRAX_PPO, PPO_BRAX, 5000, 0),
    "ppo-halfcheetah": Target(
        ppo, "brax/halfcheetah/positional", BRAX_PPO, PPO_BRAX, 4000, 0
    ),
    "ppo-hopper": Target(ppo, "brax/hopper/positional", BRAX_PPO, PPO_BRAX, 1500, 0),
    "sac-hopper": Target(
        sac,
        "brax/hopper/positional",
        {"total_timesteps": 6_500_000, "num_envs": 128, "num_gradient_steps": 64}
        | {"learning_starts": 8192, "batch_size": 512, "normalize_observation": True},
        sac.Meta(3e-4, 3e-4, 3e-4, gamma=0.997),
        1500,
        0,
    ),
}

# Short runs, 64-64 networks, three seeds: each well above a random policy.
SHORT = {
    "dqn": Target(
        dqn,
        CARTPOLE,
        {"total_timesteps": 80_000, "learning_starts": 2_000} | SMALL,
        dqn.Meta(lr=5e-4),
        150,
        22.5,
        num_seeds=3,
    ),
    "pqn": Target(
        pqn,
        CARTPOLE,
        {"total_timesteps": 100_000, "num_envs": 8, "num_steps": 32}
        | {"features": (64, 64)},
        pqn.Meta(lr=1e-3),
        150,
        22.5,
        num_seeds=3,
    ),
    "td3": TARGETS["td3-Pendulum"]._replace(
        config={"total_timesteps": 8_000} | SMALL, threshold=-500, num_seeds=3
    ),
    "sac": TARGETS["sac-Pendulum"]._replace(
        config={"total_timesteps": 6_000} | SMALL, threshold=-500, num_seeds=3
    ),
}


def check(name: str, target: Target) -> None:
    """Trains, prints, asserts."""
    loop = target.module.make(
        envs.make(target.env), target.module.Config(**target.config), target.meta
    )
    devices = jax.devices()[: min(2, target.num_seeds)]
    runs = holdout.train_hand_made(
        loop, fitness.final_return, jax.random.key(1), target.num_seeds, devices
    )
    returns = runs.final_return[0]
    print(f"\n{name}: mean {returns.mean():.1f}, seeds {np.sort(returns).round(1)}")
    if target.each is not None:
        assert (returns >= target.threshold).sum() >= target.each
        return
    floor = target.threshold - 0.15 * (target.threshold - target.random)
    assert returns.mean() >= target.threshold
    assert (returns >= floor).mean() >= 6 / 8


@pytest.mark.parametrize("name", SHORT)
def test_it_learns(name):
    check(name, SHORT[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_it_reaches_its_target(name):
    check(name, TARGETS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_TARGETS)
def test_it_reaches_its_target_at_full_length(name):
    check(name, GPU_TARGETS[name])


@pytest.mark.parametrize("name", GPU_TARGETS)
def test_targets_of_an_accelerator_can_be_traced(name):
    """A typo is found here, before a run on a machine with a GPU."""
    target = GPU_TARGETS[name]
    loop = target.module.make(
        envs.make(target.env), target.module.Config(**target.config), target.meta
    )
    key = jax.random.key(0)
    state = jax.eval_shape(loop.init, key, target.meta)
    after, _ = jax.eval_shape(loop.train, key, target.meta, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
