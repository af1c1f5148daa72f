"""The independent agents learn by themselves."""

import jax
import pytest

from metaevo import envs
from metaevo.analysis.independent import dqn, judge, ppo

ENV = envs.make("gymnax/CartPole-v1")
# Settings and step sizes of CleanRL's ppo.py and dqn.py.
CLEANRL = {
    "ppo": (ppo.Config(500_000, 4, 128, 4, 4, anneal=True), 2.5e-4),
    "dqn": (
        dqn.Config(
            500_000, 10, 10_000, 10_000, 128, features=(120, 84), last_epsilon=0.05
        ),
        2.5e-4,
    ),
}


def final_return(agent, num_seeds, settings, lr):
    found = judge.scores(
        agent, ENV, {}, jax.random.key(0), num_seeds, (lr,), settings
    ).final_return
    print(f"{agent}: {found.mean():.1f} ± {found.std():.1f}, least {found.min():.1f}")
    return found.mean()


def test_ppo_solves_cartpole_in_its_short_lifetime():
    """Of 32 seeds: 497.8."""
    assert final_return("ppo", 4, ppo.Config(), 1e-3) >= 450


def test_dqn_learns_in_its_short_lifetime():
    """A random policy reaches 22; the lifetime is too short to solve the task."""
    assert final_return("dqn", 4, dqn.Config(), 1e-3) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("agent", judge.AGENTS)
def test_agents_solve_cartpole_at_cleanrls_sizes(agent):
    settings, lr = CLEANRL[agent]
    assert final_return(agent, 32, settings, lr) >= 450
