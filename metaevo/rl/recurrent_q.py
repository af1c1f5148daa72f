"""Action values with memory: the network, and targets of sequences it sees again.

Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX: a sequence is
replayed from the memory that the agent had at its start, and its first steps, the
burn-in, only warm that memory up.

Axes: W = burn-in + L + n − 1 steps of a sequence, of which L are learned from and the
last n − 1 are what their n-step targets look ahead to; B sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.envs import last_step
from metaevo.learned import functions, rescalings
from metaevo.rl import config_checks, networks, q_learning, returns
from metaevo.rl.rollouts import Transition, learned_from
from metaevo.slots import Context
from metaevo.types import Key, PyTree

__all__ = [
    "Memory",
    "RecurrentNetwork",
    "SequenceLength",
    "Sequences",
    "Targets",
    "forget",
    "led_by",
    "network",
    "remembering",
    "seeing",
    "sequence_length",
    "targets",
    "unroll",
]


class Memory(NamedTuple):
    """State of an agent at a step, beside the observation; leaves [...].

    Attributes:
        hidden: [..., hidden], of the GRU.
        action, reward: the last ones; see `last_step.LastStep`.
    """

    hidden: jax.Array
    action: jax.Array
    reward: jax.Array


class Sequences(NamedTuple):
    """Consecutive steps of one environment.

    Attributes:
        steps: leaves [W, B, ...].
        start: memory at the first step, leaves [B, ...].
    """

    steps: Transition
    start: Memory


class SequenceLength(NamedTuple):
    """Numbers of steps of a sequence: burn-in, learned from, looked ahead to."""

    burn_in: int
    learned: int  # L
    ahead: int  # n

    @property
    def total(self) -> int:
        """W."""
        return self.burn_in + self.learned + self.ahead - 1

    def of_learned(self, x: PyTree) -> PyTree:
        """The steps that are learned from, [W, ...] to [L, ...]."""
        return jax.tree.map(lambda x: x[self.burn_in :][: self.learned], x)


def sequence_length(config: Any) -> SequenceLength:
    """The numbers of steps in the sequences of a Config."""
    return SequenceLength(
        config.burn_in, config.sequence_length, config.num_step_return
    )


# --- the network ----------------------------------------------------------------------


class RecurrentNetwork(NamedTuple):
    """A GRU (Cho et al., 2014) between an embedding and action values.

    Attributes:
        init: `key -> params`.
        inputs: `(params, obs [..., *shape], action [...], reward [...]) -> x`, of the
            last action and reward.
        remember: `(params, hidden [..., hidden], x) -> hidden`.
        values: `(params, hidden) -> [..., A]`.
    """

    init: Callable[[Key], Any]
    inputs: Callable[..., jax.Array]
    remember: Callable[..., jax.Array]
    values: Callable[..., jax.Array]


def network(env: envs.Env, config: Any, algorithm: str) -> RecurrentNetwork:
    """The network of a Config.

    Args:
        config: with `torso`, `hidden`, `features`, `activation` and `dueling`.
        algorithm: its name, for errors.

    Raises:
        ConfigError: actions are continuous, or the torso does not fit.
    """
    num_actions = config_checks.require_discrete(env, algorithm).num
    cell = functions.gru(config.hidden + num_actions + 1, config.hidden)
    torso = networks.torso(config.torso, env.observation)
    embedding = networks.mlp(
        (), config.hidden, math.sqrt(2), config.activation, torso=torso
    )
    head = networks.mlp(
        config.features,
        num_actions,
        activation=config.activation,
        dueling=config.dueling,
    )
    activation = getattr(nn, config.activation)

    def inputs(params, obs, action, reward):
        x = activation(embedding.apply(params["embedding"], obs))
        # `NO_ACTION` is none of them.
        last = jax.nn.one_hot(action, num_actions)
        return jnp.concatenate([x, last, reward[..., None]], -1)

    def init(key):
        embedding_key, head_key, *keys = jax.random.split(key, 6)
        obs = jnp.zeros(env.observation.shape)
        return {
            "embedding": embedding.init(embedding_key, obs),
            "cell": cell.init(keys),
            "head": head.init(head_key, jnp.zeros(config.hidden)),
        }

    def remember(params, hidden, x):
        return cell.apply(params["cell"], x, hidden)

    def values(params, hidden):
        return head.apply(params["head"], hidden)

    return RecurrentNetwork(init, inputs, remember, values)


def seeing(net: RecurrentNetwork, see: Callable) -> RecurrentNetwork:
    """The network of observations `see(obs)`, such as normalized ones."""

    def inputs(params, obs, *last):
        return net.inputs(params, see(obs), *last)

    return net._replace(inputs=inputs)


def forget(hidden: jax.Array, done: jax.Array) -> jax.Array:
    """Memory [..., hidden] after a step: zero where the step ended an episode."""
    return jnp.where(done[..., None], 0.0, hidden)


def remembering(
    net: RecurrentNetwork,
    params: PyTree,
    explore: Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array],
) -> Callable[..., tuple[jax.Array, jax.Array, Memory]]:
    """The `choose` of `rollouts.collect` in an environment `with_last_step`.

    Args:
        explore: `(q [E, A], noise, mask) -> action [E]`.

    Returns:
        `choose`, whose carry is [E, hidden] and whose extras are the memories before
        each step.
    """

    def choose(hidden, obs, noise, state, mask):
        x = net.inputs(params, obs, state.action, state.reward)
        after = net.remember(params, hidden, x)
        action = explore(net.values(params, after), noise, mask)
        return after, action, Memory(hidden, state.action, state.reward)

    return choose


# --- sequences seen again -------------------------------------------------------------


def unroll(
    net: RecurrentNetwork,
    params: PyTree,
    hidden: jax.Array,
    x: jax.Array,
    done: jax.Array,
) -> jax.Array:
    """Memories [T, B, hidden] after each step's input was seen.

    Args:
        hidden: [B, hidden], before the first.
        x: [T, B, ...], of `RecurrentNetwork.inputs`.
        done: [T, B] bool, True where the step ended an episode.
    """

    def step(hidden, at):
        x, done = at
        after = net.remember(params, hidden, x)
        return forget(after, done), after

    return jax.lax.scan(step, hidden, (x, done))[1]


def led_by(sequences: Sequences) -> tuple[jax.Array, jax.Array]:
    """The last action and reward of each step, [W, B]: none where an episode begins."""
    steps, start = sequences
    done = steps.done[:-1]
    action = jnp.where(done, last_step.NO_ACTION, steps.action[:-1])
    reward = jnp.where(done, 0.0, steps.reward[:-1])
    return (
        jnp.concatenate([start.action[None], action]),
        jnp.concatenate([start.reward[None], reward]),
    )


class Targets(NamedTuple):
    """Targets of a sequence and the parts they are made of; leaves [L, B].

    Attributes:
        target: h(Σ_{i<m} γⁱ rᵢ + γᵐ h⁻¹(Q⁻)) of m <= n steps; they end where an episode
            does.
        reward: the sum in it, of rewards that the agent learns from.
        terminated: whether the last of these steps terminated the episode.
        hidden: [B, hidden], the online network's memory behind the burn-in.
        memories: [W, B, hidden], its memories after each step's observation was seen.
        last: last action and reward, [W, B] each.
    """

    target: jax.Array
    reward: jax.Array
    terminated: jax.Array
    hidden: jax.Array
    memories: jax.Array
    last: tuple[jax.Array, jax.Array]


def targets(
    net: RecurrentNetwork,
    size: SequenceLength,
    double: bool,
    params: PyTree,
    target_params: PyTree,
    sequences: Sequences,
    meta: Any,
    context: Context,
    scale: Callable[[jax.Array], jax.Array] = lambda reward: reward,
) -> Targets:
    """n-step targets of the steps that are learned from.

    Both networks begin with the stored memory, times the slot `stored_memory`, and go
    through the burn-in. What follows a step is its true next observation, seen with the
    memory of that episode.

    Args:
        double: True for double Q-learning (van Hasselt et al., 2016).
        meta: with slots `reward`, `gamma`, `rescale` and `stored_memory`.
        scale: of rewards that the agent learns from, such as `normalization.scale`.
    """
    steps, last = sequences.steps, led_by(sequences)
    kept = slots.value(meta.stored_memory, context)
    first = kept * sequences.start.hidden
    # Behind the burn-in.
    obs, action, reward, mask, terminated, done = jax.tree.map(
        lambda x: x[size.burn_in :],
        (
            *(steps.next_obs, steps.action, steps.reward, steps.next_mask),
            *(steps.terminated, steps.done),
        ),
    )

    def look(params):
        """Memories, and the values of what followed, [L + n − 1, B, A]."""
        x = net.inputs(params, steps.obs, *last)
        memories = unroll(net, params, first, x, steps.done)
        x = net.inputs(params, obs, action, reward)
        after = net.remember(params, memories[size.burn_in :], x)
        return memories, net.values(params, after)

    def several(x):
        """The steps [n, L, B] that each target looks ahead to."""
        return jnp.stack([x[i:][: size.learned] for i in range(size.ahead)])

    memories, online = look(params)
    theirs = online if target_params is params else look(target_params)[1]
    best = q_learning.best_action(online if double else theirs, mask)
    value = q_learning.of_action(theirs, best)
    value = rescalings.inverse(meta.rescale, value, context)
    learned = scale(learned_from(meta, steps, context)[size.burn_in :])
    terminated = several(terminated)
    total, factor, end = returns.n_step_window(
        *(several(learned), terminated, several(done)),
        slots.value(meta.gamma, context),
    )
    value, ended = (
        jnp.take_along_axis(x, end[None], 0)[0] for x in (several(value), terminated)
    )
    target = meta.rescale(total + factor * value, context)
    hidden = first
    if size.burn_in:
        hidden = forget(memories[size.burn_in - 1], steps.done[size.burn_in - 1])
    return Targets(target, total, ended, hidden, memories, last)
