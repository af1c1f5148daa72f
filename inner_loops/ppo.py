"""Proximal policy optimization (Schulman et al., 2017, https://arxiv.org/abs/1707.06347).

Defaults are those of PureJaxRL (Lu et al., 2022). Differences from the paper:

* Time limits are bootstrapped: a truncated episode's value target contains the value of
  its true last observation. Most implementations take limits for ends.
* Advantages are standardized per minibatch, unless `normalize_advantage` is false, and
  values are clipped, as in all implementations.
* The policy loss is −E[r A − drift(r, A)] (Kuba et al., 2022), which with the default
  drift is the clipped objective.

The loss, the slots (`Meta`) and the update are in `_ppo`, common with recurrent PPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _ppo
from inner_loops._ppo import CHOICES, STATS, TUNABLE, Agent, Batch, Meta
from metaevo import envs
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
    """Static settings: shapes and loop lengths."""


class Experience(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    episodes: rollouts.Episodes
    discounted_return: jax.Array  # of the learner's reward, for its normalization


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """PPO on `env`.

    Metrics of `train`: those of `rollouts.metrics`, `entropy`, `kl`, `clip_fraction`
    (the share of ratios outside 1 ± ε), and mean and root mean square of value − target
    on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    _ppo.check_config(config)
    batch_size = config_checks.minibatched(config)
    lifetime = config_checks.lifetime(config, batch_size)
    normalize = _ppo.normalizers(config)
    net_inputs = network_inputs.of(env, config.message_size, meta, _ppo.STATS)
    head = heads.of(env.action, config.initial_log_std, config.policy)
    advantages = _ppo.advantages(config)
    network = partial(
        networks.mlp,
        config.features,
        activation=config.activation,
        torso=networks.torso(config.torso, net_inputs.space),
    )
    actor, critic = network(head.num_outputs, 0.01), network(1, 1.0)

    # --- the loss ---------------------------------------------------------------------

    def loss(params, batch, meta, context):
        """Of one minibatch [B, ...]; see `_ppo.loss`."""
        pi = policy(meta, params, batch.obs, batch.mask)
        value = value_of(meta, params, batch.obs)
        return _ppo.loss(head, pi, value, batch, meta, context)

    def split(batch, rollout, start, order):
        """Minibatches of transitions, `advantages` of each; `order` is [steps, B]."""
        del rollout, start
        batch = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)
        # Small leaves are gathered for all steps at once.
        small = jax.tree.map(lambda x: x[order], batch._replace(obs=()))
        small = small._replace(advantage=advantages(small.advantage, -1))

        def take(at) -> Batch:
            chosen, small = at
            return small._replace(obs=batch.obs[chosen])

        return (order, small), take

    # --- networks ---------------------------------------------------------------------

    def policy(meta, params, obs, mask):
        outputs = actor.apply(params["actor"], obs, meta.activation)
        return head.distribution(params, outputs, mask)

    def value_of(meta, params, obs):
        return critic.apply(params["critic"], obs, meta.activation)[..., 0]

    def values(meta, params, rollout):
        value = value_of(meta, params, rollout.obs)
        return value, value_of(meta, params, rollout.next_obs)

    def init(key, meta):
        actor_key, critic_key, env_key = jax.random.split(key, 3)
        obs = jnp.zeros(net_inputs.space.shape)
        params = {
            "actor": actor.init(actor_key, obs),
            "critic": critic.init(critic_key, obs),
            **head.init(),
        }
        experience = Experience(
            rollouts.start(env_key, env, config.num_envs), jnp.zeros(config.num_envs)
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

        def choose(carry, obs, noise, state, mask):
            del state
            obs = net_inputs.with_message(meta, context, obs)
            obs = normalize.obs.apply(agent.obs_stats, obs)
            pi = policy(meta, agent.params, obs, mask)
            sample = head.sample(pi, noise)
            return carry, head.action(sample), (pi, sample)

        after, _, steps, finished, (pi, sample) = rollouts.collect(
            keys[1:], env, experience.episodes, noise, choose
        )
        log_prob = jax.vmap(head.log_prob)(pi, sample)
        acted = _ppo.Acted(steps, sample, log_prob, finished)
        before = experience.discounted_return
        last, data, discounted = _ppo.rollout_for_learning(
            config, normalize.obs, net_inputs, meta, context, agent, acted, before
        )
        return Experience(after, last), data, discounted

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, state
        context = training.context(agent.age, lifetime.num_updates, agent.stats)
        obs = net_inputs.with_message(meta, context, obs)
        obs = normalize.obs.apply(agent.obs_stats, obs)
        return head.greedy(policy(meta, agent.params, obs, mask)), carry

    def no_memory(experience):
        del experience
        return ()

    parts = _ppo.PpoParts(rollout, no_memory, values, split, loss, batch_size)
    update = _ppo.update_of(config, lifetime.num_updates, normalize, parts)
    return training.inner_loop(
        *(env, config, meta, lifetime, init, update, act),
        tunable=TUNABLE,
        choices=CHOICES,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
