"""A flax critic that learns with an evolved loss, in the usual loop with optax.

    python examples/flax_critic.py                       # squared error
    python examples/flax_critic.py runs/loss/solution    # an evolved value loss

It fits the returns of a random walk from its states. The loss is a function of arrays
like any other: `jax.grad` goes through it, and `jax.jit` compiles it into the step.
"""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class Critic(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(32)(x))
        return nn.Dense(1)(x)[..., 0]


def squared_error(value, target, old_value, context):
    return 0.5 * (value - target) ** 2


def batch(key, size=256):
    """States in [-1, 1] and noisy returns from them."""
    state_key, noise_key = jax.random.split(key)
    states = jax.random.uniform(state_key, (size, 1), minval=-1.0)
    noise = jax.random.normal(noise_key, (size,))
    return states, 10 * states[:, 0] + 2 * noise


def main(path=None, num_steps=500, seed=0):
    """Train a critic; return the root of its mean squared error."""
    import metaevo

    value_loss = metaevo.load(path).value_loss if path else squared_error
    critic, optimizer = Critic(), optax.adam(1e-2)
    key = jax.random.key(seed)
    params = critic.init(key, jnp.zeros((1, 1)))
    state = optimizer.init(params)

    def loss(params, states, targets):
        values = critic.apply(params, states)
        old = jax.lax.stop_gradient(values)
        context = metaevo.Context(return_std=targets.std())
        return value_loss(values, targets, old, context).mean()

    @jax.jit
    def step(params, state, key):
        gradient = jax.grad(loss)(params, *batch(key))
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    for i in range(num_steps):
        params, state = step(params, state, jax.random.fold_in(key, i))
    states = jnp.linspace(-1.0, 1.0, 101)[:, None]
    error = critic.apply(params, states) - 10 * states[:, 0]
    rmse = float(jnp.sqrt((error**2).mean()))
    print(f"{path or 'squared error'}: error {rmse:.2f} of values in [-10, 10]")
    return rmse


if __name__ == "__main__":
    main(*sys.argv[1:2])
