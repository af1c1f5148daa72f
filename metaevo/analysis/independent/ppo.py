"""A second PPO, to judge evolved functions in an agent that they did not evolve in.

Proximal policy optimization (Schulman et al., 2017, https://arxiv.org/abs/1707.06347).
It shares no code with `metaevo.rl` and the inner loops, and it differs from
`inner_loops.ppo` where implementations differ:

* Policy and value are relu networks.
* Time limits are taken for ends: nothing is bootstrapped there.
* Advantages are standardized over the whole rollout.
* The step size is constant, Adam's ε is 1e-8, and weights start normal.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.envs import Discrete, Env
from metaevo.slots import Context
from metaevo.types import Key

SLOTS = ("value_loss", "drift", "reward")
"""Slots of `train`."""

STEP_SIZES = (4e-4, 1e-3, 2.5e-3)
"""Step sizes that a comparison uses."""


class Config(NamedTuple):
    """Sizes and numbers.

    Attributes:
        num_frames: frames in a lifetime, rounded down to whole rollouts.
        num_envs: number of environments.
        num_steps: steps of each in a rollout.
        num_epochs: passes over a rollout.
        num_minibatches: gradient steps in a pass.
        num_points: points on the learning curve, K.
        num_episodes: episodes of the evaluation after training.
        features: sizes of the hidden layers of policy and value, one network each.
        anneal: whether the step size falls linearly to 0.
        gamma: discount.
        gae_lambda: decay of the advantage's traces.
        clip_eps: clip of the ratio.
        ent_coef: weight of the entropy.
        vf_coef: weight of the value loss.
        max_grad_norm: largest norm of a gradient.
    """

    num_frames: int = 65_536
    num_envs: int = 16
    num_steps: int = 64
    num_epochs: int = 4
    num_minibatches: int = 8
    num_points: int = 16
    num_episodes: int = 16
    features: tuple[int, ...] = (64, 64)
    anneal: bool = False
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class TrainingResult(NamedTuple):
    """A training run.

    Attributes:
        returns: [K] mean return of the episodes that ended in each part of the
            lifetime; NaN where none did.
        final_return: mean return of the deterministic policy after training; NaN if a
            parameter is not finite.
    """

    returns: jax.Array
    final_return: jax.Array


def square(value, target, old_value, context):
    """Half the squared error."""
    del old_value, context
    return 0.5 * (value - target) ** 2


def clip(log_ratio, advantage, clip_eps, context):
    """Loss of the ratio's clip, r A - min(r A, clip(r) A)."""
    del context
    ratio = jnp.exp(log_ratio)
    inside = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return jax.nn.relu((ratio - inside) * advantage)


def given(obs, action, reward, next_obs, terminated, context):
    """The environment's reward."""
    del obs, action, next_obs, terminated, context
    return reward


def train(
    key: Key,
    env: Env,
    *,
    value_loss: Any = square,
    drift: Any = clip,
    reward: Any = given,
    lr: jax.Array | float = 1e-3,
    settings: Config = Config(),
) -> TrainingResult:
    """Train one agent for a whole lifetime.

    Args:
        key: determines everything random.
        env: with discrete actions, or a box of them.
        value_loss: `(value, target, old_value, context) -> [...]`.
        drift: `(log_ratio, advantage, clip_eps, context) -> [...]`.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, that
            the agent learns from. `context.stats` holds `gamma`.
        lr: Adam's step size; may be traced.
        settings: sizes and numbers.

    Returns:
        the learning curve and the final return, in the environment's own reward.
    """
    s = settings
    batch_size = s.num_envs * s.num_steps
    per_point = max(s.num_frames // batch_size // s.num_points, 1)
    num_updates = per_point * s.num_points
    init_key, reset_key, train_key, final_key = jax.random.split(key, 4)
    params = _init(init_key, env, s)
    optimizer = optax.chain(
        optax.clip_by_global_norm(s.max_grad_norm), optax.scale_by_adam()
    )

    def act(params, key, obs):
        logits, _ = _forward(env, params, obs)
        action = _sample(env, params, logits, key)
        return action, _log_prob(env, params, logits, action)

    def step(carry, key):
        params, state, obs, episode = carry
        act_key, step_key = jax.random.split(key)
        action, log_prob = act(params, act_key, obs)
        keys = jax.random.split(step_key, s.num_envs)
        state, out = jax.vmap(env.step)(keys, state, action)
        episode = episode + out.reward
        ended = jnp.where(out.done, episode, 0.0)
        row = obs, action, log_prob, out, ended
        return (params, state, out.obs, jnp.where(out.done, 0.0, episode)), row

    def loss(params, batch, context):
        obs, action, old_log_prob, advantage, target, old_value = batch
        logits, value = _forward(env, params, obs)
        log_ratio = _log_prob(env, params, logits, action) - old_log_prob
        lost = drift(log_ratio, advantage, s.clip_eps, context)
        gain = (jnp.exp(log_ratio) * advantage - lost).mean()
        critic = value_loss(value, target, old_value, context).mean()
        bonus = _entropy(env, params, logits).mean()
        return -gain + s.vf_coef * critic - s.ent_coef * bonus

    def update(carry, at):
        params, opt_state, world = carry
        number, key = at
        progress = number / num_updates
        rollout_key, order_key = jax.random.split(key)
        keys = jax.random.split(rollout_key, s.num_steps)
        (_, *world), rows = jax.lax.scan(step, (params, *world), keys)
        obs, action, log_prob, out, ended = rows
        context = Context(progress=progress, stats={"gamma": s.gamma})
        each = jax.vmap(jax.vmap(reward, (0, 0, 0, 0, 0, None)), (0, 0, 0, 0, 0, None))
        rewards = each(obs, action, out.reward, out.final_obs, out.terminated, context)
        value = _forward(env, params, obs)[1]
        last = _forward(env, params, world[1])[1]
        advantage = _advantages(rewards, value, last, out.done, s)
        target = advantage + value
        context = Context(progress, target.std(), {"clip_eps": jnp.float32(s.clip_eps)})
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        data = jax.tree.map(
            lambda x: x.reshape(batch_size, *x.shape[2:]),
            (obs, action, log_prob, advantage, target, value),
        )
        now = lr * (1 - progress) if s.anneal else lr

        def descend(carry, rows):
            params, opt_state = carry
            batch = jax.tree.map(lambda x: x[rows], data)
            gradient = jax.grad(loss)(params, batch, context)
            direction, opt_state = optimizer.update(gradient, opt_state)
            params = jax.tree.map(lambda p, d: p - now * d, params, direction)
            return (params, opt_state), None

        orders = jax.vmap(lambda k: jax.random.permutation(k, batch_size))(
            jax.random.split(order_key, s.num_epochs)
        ).reshape(s.num_epochs * s.num_minibatches, -1)
        (params, opt_state), _ = jax.lax.scan(descend, (params, opt_state), orders)
        return (params, opt_state, tuple(world)), (out.done.sum(), ended.sum())

    state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, s.num_envs))
    world = state, obs, jnp.zeros(s.num_envs)
    at = jnp.arange(num_updates), jax.random.split(train_key, num_updates)
    carry = params, optimizer.init(params), world
    (params, *_), (episodes, total) = jax.lax.scan(update, carry, at)
    episodes, total = (x.reshape(s.num_points, -1).sum(1) for x in (episodes, total))
    returns = jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)

    def best(obs):
        return _mode(env, _forward(env, params, obs)[0])

    return TrainingResult(
        returns, evaluate(final_key, env, best, params, s.num_episodes)
    )


def evaluate(
    key: Key, env: Env, best: Any, params: Any, num_episodes: int
) -> jax.Array:
    """Return the mean return of `best`, `obs [N, ...] -> action [N, ...]`.

    It is NaN if one of the policy's `params` is not finite.
    """
    reset_key, key = jax.random.split(key)
    state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, num_episodes))

    def step(carry, key):
        state, obs, alive, total = carry
        keys = jax.random.split(key, num_episodes)
        state, out = jax.vmap(env.step)(keys, state, best(obs))
        total = total + jnp.where(alive, out.reward, 0.0)
        return (state, out.obs, alive & ~out.done, total), None

    carry = state, obs, jnp.ones(num_episodes, bool), jnp.zeros(num_episodes)
    keys = jax.random.split(key, env.max_steps)
    (_, _, _, total), _ = jax.lax.scan(step, carry, keys)
    finite = jnp.isfinite(jnp.array([x.sum() for x in jax.tree.leaves(params)])).all()
    return jnp.where(finite, total.mean(), jnp.nan)


def _advantages(reward, value, last, done, s: Config) -> jax.Array:
    """Return generalized advantages [T, E]; an episode's end is the end of everything.

    Schulman et al., 2015, https://arxiv.org/abs/1506.02438.
    """

    def back(carry, at):
        advantage, following = carry
        reward, value, done = at
        alive = 1.0 - done
        delta = reward + s.gamma * alive * following - value
        advantage = delta + s.gamma * s.gae_lambda * alive * advantage
        return (advantage, value), advantage

    start = jnp.zeros_like(last), last
    return jax.lax.scan(back, start, (reward, value, done), reverse=True)[1]


# --- networks and distributions -------------------------------------------------------


def _dense(key, rows: int, columns: int, scale: float) -> dict[str, jax.Array]:
    weights = jax.random.normal(key, (rows, columns)) * scale / math.sqrt(rows)
    return {"w": weights, "b": jnp.zeros(columns)}


def _init(key, env: Env, s: Config) -> dict[str, Any]:
    """Return parameters: layers of the policy's and the value's torso, and heads."""
    sizes = (math.prod(env.observation.shape), *s.features)
    box = env.action
    num = box.num if isinstance(box, Discrete) else math.prod(box.shape)
    keys = iter(jax.random.split(key, 2 * len(s.features) + 2))

    def torso():
        pairs = itertools.pairwise(sizes)
        return [_dense(next(keys), a, b, math.sqrt(2)) for a, b in pairs]

    params: dict[str, Any] = {"policy_torso": torso(), "value_torso": torso()}
    params["policy"] = _dense(next(keys), sizes[-1], num, 0.01)
    params["value"] = _dense(next(keys), sizes[-1], 1, 1.0)
    params["log_std"] = jnp.zeros(num)
    return params


def _forward(env: Env, params, obs) -> tuple[jax.Array, jax.Array]:
    """Return logits or means [..., A], and values [...], of observations."""
    x = obs.reshape(*obs.shape[: obs.ndim - len(env.observation.shape)], -1)

    def through(layers, x):
        for layer in layers:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x

    policy, value = params["policy"], params["value"]
    logits = through(params["policy_torso"], x) @ policy["w"] + policy["b"]
    valued = through(params["value_torso"], x) @ value["w"] + value["b"]
    return logits, valued[..., 0]


def _sample(env: Env, params, logits, key):
    if isinstance(env.action, Discrete):
        return jax.random.categorical(key, logits)
    noise = jax.random.normal(key, logits.shape)
    action = logits + jnp.exp(params["log_std"]) * noise
    return action.reshape(*logits.shape[:-1], *env.action.shape)


def _mode(env: Env, logits):
    if isinstance(env.action, Discrete):
        return jnp.argmax(logits, -1)
    return logits.reshape(*logits.shape[:-1], *env.action.shape)


def _log_prob(env: Env, params, logits, action):
    if isinstance(env.action, Discrete):
        chosen = jax.nn.one_hot(action, logits.shape[-1])
        return (jax.nn.log_softmax(logits) * chosen).sum(-1)
    away = (action.reshape(logits.shape) - logits) * jnp.exp(-params["log_std"])
    each = -0.5 * away**2 - params["log_std"] - 0.5 * math.log(2 * math.pi)
    return each.sum(-1)


def _entropy(env: Env, params, logits):
    if isinstance(env.action, Discrete):
        log_p = jax.nn.log_softmax(logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)
    per = params["log_std"] + 0.5 * math.log(2 * math.pi * math.e)
    return jnp.broadcast_to(per.sum(), logits.shape[:-1])
