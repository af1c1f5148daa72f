"""Independent agents: what their slots get, and how they judge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.tree_util import Partial

from inner_loops import dqn as home_dqn
from inner_loops import ppo as home_ppo
from metaevo import drifts, envs, fitness, losses, rewards, spaces
from metaevo.analysis.independent import dqn, judge, ppo
from metaevo.errors import ConfigError
from metaevo.types import Search
from strategies.random_search import random_search

ENV = envs.make("gymnax/CartPole-v1")
TINY = {
    "ppo": ppo.Config(
        256, num_envs=4, num_steps=32, num_epochs=1, num_minibatches=2, num_points=2,
        num_episodes=2, features=(8,),
    ),
    "dqn": dqn.Config(
        256, num_envs=4, learning_starts=64, buffer_size=128, batch_size=8,
        num_points=2, num_episodes=2, features=(8,),
    ),
}  # fmt: skip
KEY = jax.random.key(0)


def scores(agent, functions, env=ENV, num_seeds=2):
    """Scores at two step sizes, on one device."""
    one, sizes = jax.devices()[:1], (1e-2, 3e-2)
    return judge.scores(agent, env, functions, KEY, num_seeds, sizes, TINY[agent], one)


@functools.cache
def own(agent):
    """Scores with the agent's own functions."""
    return scores(agent, {})


# --- the agents -----------------------------------------------------------------------


@Partial
def value_loss(value, target, old_value, context):
    """The square; NaN unless what it reads is there and in its range."""
    eps, std = context.stats["clip_eps"], context.return_std
    good = (context.progress >= 0) & (context.progress < 1) & (std > 0)
    good &= jnp.abs(eps - 0.2) < 1e-6
    good &= (value.shape == target.shape) & (target.shape == old_value.shape)
    return jnp.where(good, losses.square(value, target, old_value, context), jnp.nan)


@Partial
def td_loss(td_error, q, target, context):
    good = (context.progress > 0) & (context.progress < 1)
    good &= (context.return_std > 0) & (jnp.abs(td_error - target + q) < 1e-5).all()
    return jnp.where(good, losses.td_square(td_error, q, target, context), jnp.nan)


@pytest.mark.parametrize(
    ("agent", "functions"),
    [
        ("ppo", {"value_loss": value_loss, "drift": drifts.ppo_clip}),
        ("dqn", {"td_loss": td_loss, "reward": rewards.identity}),
    ],
)
def test_the_hand_made_functions_are_the_agents_own(agent, functions):
    """To rounding: they are written twice. They get the context of artifacts."""
    same = scores(agent, functions)
    np.testing.assert_allclose(own(agent).lifetime, same.lifetime, rtol=1e-3)
    assert same.lifetime.shape == (2, 2)
    assert np.isfinite(same.final_return).all()


def test_generalized_advantages_are_those_of_their_definition():
    s = ppo.Config(gamma=0.9, gae_lambda=0.8)
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 6, 1)).astype(np.float32)
    last, done = np.float32([0.7]), np.zeros((6, 1), bool)
    done[2] = True
    values = np.concatenate([value, last[None]])
    expected = np.zeros((6, 1))
    for t in range(6):
        weight = 1.0
        for k in range(t, 6):
            following = 0.0 if done[k] else values[k + 1]
            expected[t] += weight * (reward[k] + 0.9 * following - values[k])
            weight *= 0.9 * 0.8
            if done[k]:
                break
    found = ppo._advantages(jnp.asarray(reward), value, last, done, s)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("agent", judge.AGENTS)
def test_rewards_get_one_transition_and_change_what_is_learned(agent):
    def reward(obs, action, reward, next_obs, terminated, context):
        assert obs.shape == next_obs.shape == (4,)
        assert action.shape == reward.shape == terminated.shape == ()
        return reward * jnp.sign(action - 0.5) * context.stats["gamma"]

    changed = scores(agent, {"reward": Partial(reward)})
    assert (changed.lifetime != own(agent).lifetime).any()
    # What is reported is the environment's reward, at least one a step.
    assert (changed.lifetime >= 1).all()


def test_an_agent_that_is_not_finite_has_no_score():
    found = scores("ppo", {"value_loss": Partial(lambda v, t, o, c: (v - t) * np.nan)})
    assert np.isnan(found.final_return).all()
    assert np.isnan(found.lifetime).all()


def test_ppo_takes_a_box_of_actions():
    found = scores("ppo", {}, envs.make("gymnax/Pendulum-v1"), 1)
    assert (found.final_return < 0).all()
    with pytest.raises(ConfigError, match="needs discrete actions"):
        scores("dqn", {}, envs.make("gymnax/Pendulum-v1"), 1)


# --- the verdicts ---------------------------------------------------------------------


def test_scores_are_those_of_single_runs():
    """Seeds and step sizes are laid out as promised, padding is left out."""
    found = judge.scores(
        "ppo", ENV, {}, KEY, 3, (1e-3, 1e-2), TINY["ppo"], jax.devices()[:2]
    )
    key = jax.random.split(KEY, 3)[1]
    alone = jax.jit(
        lambda key: ppo.train(key, ENV, lr=jnp.float32(1e-2), settings=TINY["ppo"])
    )(key)
    assert found.final_return.shape == (2, 3)
    assert found.final_return[1, 1] == pytest.approx(float(alone.final_return))
    assert found.lifetime[1, 1] == pytest.approx(float(np.mean(alone.returns)))


def test_a_comparison_is_paired_by_seed_and_pooled_over_step_sizes():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 100, (3, 32))
    noise = rng.normal(0, 1, (3, 32))
    a = judge.Returns(
        base + noise + np.array([[5.0], [0.0], [-20.0]]), base + 8 + noise
    )
    b = judge.Returns(base, base)
    lifetime, final = judge.compare("ppo", (1e-4, 1e-3, 1e-2), [a], [b])
    assert [round(x.difference) for x in lifetime.at] == [5, 0, -20]
    assert lifetime.paired.difference == pytest.approx(-5, abs=0.5)
    assert (lifetime.paired.verdict, final.paired.verdict) == ("worse", "better")
    assert final.paired.num_verdicts == 2
    assert final.paired.p_corrected >= final.paired.p_value
    assert "in an independent PPO (step sizes 0.0001, 0.001, 0.01)" in final.sentence
    assert "the solution is better than the hand-made one: final re" in final.sentence


def test_a_seed_that_failed_at_one_step_size_counts_as_failed():
    good = np.arange(64.0).reshape(2, 32)
    broken = np.where(np.arange(32) < 20, np.nan, good)
    broken[1] = good[1]
    verdict, _ = judge.compare(
        "ppo",
        (1e-4, 1e-3),
        [judge.Returns(broken, broken)],
        [judge.Returns(good, good)],
    )
    assert verdict.paired.verdict == "fails"
    assert "fails on 20 of 32 seeds" in verdict.sentence


# --- which agent ----------------------------------------------------------------------


def search(space, loop):
    return Search(loop, space, random_search(space, 4), 1, fitness.final_return)


def test_the_agent_is_chosen_by_what_evolves():
    value = spaces.replace(value_loss=losses.residual_network())
    drift = spaces.replace(drift=drifts.dpo_constants())
    td = spaces.replace(td_loss=losses.td_network())
    numbers = spaces.tune(lr=spaces.log())
    for space, loop, expected in (
        (value, home_ppo.make(ENV), ("ppo", ("value_loss",))),
        (
            spaces.combine(value, drift, numbers),
            home_ppo.make(ENV),
            ("ppo", ("drift", "value_loss")),
        ),
        (td, home_dqn.make(ENV), ("dqn", ("td_loss",))),
    ):
        assert judge.agent_for(search(space, loop)) == expected


def test_searches_that_no_agent_can_judge_are_refused():
    numbers = spaces.tune(lr=spaces.log())
    policy = spaces.replace(policy_loss=losses.policy_network())
    for space, loop in (
        (numbers, home_ppo.make(ENV)),
        (policy, home_ppo.make(ENV)),
        (numbers, toys.quadratic()),
    ):
        with pytest.raises(
            ConfigError, match=r"ppo: value_loss, drift, reward; dqn: td_loss, reward"
        ):
            judge.agent_for(search(space, loop))
