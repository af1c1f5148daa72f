"""Proximal policy optimization with a recurrent network, for partial observability.

PPO (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) whose policy and critic
are heads of one GRU (Cho et al., 2014, https://arxiv.org/abs/1406.1078). A rollout
keeps the memory it began with; learning replays it from there, so that gradients go
back through time to its beginning. Differences from most implementations:

* Minibatches are of environments, never of parts of a rollout.
* Time limits are bootstrapped: the value of a truncated episode's true last observation
  is computed from the memory of that episode.

The loss, the slots (`Meta`) and the update are in `_ppo`, common with PPO.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _ppo
from inner_loops._ppo import STATS, TUNABLE, Agent, Batch, Meta
from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    heads,
    network_inputs,
    networks,
    rollouts,
    training,
)
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["STATS", "TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_ppo.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_steps: T, steps of a rollout; gradients go back in time at most that
            far. An update takes E x T frames.
        num_epochs: passes over a rollout.
        num_minibatches: gradient steps in a pass, each on whole rollouts of some of the
            environments.
        torso: before the GRU's layer: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        hidden: units of the GRU, and of the layer before it.
        features: hidden layers of policy and critic after it.
        activation: of all layers but the GRU's.
        normalize_reward: by running statistics. It is on, since policy and critic share
            the GRU: without it the gradient of large values drowns the policy's.
    """

    num_envs: int = 16
    normalize_reward: bool = True
    features: tuple[int, ...] = (64,)
    hidden: int = 64


class Experience(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    episodes: rollouts.Episodes
    memory: jax.Array  # [E, hidden], zero where an episode begins
    discounted_return: jax.Array  # of the learner's reward, for its normalization


class RecurrentBatch(NamedTuple):
    """A minibatch of B environments; leaves [T, B, ...]."""

    batch: Batch
    done: jax.Array
    memory: jax.Array  # [B, hidden], at the beginning of the rollout


def forget(memory: jax.Array, done: jax.Array) -> jax.Array:
    """Memory [..., hidden] after a step: zero where the step ended an episode."""
    return jnp.where(done[..., None], 0.0, memory)


def replay(
    cell: Callable[[jax.Array, jax.Array], jax.Array],
    memory: jax.Array,
    inputs: jax.Array,
    done: jax.Array,
) -> jax.Array:
    """Recomputes the memories of a rollout.

    Args:
        cell: `(memory [B, hidden], input [B, ...]) -> memory`.
        memory: [B, hidden], at the beginning of the rollout.
        inputs: [T, B, ...].
        done: [T, B] bool, True where the step ended an episode.

    Returns:
        [T, B, hidden], each after its step's input was seen.
    """

    def step(memory, at):
        x, done = at
        memory = cell(memory, x)
        return forget(memory, done), memory

    return jax.lax.scan(step, memory, (inputs, done))[1]


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Recurrent PPO on `env`. An agent's carry is its memory, [hidden].

    Metrics of `train` are those of PPO.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    _ppo.check_config(config)
    if config.num_envs % config.num_minibatches:
        raise ConfigError(
            f"inner.num_minibatches={config.num_minibatches} does not divide "
            f"inner.num_envs={config.num_envs}: minibatches are of environments"
        )
    lifetime = config_checks.lifetime(config, config.num_envs * config.num_steps)
    normalize = _ppo.normalizers(config)
    net_inputs = network_inputs.of(env, config.message_size, meta, _ppo.STATS)
    head = heads.of(env.action, config.initial_log_std, config.policy)
    advantages = _ppo.advantages(config)
    # Initialized as all the rest: flax's own orthogonal may hang under vmap.
    cell = nn.GRUCell(config.hidden, recurrent_kernel_init=networks.orthogonal(1.0))
    embedding = networks.mlp(
        (),
        config.hidden,
        math.sqrt(2),
        config.activation,
        torso=networks.torso(config.torso, net_inputs.space),
    )
    actor = networks.mlp(config.features, head.num_outputs, 0.01, config.activation)
    critic = networks.mlp(config.features, 1, 1.0, config.activation)

    # --- the loss ---------------------------------------------------------------------

    def loss(params, sequences, meta, context):
        """Of the whole rollouts of B environments; see `_ppo.loss`."""
        batch, done, memory = sequences
        inputs = embed(meta, params, batch.obs)
        memory = replay(partial(remember, params), memory, inputs, done)
        advantage = advantages(batch.advantage, None)
        pi = policy(meta, params, memory, batch.mask)
        value = value_of(meta, params, memory)
        batch = batch._replace(advantage=advantage)
        return _ppo.loss(head, pi, value, batch, meta, context)

    def split(batch, rollout, start, order):
        """Minibatches of environments; `order` is [steps, B]."""

        def take(chosen):
            some, done = jax.tree.map(lambda x: x[:, chosen], (batch, rollout.done))
            return RecurrentBatch(some, done, start[chosen])

        return order, take

    # --- networks ---------------------------------------------------------------------

    def embed(meta, params, obs):
        x = embedding.apply(params["embedding"], obs, meta.activation)
        return (meta.activation or getattr(nn, config.activation))(x)

    def remember(params, memory, x):
        """Memory [..., hidden] after seeing an embedded observation."""
        return cell.apply(params["cell"], memory, x)[0]

    def initial_carry():
        return jnp.zeros(config.hidden)

    def policy(meta, params, memory, mask):
        outputs = actor.apply(params["actor"], memory, meta.activation)
        return head.distribution(params, outputs, mask)

    def value_of(meta, params, memory):
        return critic.apply(params["critic"], memory, meta.activation)[..., 0]

    def values(meta, params, rollout):
        # The true next observation, seen with this episode's memory: after its end
        # the rollout went on with another's.
        inputs = embed(meta, params, rollout.next_obs)
        ahead = remember(params, rollout.memory, inputs)
        value = value_of(meta, params, rollout.memory)
        return value, value_of(meta, params, ahead)

    def init(key, meta):
        keys, memory = jax.random.split(key, 5), initial_carry()
        params = {
            "embedding": embedding.init(keys[0], jnp.zeros(net_inputs.space.shape)),
            "cell": cell.init(keys[1], memory, memory),
            "actor": actor.init(keys[2], memory),
            "critic": critic.init(keys[3], memory),
            **head.init(),
        }
        experience = Experience(
            rollouts.start(keys[4], env, config.num_envs),
            jnp.zeros((config.num_envs, config.hidden)),
            jnp.zeros(config.num_envs),
        )
        agent = _ppo.newborn(net_inputs, params, meta)
        return InnerState(agent, experience, clock=training.start_clock())

    # --- rollout ----------------------------------------------------------------------

    def rollout(key, meta, context, agent, experience):
        """T steps of E environments."""
        keys = jax.random.split(key, 3)  # of noise, steps and starts
        shape = (config.num_steps, config.num_envs)
        # Drawn at once: random numbers inside the scan cost more.
        noise = head.noise(keys[0], shape)

        def choose(memory, obs, noise, state, mask):
            del state
            obs = net_inputs.with_message(meta, context, obs)
            obs = normalize.obs.apply(agent.obs_stats, obs)
            memory = remember(agent.params, memory, embed(meta, agent.params, obs))
            pi = policy(meta, agent.params, memory, mask)
            sample = head.sample(pi, noise)
            return memory, head.action(sample), (pi, sample, memory)

        after, memory, steps, finished, (pi, sample, memories) = rollouts.collect(
            keys[1:], env, experience.episodes, noise, choose, experience.memory
        )
        log_prob = jax.vmap(head.log_prob)(pi, sample)
        acted = _ppo.Acted(steps, sample, log_prob, finished, memories)
        before = experience.discounted_return
        last, data, discounted = _ppo.rollout_for_learning(
            config, normalize.obs, net_inputs, meta, context, agent, acted, before
        )
        return Experience(after, memory, last), data, discounted

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, state
        context = training.context(agent.age, lifetime.num_updates, agent.stats)
        obs = net_inputs.with_message(meta, context, obs)
        obs = normalize.obs.apply(agent.obs_stats, obs)
        memory = remember(agent.params, carry, embed(meta, agent.params, obs))
        return head.greedy(policy(meta, agent.params, memory, mask)), memory

    start = operator.attrgetter("memory")
    parts = _ppo.PpoParts(rollout, start, values, split, loss, config.num_envs)
    update = _ppo.update_of(config, lifetime.num_updates, normalize, parts)
    return training.inner_loop(
        env,
        config,
        meta,
        lifetime,
        init,
        update,
        act,
        initial_carry=initial_carry,
        tunable=TUNABLE,
        choices=_ppo.CHOICES,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
