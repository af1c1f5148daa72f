"""DQN as `jit(vmap(train))` in PureJaxRL's style: the reference for curves and speed.

Each member counts its own steps and keeps its own place in its buffer, as programs
written for one agent do; under vmap its `lax.cond` then runs both branches. Shares no
code with `inner_loops/dqn.py`: flax, optax and gymnax only.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.linen.initializers import orthogonal

from benchmarks import measure

ENVS, ROWS, BATCH, EVERY, TARGET_EVERY = 10, 1_000, 128, 4, 52
GAMMA, LR, EPSILON = 0.99, 2.5e-4, 0.05


class Network(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, x):
        for size in (120, 84):
            x = nn.relu(nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x))
        return nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)


class Rows(NamedTuple):
    """The replay buffer: [rows, environments, ...]."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array


def make(num_steps):
    """`init(key) -> carry` of one member, and `train(carry) -> (carry, info)`.

    `init` fills the buffer with random actions. `train` takes `num_steps` steps of 10
    environments and learns at every 4th; info is, of each step, the sum of the returns
    of the episodes that ended and their number.
    """
    env, env_params = gymnax.make("CartPole-v1")
    network = Network(env.action_space(env_params).n)
    optimizer = optax.adam(LR, eps=1e-5)

    def init(key):
        key, net_key, reset_key = jax.random.split(key, 3)
        params = network.init(net_key, jnp.zeros(4))
        keys = jax.random.split(reset_key, ENVS)
        obs, env_state = jax.vmap(env.reset, (0, None))(keys, env_params)
        flat = jnp.zeros((ROWS, ENVS))
        seen = jnp.zeros((ROWS, ENVS, 4))
        rows = Rows(seen, flat.astype(jnp.int32), flat, seen, flat.astype(bool))
        carry = (
            *(key, params, params, optimizer.init(params)),
            *(env_state, obs, jnp.zeros(ENVS), rows, jnp.int32(0)),
        )
        return jax.lax.scan(partial(act, epsilon=1.0), carry, None, ROWS)[0]

    def loss(params, target_params, batch):
        q = network.apply(params, batch.obs)
        q = jnp.take_along_axis(q, batch.action[:, None], -1)[:, 0]
        best = network.apply(target_params, batch.next_obs).max(-1)
        target = batch.reward + GAMMA * (1 - batch.done) * best
        return ((q - target) ** 2).mean()

    def act(carry, _, epsilon):
        """One step of the environments, into the buffer."""
        key, params, target_params, opt_state, env_state, obs, returns, rows, count = (
            carry
        )
        key, explore_key, random_key, step_key = jax.random.split(key, 4)
        greedy = network.apply(params, obs).argmax(-1)
        random = jax.random.randint(random_key, (ENVS,), 0, network.num_actions)
        explore = jax.random.uniform(explore_key, (ENVS,)) < epsilon
        action = jnp.where(explore, random, greedy)
        keys = jax.random.split(step_key, ENVS)
        next_obs, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, (0, 0, 0, None)
        )(keys, env_state, action, env_params)
        done = terminated | truncated
        new = Rows(obs, action, reward, next_obs, done)
        rows = jax.tree.map(lambda x, n: x.at[count % ROWS].set(n), rows, new)
        returns = returns + reward
        ended = (returns * done).sum(), done.sum()
        returns = returns * (1 - done)
        carry = (
            *(key, params, target_params, opt_state),
            *(env_state, next_obs, returns, rows, count + 1),
        )
        return carry, ended

    def step(carry, _):
        carry, ended = act(carry, None, EPSILON)
        key, params, target_params, opt_state, *world, rows, count = carry
        key, row_key, env_key = jax.random.split(key, 3)

        def learn(params, opt_state):
            row = jax.random.randint(row_key, (BATCH,), 0, ROWS)
            place = jax.random.randint(env_key, (BATCH,), 0, ENVS)
            batch = jax.tree.map(lambda x: x[row, place], rows)
            gradient = jax.grad(loss)(params, target_params, batch)
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        params, opt_state = jax.lax.cond(
            count % EVERY == 0, learn, lambda *x: x, params, opt_state
        )
        target_params = jax.lax.cond(
            count % TARGET_EVERY == 0, lambda: params, lambda: target_params
        )
        return (key, params, target_params, opt_state, *world, rows, count), ended

    def train(carry):
        return jax.lax.scan(step, carry, None, num_steps)

    return init, train


def our_loop(total_timesteps, num_segments=1):
    """metaevo's DQN with the same sizes and numbers on the same environment."""
    from inner_loops import dqn
    from metaevo import envs

    config = dqn.Config(
        total_timesteps=total_timesteps + ROWS * ENVS,
        learning_starts=ROWS * ENVS,
        buffer_size=ROWS * ENVS,
        num_envs=ENVS,
        num_steps=EVERY,
        num_gradient_steps=1,
        batch_size=BATCH,
        target_period=TARGET_EVERY // EVERY,
        num_segments=num_segments,
        features=(120, 84),
    )
    env = envs.make("gymnax/CartPole-v1")
    return dqn.make(env, config, dqn.Meta(lr=LR, gamma=GAMMA, epsilon=EPSILON))


def compare(num_seeds=32, total_timesteps=100_000, num_windows=5):
    """Both learning curves; see `measure.curves`."""
    from benchmarks.reference_ppo import trained, windows

    init, train = make(total_timesteps // ENVS)
    carry = jax.jit(partial(jax.lax.map, init))(
        jax.random.split(jax.random.key(1), num_seeds)
    )
    returns, episodes = jax.jit(jax.vmap(train))(carry)[1]
    reference = windows(np.asarray(returns), np.asarray(episodes), num_windows)
    ours = trained(our_loop(total_timesteps, num_windows), num_seeds)
    return measure.curves(ours, reference)
