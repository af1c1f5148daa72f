"""Options that PPO and recurrent PPO have in common."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import ppo, ppo_rnn
from metaevo import envs, slots
from metaevo.errors import ConfigError

BOTH = pytest.mark.parametrize("module", [ppo, ppo_rnn], ids=["ppo", "ppo_rnn"])
SIZES = {"total_timesteps": 256, "num_envs": 8, "num_steps": 32, "num_segments": 1}
SIZES |= {"features": (8,), "normalize_reward": False}


def updated(module, env, meta, **config):
    """The agent after one update, and its metrics."""
    loop = module.make(env, module.Config(**SIZES | config), meta)
    state = jax.jit(loop.init)(jax.random.key(0), meta)
    state, metrics = jax.jit(loop.train)(jax.random.key(1), meta, state)
    jax.effects_barrier()
    return state.agent, metrics


@pytest.mark.parametrize(
    ("module", "normalize"), [(ppo, True), (ppo, False), (ppo_rnn, True)]
)
def test_rewards_are_scaled_and_advantages_standardized_or_not(module, normalize):
    """Episodes of one step with reward 1: the value's target is the scale, and the
    advantages are 5 minus the values of one observation, which are small and equal."""
    targets, advantages = [], []

    @slots.function
    def value_loss(value, target, old_value, context):
        jax.debug.callback(lambda x: targets.append(np.asarray(x)), target)
        return 0.0 * value

    @slots.function
    def drift(log_ratio, advantage, clip_eps, context):
        jax.debug.callback(lambda x: advantages.append(np.asarray(x)), advantage)
        return jnp.zeros_like(advantage)

    meta = ppo.Meta(value_loss=value_loss, drift=drift)
    config = {"reward_scale": 5.0, "normalize_advantage": normalize}
    updated(module, probes.value(), meta, **config)
    assert len(targets) == len(advantages) == 16
    np.testing.assert_allclose(np.stack(targets), 5.0, rtol=1e-5)
    mean = np.stack(advantages).mean()
    assert abs(mean) < 0.1 if normalize else 3 < mean < 7


@BOTH
def test_gradient_steps_end_at_the_target_kl(module):
    """Of 16: the first minibatch has no divergence; at this rate the second has."""
    env, meta = envs.make("gymnax/CartPole-v1"), ppo.Meta(lr=0.1)
    agent, metrics = updated(module, env, meta, target_kl=1e-5)
    assert agent.opt_state.count == 1
    # The mean of the two minibatches that were looked at, of which the first has 0.
    assert metrics["kl"] > 1e-5


@BOTH
@pytest.mark.parametrize("setting", [{"target_kl": 0.0}, {"reward_scale": -1.0}])
def test_what_is_out_of_range_is_refused(module, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=rf"inner.{name}={value} must be > 0"):
        module.make(probes.value(), module.Config(**setting))


def test_recurrent_ppo_takes_a_tanh_normal_policy():
    config = ppo_rnn.Config(**SIZES, policy="tanh_normal", hidden=8)
    loop = ppo_rnn.make(probes.value(probes.CONTINUOUS), config)

    def lifetime(key):
        state, _ = loop.train(key, loop.meta, loop.init(key, loop.meta))
        return loop.act(key, loop.meta, state.agent, jnp.zeros(8), jnp.zeros(1))

    action, _ = jax.eval_shape(lifetime, jax.random.key(0))
    assert action.shape == (1,)


def test_a_tanh_normal_policy_stays_within_its_bounds():
    """And its mean goes where the reward is the largest, 1 − (a − 1)²."""
    low, high = -0.5, 1.5

    def transition(t, obs, a):
        inside = (a[0] >= low) & (a[0] <= high)
        return obs, jnp.where(inside, 1 - (a[0] - 1) ** 2, jnp.nan), True, False

    actions = envs.Box((1,), low, high)
    env = probes._env(lambda key: jnp.zeros(1), transition, action=actions)
    meta = ppo.Meta(lr=3e-3, ent_coef=0.0)
    config = {"total_timesteps": 32_768, "policy": "tanh_normal"}
    loop = ppo.make(env, ppo.Config(**SIZES | config), meta)

    @jax.jit
    def run(key):
        state = loop.init(key, meta)
        state, metrics = loop.train(jax.random.key(9), meta, state)
        action, _ = loop.act(key, meta, state.agent, (), jnp.zeros(1))
        return action, metrics

    action, metrics = run(jax.random.key(0))
    assert np.isfinite(metrics["return"])
    assert action == pytest.approx(1.0, abs=0.15)
