"""A2C and IMPALA as `jit(vmap(train))`: the reference for curves and speed.

Written from the papers (Mnih et al., 2016; Espeholt et al., 2018), independently of
`inner_loops/a2c.py` and `inner_loops/impala.py`, in the style of `reference_ppo`: flax,
optax and gymnax only, one member's program under vmap, and one mask, `done`. IMPALA's
actors hold the parameters of `DELAY` updates ago; A2C has no delay, and its targets are
n-step returns.

    python -m benchmarks.reference_impala         curves of both, 32 seeds, as JSON
"""

from functools import partial
from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from benchmarks import measure
from benchmarks.reference_ppo import ActorCritic, log_prob_of, trained, windows

A2C = {"LR": 7e-4, "NUM_ENVS": 8, "NUM_STEPS": 5, "DELAY": 0, "VTRACE": False}
A2C |= {"GAMMA": 0.99, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5}
IMPALA = A2C | {"LR": 2e-3, "NUM_STEPS": 20, "DELAY": 4, "VTRACE": True}
CONFIGS = {"a2c": A2C, "impala": IMPALA}


class Transition(NamedTuple):
    done: jax.Array
    action: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array
    episode_return: jax.Array


def n_step(reward, done, value, last_value, gamma):
    """Targets of the values and advantages: discounted sums up to the rollout's end."""

    def backward(target, t):
        reward, done = t
        target = reward + gamma * (1 - done) * target
        return target, target

    _, target = jax.lax.scan(backward, last_value, (reward, done), reverse=True)
    return target, target - value


def vtrace(reward, done, value, last_value, rho, gamma):
    """Targets of the values and advantages, equation (1), clips at 1."""
    clipped = jnp.minimum(1.0, rho)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    delta = clipped * (reward + gamma * (1 - done) * next_value - value)

    def backward(error, t):
        delta, done, c = t
        error = delta + gamma * (1 - done) * c * error
        return error, error

    start = jnp.zeros_like(last_value)
    _, error = jax.lax.scan(backward, start, (delta, done, clipped), reverse=True)
    target = value + error
    ahead = jnp.concatenate([target[1:], last_value[None]])
    return target, clipped * (reward + gamma * (1 - done) * ahead - value)


def make_init(config, num_updates):
    """`key -> carry`: networks, their past, and environments."""
    env, env_params = gymnax.make("CartPole-v1")
    shape = env.observation_space(env_params).shape
    network = ActorCritic(env.action_space(env_params).n, "tanh", len(shape))

    def anneal(count):
        return config["LR"] * (1.0 - count / num_updates)

    transformation = optax.chain(
        optax.clip_by_global_norm(config["MAX_GRAD_NORM"]),
        optax.rmsprop(anneal, decay=0.99, eps=1e-5, initial_scale=1.0),
    )

    def init(key):
        key, net_key, reset_key = jax.random.split(key, 3)
        train_state = TrainState.create(
            apply_fn=network.apply,
            params=network.init(net_key, jnp.zeros(shape)),
            tx=transformation,
        )
        reset_keys = jax.random.split(reset_key, config["NUM_ENVS"])
        obs, env_state = jax.vmap(env.reset, (0, None))(reset_keys, env_params)
        past = jax.tree.map(
            lambda x: jnp.stack([x] * (config["DELAY"] + 1)), train_state.params
        )
        return train_state, past, env_state, obs, jnp.zeros(config["NUM_ENVS"]), key

    return init


def make_update(config):
    """`carry -> (carry, (sum of returns, number of episodes))`: one update."""
    env, env_params = gymnax.make("CartPole-v1")
    kept = config["DELAY"] + 1

    def env_step(actor, apply_fn, carry, _):
        env_state, last_obs, returns, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        logits, _ = apply_fn(actor, last_obs)
        action = jax.random.categorical(action_key, logits)
        step_keys = jax.random.split(step_key, config["NUM_ENVS"])
        obs, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, (0, 0, 0, None)
        )(step_keys, env_state, action, env_params)
        done = terminated | truncated
        returns = returns + reward
        transition = Transition(
            done, action, reward, log_prob_of(logits, action), last_obs, returns
        )
        return (env_state, obs, returns * (1 - done), key), transition

    def loss_fn(params, apply_fn, traj, last_obs):
        logits, value = apply_fn(params, traj.obs)
        _, last_value = apply_fn(params, last_obs)
        log_prob = log_prob_of(logits, traj.action)
        fixed = jax.lax.stop_gradient((value, last_value))
        if config["VTRACE"]:
            rho = jnp.exp(jax.lax.stop_gradient(log_prob) - traj.log_prob)
            target, advantage = vtrace(
                traj.reward, traj.done, *fixed, rho, config["GAMMA"]
            )
        else:
            target, advantage = n_step(traj.reward, traj.done, *fixed, config["GAMMA"])
        log_p = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        return (
            -(log_prob * advantage).mean()
            + config["VF_COEF"] * 0.5 * ((value - target) ** 2).mean()
            - config["ENT_COEF"] * entropy
        )

    def update(carry, _=None):
        train_state, past, *world = carry
        oldest = (train_state.step + 1) % kept
        actor = jax.tree.map(lambda x: x[oldest], past)
        step = partial(env_step, actor, train_state.apply_fn)
        world, traj = jax.lax.scan(step, tuple(world), None, config["NUM_STEPS"])
        gradient = jax.grad(loss_fn)(
            train_state.params, train_state.apply_fn, traj, world[1]
        )
        train_state = train_state.apply_gradients(grads=gradient)
        newest = train_state.step % kept
        past = jax.tree.map(lambda x, p: x.at[newest].set(p), past, train_state.params)
        ended = (traj.episode_return * traj.done).sum(), traj.done.sum()
        return (train_state, past, *world), ended

    return update


def our_loop(name, total_timesteps, num_segments=1):
    """metaevo's loop with the same sizes and numbers on the same environment."""
    from inner_loops import a2c, impala
    from metaevo import envs

    module, config = {"a2c": a2c, "impala": impala}[name], CONFIGS[name]
    sizes = module.Config(
        total_timesteps,
        config["NUM_ENVS"],
        config["NUM_STEPS"],
        num_segments=num_segments,
        max_delay=config["DELAY"],
    )
    return module.make(envs.make("gymnax/CartPole-v1"), sizes, module.Meta())


def compare(name, num_seeds=32, total_timesteps=200_000, num_windows=5):
    """Both learning curves; see `measure.curves`."""
    config = CONFIGS[name]
    num_updates = total_timesteps // (config["NUM_ENVS"] * config["NUM_STEPS"])
    carry = jax.jit(partial(jax.lax.map, make_init(config, num_updates)))(
        jax.random.split(jax.random.key(1), num_seeds)
    )
    update = make_update(config)
    run = jax.jit(jax.vmap(lambda c: jax.lax.scan(update, c, None, num_updates)[1]))
    returns, episodes = run(carry)
    reference = windows(np.asarray(returns), np.asarray(episodes), num_windows)
    ours = trained(our_loop(name, total_timesteps, num_windows), num_seeds)
    return measure.curves(ours, reference)


if __name__ == "__main__":
    import json

    from metaevo.evaluators.devices import configure

    configure()
    for name in CONFIGS:
        for row in compare(name):
            print(json.dumps({"algorithm": name, **row}))
