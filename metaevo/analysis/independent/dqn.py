"""A second DQN, to judge evolved functions in an agent that they did not evolve in.

Deep Q-learning (Mnih et al., 2015, https://www.nature.com/articles/nature14236). It
shares no code with `metaevo.rl` and the inner loops, and it differs from
`inner_loops.dqn` where implementations differ:

* Time limits are taken for ends: nothing is bootstrapped there.
* Targets are those of double Q-learning (van Hasselt et al., 2016,
  https://arxiv.org/abs/1509.06461).
* The network has one hidden layer, gradients are clipped, Adam's ε is 1e-8.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.analysis.independent.ppo import TrainingResult, evaluate, given
from metaevo.envs import Discrete, Env
from metaevo.errors import ConfigError
from metaevo.slots import Context
from metaevo.types import Key

SLOTS = ("td_loss", "reward")
"""Slots of `train`."""

STEP_SIZES = (2.5e-4, 5e-4, 1e-3)
"""Step sizes that a comparison uses."""


class Config(NamedTuple):
    """Sizes and numbers.

    Attributes:
        num_frames: frames in a lifetime, rounded down to whole points of the curve.
        num_envs: number of environments, which take one step between gradient steps.
        learning_starts: frames before the first gradient step.
        buffer_size: frames that the replay buffer holds.
        batch_size: transitions in a gradient step.
        num_points: points on the learning curve, K.
        num_episodes: episodes of the evaluation after training.
        features: sizes of the hidden layers.
        gamma: discount.
        target_period: gradient steps between copies to the target network.
        last_epsilon: share of random actions in the end; 1 in the beginning.
        exploration: share of the lifetime in which that falls, linearly.
        max_grad_norm: largest norm of a gradient.
    """

    num_frames: int = 98_304
    num_envs: int = 8
    learning_starts: int = 1_024
    buffer_size: int = 32_768
    batch_size: int = 64
    num_points: int = 16
    num_episodes: int = 16
    features: tuple[int, ...] = (128,)
    gamma: float = 0.99
    target_period: int = 50
    last_epsilon: float = 0.02
    exploration: float = 0.5
    max_grad_norm: float = 10.0


class Transitions(NamedTuple):
    """Leaves [N, ...]; `done` is the end of an episode for any reason."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array
    done: jax.Array


def square(td_error, q, target, context):
    """Half the squared error."""
    del q, target, context
    return 0.5 * td_error**2


def train(
    key: Key,
    env: Env,
    *,
    td_loss: Any = square,
    reward: Any = given,
    lr: jax.Array | float = 5e-4,
    settings: Config = Config(),
) -> TrainingResult:
    """Train one agent for a whole lifetime.

    Args:
        key: determines everything random.
        env: with discrete actions.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target - q.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, that
            the agent learns from. `context.stats` holds `gamma`.
        lr: Adam's step size; may be traced.
        settings: sizes and numbers.

    Returns:
        the learning curve and the final return, in the environment's own reward.

    Raises:
        ConfigError: actions are not discrete.
    """
    s = settings
    if not isinstance(env.action, Discrete):
        raise ConfigError(f"env={env.name!r}: DQN needs discrete actions")
    num_actions = env.action.num
    num_steps = s.num_frames // s.num_envs // s.num_points * s.num_points
    size = s.buffer_size // s.num_envs * s.num_envs
    init_key, reset_key, train_key, final_key = jax.random.split(key, 4)
    params = _init(init_key, env, s)
    optimizer = optax.chain(
        optax.clip_by_global_norm(s.max_grad_norm), optax.scale_by_adam()
    )

    def shaped(obs):
        return obs.reshape(-1, *env.observation.shape)

    def learn(key, progress, number, learner, buffer, filled):
        params, target_params, opt_state = learner
        rows = jax.random.randint(key, (s.batch_size,), 0, filled)
        batch = jax.tree.map(lambda x: x[rows], buffer)
        context = Context(progress=progress, stats={"gamma": s.gamma})
        rewards = jax.vmap(reward, (0, 0, 0, 0, 0, None))(
            shaped(batch.obs), batch.action, batch.reward, shaped(batch.next_obs),
            batch.terminated, context,
        )  # fmt: skip
        chosen = jnp.argmax(_values(params, batch.next_obs), -1)
        chosen = jax.nn.one_hot(chosen, num_actions)
        following = (_values(target_params, batch.next_obs) * chosen).sum(-1)
        target = rewards + s.gamma * (1.0 - batch.done) * following
        context = Context(progress=progress, return_std=target.std())

        def loss(params):
            chosen = jax.nn.one_hot(batch.action, num_actions)
            q = (_values(params, batch.obs) * chosen).sum(-1)
            return td_loss(target - q, q, target, context).mean()

        gradient = jax.grad(loss)(params)
        direction, opt_state = optimizer.update(gradient, opt_state)
        params = jax.tree.map(lambda p, d: p - lr * d, params, direction)
        copied = number % s.target_period == 0
        target_params = jax.tree.map(
            lambda new, old: jnp.where(copied, new, old), params, target_params
        )
        return params, target_params, opt_state

    def step(carry, at):
        learner, buffer, state, obs, episode = carry
        number, key = at
        random_key, action_key, step_key, learn_key = jax.random.split(key, 4)
        progress = number / num_steps
        epsilon = jnp.maximum(
            1 - (1 - s.last_epsilon) * progress / s.exploration, s.last_epsilon
        )
        action = jnp.where(
            jax.random.uniform(random_key, (s.num_envs,)) < epsilon,
            jax.random.randint(action_key, (s.num_envs,), 0, num_actions),
            jnp.argmax(_values(learner[0], _flat(obs)), -1),
        )
        keys = jax.random.split(step_key, s.num_envs)
        state, out = jax.vmap(env.step)(keys, state, action)
        rows = Transitions(
            _flat(obs), action, out.reward, _flat(out.final_obs), out.terminated,
            out.done,
        )  # fmt: skip
        first = number * s.num_envs % size
        buffer = jax.tree.map(
            lambda x, row: jax.lax.dynamic_update_slice_in_dim(x, row, first, 0),
            buffer,
            rows,
        )
        frames = (number + 1) * s.num_envs
        learner = jax.lax.cond(
            frames > s.learning_starts,
            lambda learner: learn(
                learn_key, progress, number, learner, buffer, jnp.minimum(frames, size)
            ),
            lambda learner: learner,
            learner,
        )
        episode = episode + out.reward
        ended = jnp.where(out.done, episode, 0.0)
        carry = learner, buffer, state, out.obs, jnp.where(out.done, 0.0, episode)
        return carry, (out.done.sum(), ended.sum())

    state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, s.num_envs))
    seen = jnp.zeros((size, math.prod(env.observation.shape)))
    number, flag = jnp.zeros(size), jnp.zeros(size, bool)
    buffer = Transitions(seen, number.astype(jnp.int32), number, seen, flag, flag)
    carry = (params, params, optimizer.init(params)), buffer, state, obs
    at = jnp.arange(num_steps), jax.random.split(train_key, num_steps)
    (learner, *_), (episodes, total) = jax.lax.scan(
        step, (*carry, jnp.zeros(s.num_envs)), at
    )
    episodes, total = (x.reshape(s.num_points, -1).sum(1) for x in (episodes, total))
    returns = jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)

    def best(obs):
        return jnp.argmax(_values(learner[0], _flat(obs)), -1)

    return TrainingResult(
        returns, evaluate(final_key, env, best, learner[0], s.num_episodes)
    )


def _flat(obs: jax.Array) -> jax.Array:
    """Return observations [N, ...] as vectors [N, D]."""
    return obs.reshape(obs.shape[0], -1)


def _init(key, env: Env, s: Config) -> list[dict[str, jax.Array]]:
    """Return layers; weights uniform as PyTorch's, U(±1/√inputs)."""
    assert isinstance(env.action, Discrete)
    sizes = (math.prod(env.observation.shape), *s.features, env.action.num)
    layers = []
    for a, b in itertools.pairwise(sizes):
        key, w_key, b_key = jax.random.split(key, 3)
        bound = 1 / math.sqrt(a)
        layers.append(
            {
                "w": jax.random.uniform(w_key, (a, b), minval=-bound, maxval=bound),
                "b": jax.random.uniform(b_key, (b,), minval=-bound, maxval=bound),
            }
        )
    return layers


def _values(layers, obs) -> jax.Array:
    """Return Q of all actions [N, A], of vectors [N, D]."""
    *hidden, last = layers
    for layer in hidden:
        obs = jax.nn.relu(obs @ layer["w"] + layer["b"])
    return obs @ last["w"] + last["b"]
