"""The independent agents learn by themselves, and as others' do."""

import jax

from metaevo import envs
from metaevo.analysis.independent import judge, ppo

ENV = envs.make("gymnax/CartPole-v1")


def final_returns(agent, num_seeds, settings, lr):
    found = judge.scores(
        agent, ENV, {}, jax.random.key(0), num_seeds, (lr,), settings
    ).final_return[0]
    print(f"{agent}: {found.mean():.1f} ± {found.std():.1f}, least {found.min():.1f}")
    return found


def test_ppo_reaches_the_goal_in_its_short_lifetime():
    assert final_returns("ppo", 4, ppo.Settings(), 1e-3).mean() >= 450
