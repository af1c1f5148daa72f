"""DQN as `jit(vmap(train))` in PureJaxRL's style: the reference for speed.

Each member counts its own steps and keeps its own place in its buffer, as programs
written for one agent do; under vmap its `lax.cond` then runs both branches. Shares no
code with `inner_loops/dqn.py`: flax, optax and gymnax only.
"""

from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax

ENVS, ROWS, BATCH, EVERY, TARGET_EVERY = 10, 1_000, 128, 4, 50
GAMMA, LR, EPSILON = 0.99, 2.5e-4, 0.05


class Network(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(120)(x))
        x = nn.relu(nn.Dense(84)(x))
        return nn.Dense(self.num_actions)(x)


class Rows(NamedTuple):
    """The replay buffer: [rows, environments, ...]."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array


def make(num_steps):
    """`init(key) -> carry` of one member, and `train(carry) -> (carry, info)`.

    `train` takes `num_steps` steps of 10 environments and learns at every 4th.
    """
    env, env_params = gymnax.make("CartPole-v1")
    network = Network(env.action_space(env_params).n)
    optimizer = optax.adam(LR)

    def init(key):
        key, net_key, reset_key = jax.random.split(key, 3)
        params = network.init(net_key, jnp.zeros(4))
        keys = jax.random.split(reset_key, ENVS)
        obs, env_state = jax.vmap(env.reset, (0, None))(keys, env_params)
        flat = jnp.zeros((ROWS, ENVS))
        seen = jnp.zeros((ROWS, ENVS, 4))
        rows = Rows(seen, flat.astype(jnp.int32), flat, seen, flat.astype(bool))
        # A full buffer, so that every call does the work of the middle of a lifetime.
        count = jnp.int32(ROWS)
        return key, params, params, optimizer.init(params), env_state, obs, rows, count

    def loss(params, target_params, batch):
        q = network.apply(params, batch.obs)
        q = jnp.take_along_axis(q, batch.action[:, None], -1)[:, 0]
        best = network.apply(target_params, batch.next_obs).max(-1)
        target = batch.reward + GAMMA * (1 - batch.done) * best
        return ((q - target) ** 2).mean()

    def step(carry, _):
        key, params, target_params, opt_state, env_state, obs, rows, count = carry
        key, explore_key, random_key, step_key, row_key, env_key = jax.random.split(
            key, 6
        )
        greedy = network.apply(params, obs).argmax(-1)
        random = jax.random.randint(random_key, (ENVS,), 0, network.num_actions)
        explore = jax.random.uniform(explore_key, (ENVS,)) < EPSILON
        action = jnp.where(explore, random, greedy)
        keys = jax.random.split(step_key, ENVS)
        next_obs, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, (0, 0, 0, None)
        )(keys, env_state, action, env_params)
        new = Rows(obs, action, reward, next_obs, terminated | truncated)
        at = count % ROWS
        rows = jax.tree.map(lambda x, n: x.at[at].set(n), rows, new)
        count = count + 1

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
        carry = key, params, target_params, opt_state, env_state, next_obs, rows, count
        return carry, reward.sum()

    def train(carry):
        return jax.lax.scan(step, carry, None, num_steps)

    return init, train
