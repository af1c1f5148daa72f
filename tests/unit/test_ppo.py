"""PPO's own; probes are in `tests/contracts/test_probes.py`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import ppo
from metaevo import drifts, envs, slots
from metaevo.errors import ConfigError
from metaevo.rl import networks

GAMMA = 0.9


def trained(env, meta, **config):
    """The agent of a probe-sized training run."""
    sizes = {"total_timesteps": 65_536, "num_envs": 16, "num_steps": 32}
    sizes |= {"features": (32,), "num_segments": 1, "anneal_lr": False}
    loop = ppo.make(env, ppo.Config(**sizes | config), meta)

    @jax.jit
    def run(key):
        state = loop.init(key, meta)
        return loop.train(jax.random.key(9), meta, state)

    return run(jax.random.key(0))[0].agent


META = ppo.Meta(lr=2e-3, gamma=GAMMA, ent_coef=0.0)


def test_observations_kept_in_bytes_give_the_same_agent():
    env = envs.make("gymnax/Breakout-MinAtar")
    plain = env._replace(observation=env.observation._replace(binary=False))
    shaped = META._replace(
        reward=slots.function(lambda obs, a, r, following, *_: r + following.mean())
    )
    sizes = {"total_timesteps": 1_024, "normalize_observation": True}
    kept, whole = (trained(e, shaped, **sizes).params for e in (env, plain))
    jax.tree.map(np.testing.assert_array_equal, kept, whole)


def test_probe_termination_twin():
    """No bootstrap at a true end. λ = 1, so the target is the return."""
    agent = trained(probes.terminated(), META._replace(gae_lambda=1.0))
    k = np.arange(1, 11)
    expected = ((1 - GAMMA**k) / (1 - GAMMA)).mean()
    critic = networks.mlp((32,), 1, activation="tanh")
    value = critic.apply(agent.params["critic"], jnp.ones(1))
    assert value[0] == pytest.approx(expected, rel=0.05)


def test_a_return_that_is_infinite_once_does_not_stay():
    """Multiplied by zero at the end of the episode it would be NaN for ever."""

    @slots.function
    def once(obs, action, reward, next_obs, terminated, context):
        return jnp.where(context.progress == 0, jnp.inf, reward)

    meta = META._replace(reward=once, lr=0.0)
    loop = ppo.make(
        envs.make("gymnax/CartPole-v1"), ppo.Config(4096, 2, 64, num_segments=2), meta
    )
    state = jax.jit(loop.init)(jax.random.key(0), meta)
    for _ in range(2):
        state, _ = jax.jit(loop.train)(jax.random.key(1), meta, state)
    assert np.isfinite(state.experience.discounted_return).all()


def test_a_segment_without_an_end_keeps_the_last_return():
    meta = ppo.Meta(lr=0.0)
    sizes = {"num_envs": 1, "num_steps": 8, "num_minibatches": 1}
    loop = ppo.make(
        envs.make("gymnax/CartPole-v1"), ppo.Config(512, num_segments=64, **sizes), meta
    )
    init, train = jax.jit(loop.init), jax.jit(loop.train)
    state = init(jax.random.key(0), meta)
    history = []
    for _ in range(20):
        state, metrics = train(jax.random.key(1), meta, state)
        history.append((float(metrics["episodes"]), float(metrics["return"])))
    first = next(i for i, (episodes, _) in enumerate(history) if episodes)
    assert all(np.isnan(x) for _, x in history[:first])
    for (_, before), (episodes, now) in itertools.pairwise(history[first:]):
        if not episodes:
            assert now == before
    assert any(not episodes for episodes, _ in history[first:])


def test_ppos_drift_gives_the_clipped_objective():
    """r A − drift = min(r A, clip(r, 1 ± ε) A), Schulman et al., equation 7."""
    ratio = jnp.linspace(0.2, 3.0, 57)[:, None]
    advantage = jnp.linspace(-2, 2, 9)
    drift = drifts.ppo_clip(jnp.log(ratio), advantage, 0.2)
    clipped = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    np.testing.assert_allclose(ratio * advantage - drift, clipped, atol=1e-6)
    assert (drift >= 0).all()


def test_minibatches_that_do_not_divide_a_rollout_are_refused():
    with pytest.raises(ConfigError, match="num_minibatches=3"):
        ppo.make(probes.value(), ppo.Config(num_minibatches=3))
