"""PPO as `jit(vmap(train))` in PureJaxRL's style: the reference for curves and speed.

Written independently of `inner_loops/ppo.py` and sharing no code with it: flax, optax
and gymnax only. As in PureJaxRL there is one mask, `done`: a time limit counts as an
end. Hyperparameters are PureJaxRL's for classic control.

    python -m benchmarks.reference_ppo            curves of both, 32 seeds, as JSON
"""

from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.linen.initializers import orthogonal
from flax.training.train_state import TrainState

from benchmarks import measure

CONFIG = {
    "LR": 2.5e-4,
    "NUM_ENVS": 4,
    "NUM_STEPS": 128,
    "TOTAL_TIMESTEPS": 5e5,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ENV_NAME": "CartPole-v1",
    "ANNEAL_LR": True,
    "ACTIVATION": "tanh",
}

BREAKOUT = CONFIG | {
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_MINIBATCHES": 8,
    "ENV_NAME": "Breakout-MinAtar",
    "ACTIVATION": "relu",
}
"""PureJaxRL's for MinAtar."""


class ActorCritic(nn.Module):
    num_actions: int
    activation: str
    obs_ndim: int

    @nn.compact
    def __call__(self, x):
        def dense(size, x):
            init = orthogonal(np.sqrt(2))
            return getattr(nn, self.activation)(nn.Dense(size, kernel_init=init)(x))

        x = x.reshape(*x.shape[: x.ndim - self.obs_ndim], -1)

        actor = dense(64, dense(64, x))
        logits = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))(actor)
        critic = dense(64, dense(64, x))
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(critic)
        return logits, value[..., 0]


class Transition(NamedTuple):
    done: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array
    episode_return: jax.Array


def log_prob_of(logits, action):
    log_p = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]


def make_init(config):
    """`key -> carry`: networks and environments."""
    env, env_params = gymnax.make(config["ENV_NAME"])
    shape = env.observation_space(env_params).shape
    num_actions = env.action_space(env_params).n
    network = ActorCritic(num_actions, config["ACTIVATION"], len(shape))
    num_updates = int(
        config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    )
    steps_per_update = config["NUM_MINIBATCHES"] * config["UPDATE_EPOCHS"]

    def anneal(count):
        return config["LR"] * (1.0 - (count // steps_per_update) / num_updates)

    def init(key):
        key, net_key, reset_key = jax.random.split(key, 3)
        transformation = optax.chain(
            optax.clip_by_global_norm(config["MAX_GRAD_NORM"]),
            optax.adam(anneal if config["ANNEAL_LR"] else config["LR"], eps=1e-5),
        )
        train_state = TrainState.create(
            apply_fn=network.apply,
            params=network.init(net_key, jnp.zeros(shape)),
            tx=transformation,
        )
        reset_keys = jax.random.split(reset_key, config["NUM_ENVS"])
        obs, env_state = jax.vmap(env.reset, (0, None))(reset_keys, env_params)
        return train_state, env_state, obs, jnp.zeros(config["NUM_ENVS"]), key

    return init


def make_update(config):
    """`carry -> (carry, (sum of returns, number of episodes))`: one update."""
    env, env_params = gymnax.make(config["ENV_NAME"])
    batch_size = config["NUM_ENVS"] * config["NUM_STEPS"]
    gamma, lam, eps = config["GAMMA"], config["GAE_LAMBDA"], config["CLIP_EPS"]

    def env_step(carry, _):
        train_state, env_state, last_obs, returns, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        logits, value = train_state.apply_fn(train_state.params, last_obs)
        action = jax.random.categorical(action_key, logits)
        step_keys = jax.random.split(step_key, config["NUM_ENVS"])
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, (0, 0, 0, None)
        )(step_keys, env_state, action, env_params)
        done = terminated | truncated
        returns = returns + reward
        transition = Transition(
            done, action, value, reward, log_prob_of(logits, action), last_obs, returns
        )
        return (train_state, env_state, obs, returns * (1 - done), key), transition

    def loss_fn(params, apply_fn, batch, gae, targets):
        logits, value = apply_fn(params, batch.obs)
        log_prob = log_prob_of(logits, batch.action)
        clipped = batch.value + (value - batch.value).clip(-eps, eps)
        losses = jnp.maximum((value - targets) ** 2, (clipped - targets) ** 2)
        value_loss = 0.5 * losses.mean()
        ratio = jnp.exp(log_prob - batch.log_prob)
        gae = (gae - gae.mean()) / (gae.std() + 1e-8)
        surrogate = jnp.minimum(ratio * gae, ratio.clip(1.0 - eps, 1.0 + eps) * gae)
        log_p = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        return (
            -surrogate.mean()
            + config["VF_COEF"] * value_loss
            - config["ENT_COEF"] * entropy
        )

    def update(carry, _=None):
        carry, traj = jax.lax.scan(env_step, carry, None, config["NUM_STEPS"])
        train_state, env_state, last_obs, returns, key = carry
        _, last_value = train_state.apply_fn(train_state.params, last_obs)

        def gae_step(following, t):
            gae, next_value = following
            delta = t.reward + gamma * next_value * (1 - t.done) - t.value
            gae = delta + gamma * lam * (1 - t.done) * gae
            return (gae, t.value), gae

        start = (jnp.zeros_like(last_value), last_value)
        _, gae = jax.lax.scan(gae_step, start, traj, reverse=True, unroll=16)

        def epoch(state, _):
            train_state, key = state
            key, order_key = jax.random.split(key)
            order = jax.random.permutation(order_key, batch_size)
            batch = (traj, gae, gae + traj.value)
            batch = jax.tree.map(
                lambda x: x.reshape(batch_size, *x.shape[2:])[order], batch
            )
            minibatches = jax.tree.map(
                lambda x: x.reshape(config["NUM_MINIBATCHES"], -1, *x.shape[1:]), batch
            )

            def minibatch_step(train_state, minibatch):
                grads = jax.grad(loss_fn)(
                    train_state.params, train_state.apply_fn, *minibatch
                )
                return train_state.apply_gradients(grads=grads), None

            train_state, _ = jax.lax.scan(minibatch_step, train_state, minibatches)
            return (train_state, key), None

        (train_state, key), _ = jax.lax.scan(
            epoch, (train_state, key), None, config["UPDATE_EPOCHS"]
        )
        ended = (traj.episode_return * traj.done).sum(), traj.done.sum()
        return (train_state, env_state, last_obs, returns, key), ended

    return update


def train(keys, config=CONFIG, num_updates=None):
    """Train one agent per key.

    Returns:
        [len(keys), num_updates] mean return of the episodes that ended in each
        update (NaN if none), of `num_updates` updates; None: the whole lifetime.
    """
    init, update = make_init(config), make_update(config)
    if num_updates is None:
        batch = config["NUM_STEPS"] * config["NUM_ENVS"]
        num_updates = int(config["TOTAL_TIMESTEPS"] // batch)
    # LAPACK's QR under vmap can wait for itself on CPU: one member after the other.
    carry = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)
    run = jax.jit(jax.vmap(lambda c: jax.lax.scan(update, c, None, num_updates)[1]))
    returns, episodes = run(carry)
    return np.asarray(returns), np.asarray(episodes)


def windows(returns, episodes, num_windows=5):
    """Mean episode return per window of updates, one per seed: [seeds, windows]."""
    returns = np.stack([x.sum(1) for x in np.array_split(returns, num_windows, 1)], 1)
    episodes = np.stack([x.sum(1) for x in np.array_split(episodes, num_windows, 1)], 1)
    return returns / np.maximum(episodes, 1)


def our_loop(config, total_timesteps, num_segments):
    """metaevo's PPO with the same hyperparameters on the same environment."""
    from inner_loops import ppo
    from metaevo import envs

    sizes = ppo.Config(
        total_timesteps,
        config["NUM_ENVS"],
        config["NUM_STEPS"],
        config["UPDATE_EPOCHS"],
        config["NUM_MINIBATCHES"],
        num_segments=num_segments,
        activation=config["ACTIVATION"],
    )
    env = envs.make(f"gymnax/{config['ENV_NAME']}")
    return ppo.make(env, sizes, ppo.Meta(lr=config["LR"]))


def trained(loop, num_seeds):
    """Mean episode returns of metaevo's agents, [seeds, segments]."""
    from metaevo import fitness
    from metaevo.analysis import holdout

    runs = holdout.train_hand_made(
        loop,
        fitness.area_under_curve,
        jax.random.key(0),
        num_seeds,
        jax.devices()[:2],
    )
    return runs.train[0]["return"]


def compare(num_seeds=32, total_timesteps=100_000, num_windows=5, config=CONFIG):
    """Mean and standard error of both curves per window of the lifetime."""
    config = config | {"TOTAL_TIMESTEPS": total_timesteps}
    keys = jax.random.split(jax.random.key(1), num_seeds)
    reference = windows(*train(keys, config), num_windows)
    ours = trained(our_loop(config, total_timesteps, num_windows), num_seeds)
    return measure.curves(ours, reference)


if __name__ == "__main__":
    import json

    from metaevo.evaluators.devices import configure

    configure()
    for row in compare():
        print(json.dumps(row))
