"""An agent of your own that imports an evolved loss in a few lines.

A self-contained PPO in plain JAX: its own networks, Adam and CartPole. It shares no
code with metaevo, from which it only loads the artifact.

    python examples/plain_ppo.py                          # squared error
    python examples/plain_ppo.py runs/loss/solution       # an evolved value loss
"""

import sys

import jax
import jax.numpy as jnp

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 4, 64, 4, 4
LR, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 1e-3, 0.99, 0.95, 0.2, 0.01, 0.5


def squared_error(value, target, old_value):
    return 0.5 * (value - target) ** 2


def evolved(path):
    import metaevo

    loss = metaevo.load(path).value_loss

    def value_loss(value, target, old_value):
        # A loss that is free of the scale of rewards measures errors in this.
        context = metaevo.Context(return_std=target.std())
        return loss(value, target, old_value, context)

    return value_loss


# --- CartPole (Barto, Sutton and Anderson, 1983), without a time limit ----------------


def reset(key):
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state, action):
    _, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    slide = push - 0.05 * turn * cos / 1.1
    state = state + 0.02 * jnp.array([v, slide, spin, turn])
    return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095)


# --- networks and Adam ----------------------------------------------------------------


def init_network(key, num_outputs):
    sizes = (4, 32, 32, num_outputs)
    keys = jax.random.split(key, 3)
    scales = (1.0, 1.0, 0.01)
    return [
        (s * jax.random.normal(k, (m, n)) / jnp.sqrt(m), jnp.zeros(n))
        for k, m, n, s in zip(keys, sizes, sizes[1:], scales, strict=False)
    ]


def network(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def adam(gradient, moments, count):
    m, v = moments
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, gradient)

    def direction(m, v):
        return m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-5)

    return jax.tree.map(direction, m, v), (m, v)


# --- PPO ------------------------------------------------------------------------------


def make_train(value_loss, num_updates):
    def log_probs(params, obs):
        return jax.nn.log_softmax(network(params["actor"], obs))

    def env_step(carry, key):
        params, obs, length = carry
        act_key, reset_key = jax.random.split(key)
        log_p = log_probs(params, obs)
        action = jax.random.categorical(act_key, log_p)
        log_prob = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
        value = network(params["critic"], obs)[:, 0]
        new_obs, done = jax.vmap(step)(obs, action)
        # 500 steps and the task is solved: reset.
        length = length + 1
        done = done | (length >= 500)
        fresh = jax.vmap(reset)(jax.random.split(reset_key, NUM_ENVS))
        record = (obs, action, log_prob, value, done, length)
        new_obs = jnp.where(done[:, None], fresh, new_obs)
        return (params, new_obs, jnp.where(done, 0, length)), record

    def loss(params, batch):
        obs, action, old_log_prob, old_value, advantage, target = batch
        log_p = log_probs(params, obs)
        log_prob = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
        ratio = jnp.exp(log_prob - old_log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = jnp.minimum(
            ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
        )
        entropy = -(jnp.exp(log_p) * log_p).sum(-1)
        value = network(params["critic"], obs)[:, 0]
        return (
            -surrogate.mean()
            + VALUE * value_loss(value, target, old_value).mean()
            - ENTROPY * entropy.mean()
        )

    def update(carry, i):
        params, moments, obs, length, key = carry
        key, roll_key, order_key = jax.random.split(key, 3)
        (_, obs, length), data = jax.lax.scan(
            env_step, (params, obs, length), jax.random.split(roll_key, NUM_STEPS)
        )
        states, action, log_prob, value, done, lengths = data
        last_value = network(params["critic"], obs)[:, 0]

        def gae(carry, at):
            advantage, next_value = carry
            value, done = at
            delta = 1.0 + GAMMA * next_value * (1 - done) - value
            advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
            return (advantage, value), advantage

        zero = jnp.zeros(NUM_ENVS)
        _, advantage = jax.lax.scan(
            gae, (zero, last_value), (value, done), reverse=True
        )
        batch = (states, action, log_prob, value, advantage, advantage + value)
        size = NUM_ENVS * NUM_STEPS
        batch = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), batch)
        orders = [
            jax.random.permutation(k, size) for k in jax.random.split(order_key, EPOCHS)
        ]
        orders = jnp.stack(orders).reshape(EPOCHS * MINIBATCHES, -1)

        def minibatch(carry, at):
            params, moments = carry
            j, order = at
            gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[order], batch))
            norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
            gradient = jax.tree.map(lambda g: g * jnp.minimum(1, 0.5 / norm), gradient)
            count = i * EPOCHS * MINIBATCHES + j + 1.0
            direction, moments = adam(gradient, moments, count)
            lr = LR * (1 - i / num_updates)
            params = jax.tree.map(lambda p, d: p - lr * d, params, direction)
            return (params, moments), None

        steps = jnp.arange(EPOCHS * MINIBATCHES)
        (params, moments), _ = jax.lax.scan(
            minibatch, (params, moments), (steps, orders)
        )
        ended = (lengths * done).sum(), done.sum()
        return (params, moments, obs, length, key), ended

    def train(key):
        """One agent: -> mean return over the last quarter of its training."""
        actor_key, critic_key, env_key, key = jax.random.split(key, 4)
        params = {
            "actor": init_network(actor_key, 2),
            "critic": init_network(critic_key, 1),
        }
        zeros = jax.tree.map(jnp.zeros_like, params)
        obs = jax.vmap(reset)(jax.random.split(env_key, NUM_ENVS))
        carry = (params, (zeros, zeros), obs, jnp.zeros(NUM_ENVS, int), key)
        _, (total, episodes) = jax.lax.scan(update, carry, jnp.arange(num_updates))
        last = -(num_updates // 4)
        return total[last:].sum() / jnp.maximum(episodes[last:].sum(), 1)

    return train


def main(path=None, num_updates=256, num_seeds=8):
    """Train `num_seeds` agents; return their returns, [num_seeds]."""
    value_loss = evolved(path) if path else squared_error
    train = jax.jit(jax.vmap(make_train(value_loss, num_updates)))
    returns = train(jax.random.split(jax.random.key(0), num_seeds))
    print(f"{path or 'squared error'}: last quarter's return {returns.mean():.1f}")
    return returns


if __name__ == "__main__":
    main(*sys.argv[1:2])
