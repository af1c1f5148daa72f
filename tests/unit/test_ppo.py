"""PPO: identity and options; probes are in `tests/contracts/test_probes.py`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import ppo
from metaevo import drifts, envs, losses, rewards, slots, spaces
from metaevo.errors import ConfigError
from metaevo.rl import networks

GAMMA = 0.9


def trained(env, meta, **config):
    """The agent of a probe-sized training run."""
    sizes = {"total_timesteps": 131_072, "num_envs": 16, "num_steps": 32}
    sizes |= {"features": (32,), "num_segments": 1, "anneal_lr": False}
    loop = ppo.make(env, ppo.Config(**sizes | config), meta)

    @jax.jit
    def run(key):
        state = loop.init(key, meta)
        return loop.train(jax.random.key(9), meta, state)

    return run(jax.random.key(0))[0].agent


META = ppo.Meta(lr=2e-3, gamma=GAMMA, ent_coef=0.0)


@pytest.mark.parametrize("normalize", [False, True])
def test_observations_kept_in_bytes_give_the_same_agent(normalize):
    env = envs.make("gymnax/Breakout-MinAtar")
    plain = env._replace(observation=env.observation._replace(binary=False))
    shaped = META._replace(
        reward=slots.function(lambda obs, a, r, following, *_: r + following.mean())
    )
    sizes = {"total_timesteps": 1_024, "normalize_observation": normalize}
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


# --- identity and equality ------------------------------------------------------------


def one_update(meta, minibatches=10, **config):
    """Parameters after one rollout and `minibatches` gradient steps on it."""
    sizes = {"total_timesteps": 320, "num_envs": 4, "num_steps": 80, "num_epochs": 1}
    sizes |= {"num_minibatches": minibatches, "num_segments": 1, "features": (16, 16)}
    loop = ppo.make(envs.make("gymnax/CartPole-v1"), ppo.Config(**sizes | config), meta)
    state = loop.init(jax.random.key(0), meta)
    return jax.jit(loop.train)(jax.random.key(1), meta, state)[0].agent.params


def assert_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def test_the_residual_start_is_ppo():
    """10 minibatch updates on one frozen rollout."""
    space = spaces.replace(value_loss=losses.residual_network("clipped_square"))
    assert space.starts_hand_made
    bound = space.bind(space.init(jax.random.key(5)), META)
    plain, residual = one_update(META), one_update(bound)
    assert_close(residual, plain, rtol=1e-5, atol=1e-6)
    # And the comparison can fail: a step away from the start it is another algorithm.
    moved = jax.tree.map(lambda x: x + 0.1, space.init(jax.random.key(5)))
    with pytest.raises(AssertionError):
        assert_close(one_update(space.bind(moved, META)), plain, rtol=1e-5, atol=1e-6)


def test_the_scratch_start_has_no_value_loss():
    space = spaces.replace(value_loss=losses.residual_network("zero"))
    assert not space.starts_hand_made
    bound = space.bind(space.init(jax.random.key(5)), META)
    without = one_update(META._replace(value_loss=losses.zero))
    assert_close(one_update(bound), without, rtol=1e-6, atol=1e-7)


def test_mirrored_members_differ_at_the_start():
    """An all-zero mean would make mirrored members equal and the ES gradient zero."""
    learned = losses.residual_network("zero")
    mean = learned.init(jax.random.key(0))
    noise = jax.tree.map(
        lambda x: 0.5 * jax.random.normal(jax.random.key(1), x.shape), mean
    )
    error = jnp.linspace(-20, 20, 41)

    def loss(sign):
        params = jax.tree.map(lambda m, e: m + sign * e, mean, noise)
        return learned.apply(params, error, 0.0, 0.0)

    assert np.var(loss(1) - loss(-1)) > 1e-3


def test_a_return_that_is_infinite_once_does_not_stay():
    """Multiplied by zero at the end of the episode it would be NaN for ever."""

    @slots.function
    def once(obs, action, reward, next_obs, terminated, context):
        return jnp.where(context.progress == 0, jnp.inf, reward)

    meta = META._replace(reward=once, lr=0.0)
    loop = ppo.make(
        envs.make("gymnax/CartPole-v1"), ppo.Config(4096, 2, 64, num_segments=2), meta
    )
    state = loop.init(jax.random.key(0), meta)
    for _ in range(2):
        state, _ = jax.jit(loop.train)(jax.random.key(1), meta, state)
    assert np.isfinite(state.experience.discounted_return).all()


def test_a_segment_without_an_end_keeps_the_last_return():
    meta = ppo.Meta(lr=0.0)
    sizes = {"num_envs": 1, "num_steps": 8, "num_minibatches": 1}
    loop = ppo.make(
        envs.make("gymnax/CartPole-v1"), ppo.Config(512, num_segments=64, **sizes), meta
    )
    state, train = loop.init(jax.random.key(0), meta), jax.jit(loop.train)
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


def test_the_identity_reward_is_the_environments():
    zero = jnp.zeros(1)
    assert rewards.identity(zero, zero, 2.0, zero, False) == 2.0
