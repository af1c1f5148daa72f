"""Actor and critic: from observations to a policy and values, with or without memory.

An algorithm is written once for both: what acts and what learns are functions of a
memory, which is () without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import heads, networks
from metaevo.types import Key, PyTree

__all__ = ["MEMORIES", "ActorCritic", "MemoryName", "of"]

MemoryName = Literal["none", "gru"]
"""Names of memories in a Config."""

MEMORIES = get_args(MemoryName)


class ActorCritic(NamedTuple):
    """A policy and a critic.

    Attributes:
        head: of the policy.
        init: `key -> params`.
        memory: `() -> ` the memory with which an episode begins, () without one.
        act: `(meta, params, memory, obs, mask) -> (memory, distribution)`, leaves
            [E, ...] of E environments, or of one.
        replay: `(meta, params, memory [E, ...], obs [T, E, ...], done [T, E], mask) ->
            (distribution, value, memories)`, leaves [T, E, ...]: a rollout that began
            with `memory` seen again; memories are those after seeing `obs`.
        ahead: `(meta, params, memories, next_obs) -> value` of the true next
            observations; leaves [E, ...].
    """

    head: heads.PolicyHead
    init: Callable[[Key], PyTree]
    memory: Callable[[], PyTree]
    act: Callable[..., tuple[PyTree, Any]]
    replay: Callable[..., tuple[Any, jax.Array, PyTree]]
    ahead: Callable[..., jax.Array]


def of(env: envs.Env, config: Any) -> ActorCritic:
    """The actor and critic that a Config asks for.

    Args:
        config: with `policy`, `initial_log_std`, `torso`, `memory`, `hidden`,
            `features` and `activation`.

    Raises:
        ConfigError: there is no such memory, or the policy does not fit the actions.
    """
    if config.memory not in MEMORIES:
        raise ConfigError(
            f"inner.memory={config.memory!r}: expected one of {', '.join(MEMORIES)}"
        )
    head = heads.of(env.action, config.initial_log_std, config.policy)
    make = _recurrent if config.memory == "gru" else _feed_forward
    return make(env, config, head, networks.torso(config.torso, env.observation))


def _feed_forward(env, config, head, torso) -> ActorCritic:
    """Separate networks for policy and values."""
    network = partial(
        networks.mlp, config.features, activation=config.activation, torso=torso
    )
    actor, critic = network(head.num_outputs, 0.01), network(1, 1.0)

    def policy(meta, params, obs, mask):
        outputs = actor.apply(params["actor"], obs, meta.activation)
        return head.distribution(params, outputs, mask)

    def value_of(meta, params, obs):
        return critic.apply(params["critic"], obs, meta.activation)[..., 0]

    def init(key):
        actor_key, critic_key = jax.random.split(key)
        obs = jnp.zeros(env.observation.shape)
        return {
            "actor": actor.init(actor_key, obs),
            "critic": critic.init(critic_key, obs),
            **head.init(),
        }

    def act(meta, params, memory, obs, mask):
        return memory, policy(meta, params, obs, mask)

    def replay(meta, params, memory, obs, done, mask):
        del done
        return policy(meta, params, obs, mask), value_of(meta, params, obs), memory

    def ahead(meta, params, memories, next_obs):
        del memories
        return value_of(meta, params, next_obs)

    return ActorCritic(head, init, tuple, act, replay, ahead)


def _recurrent(env, config, head, torso) -> ActorCritic:
    """Heads of one GRU (Cho et al., 2014, https://arxiv.org/abs/1406.1078).

    Gradients go back through time to the beginning of a rollout.
    """
    # Initialized as all the rest: flax's own orthogonal may hang under vmap.
    cell = nn.GRUCell(config.hidden, recurrent_kernel_init=networks.orthogonal(1.0))
    embedding = networks.mlp(
        (), config.hidden, math.sqrt(2), config.activation, torso=torso
    )
    actor = networks.mlp(config.features, head.num_outputs, 0.01, config.activation)
    critic = networks.mlp(config.features, 1, 1.0, config.activation)

    def embed(meta, params, obs):
        x = embedding.apply(params["embedding"], obs, meta.activation)
        return (meta.activation or getattr(nn, config.activation))(x)

    def remember(params, memory, x):
        return cell.apply(params["cell"], memory, x)[0]

    def policy(meta, params, memory, mask):
        outputs = actor.apply(params["actor"], memory, meta.activation)
        return head.distribution(params, outputs, mask)

    def value_of(meta, params, memory):
        return critic.apply(params["critic"], memory, meta.activation)[..., 0]

    def memory():
        return jnp.zeros(config.hidden)

    def init(key):
        keys, first = jax.random.split(key, 4), memory()
        return {
            "embedding": embedding.init(keys[0], jnp.zeros(env.observation.shape)),
            "cell": cell.init(keys[1], first, first),
            "actor": actor.init(keys[2], first),
            "critic": critic.init(keys[3], first),
            **head.init(),
        }

    def act(meta, params, memory, obs, mask):
        memory = remember(params, memory, embed(meta, params, obs))
        return memory, policy(meta, params, memory, mask)

    def replay(meta, params, memory, obs, done, mask):
        def step(memory, at):
            x, done = at
            memory = remember(params, memory, x)
            return jnp.where(done[..., None], 0.0, memory), memory

        inputs = embed(meta, params, obs)
        memories = jax.lax.scan(step, memory, (inputs, done))[1]
        pi = policy(meta, params, memories, mask)
        return pi, value_of(meta, params, memories), memories

    def ahead(meta, params, memories, next_obs):
        # Seen with this episode's memory: after its end the rollout has another's.
        seen = remember(params, memories, embed(meta, params, next_obs))
        return value_of(meta, params, seen)

    return ActorCritic(head, init, memory, act, replay, ahead)
