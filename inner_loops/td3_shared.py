"""TD3 whose members train one critic on one replay buffer, for CEM-RL and DvD.

TD3 (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477) as CEM-RL (Pourchot and
Sigaud, 2019, https://arxiv.org/abs/1810.01222) and DvD (Parker-Holder et al., 2020,
https://arxiv.org/abs/2002.00632) use it. Differences from `td3`:

* The critics' gradient is the mean over members; all transitions go into one buffer.
* Members cannot differ in the slots that act on the critics, `OF_CRITIC`. Schedules
  follow the age of the population.
* The slots `actor` (first parameters) and `learn` (0: the actor stays as it is).
* The slot `diversity_coef`: the actors climb the log-volume that their actions span,
  by a gradient that is no longer than that of the actor's own loss.

The losses and the gradient steps are in `_td3`, common with `td3`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from inner_loops import _td3
from inner_loops._off_policy import Experience
from inner_loops._td3 import TargetTrainState
from metaevo import (
    envs,
    optimizers,
    policies,
    population,
    slots,
)
from metaevo.errors import ConfigError
from metaevo.rl import (
    diversity,
    noise,
    normalization,
    off_policy,
    packing,
    rollouts,
    training,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, Space, on_any_env


@dataclass(frozen=True)
class Config(_td3.Config):
    """Static settings: shapes and loop lengths.

    Sizes are those of one member: the population takes P times the frames, warm-up
    included, and its buffer holds P times `buffer_size`. For one gradient step of the
    critic per frame set U = P x E x T.

    Attributes:
        normalize_observation: must be False: members would show the critic different
            observations.
        num_diversity_states: observations that diversity is measured in, at most B.
    """

    num_diversity_states: int = 20


@slots.extended
class Meta(_td3.Meta):
    """Slots. Noise is in units of half the range of actions.

    Attributes:
        actor: the actor's first parameters; None: random ones.
        learn: the actor learns if this is above 0.5. None: it does.
        diversity_coef: weight of the population's diversity in the actor's loss. None:
            no such term.
    """

    actor: Any = None
    learn: Slot | None = None
    diversity_coef: Slot | None = None


OF_CRITIC = ("critic_lr", "gamma", "tau", "smoothing_noise", "noise_clip")
OF_CRITIC += ("reward_scale", "td_loss", "reward", "optimizer")
"""Slots that act on the critics."""


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: TargetTrainState
    critic: tuple[()]  # it is shared
    obs_stats: normalization.RunningStats


class Shared(NamedTuple):
    """State that the members of a population have in common."""

    critic: TargetTrainState
    rows: packing.Packed  # of the replay buffer


def policy_space(env: envs.Env, config: Config = Config()) -> Space:
    """The space of TD3's actors: params {"actor": parameters, "learn": number}.

    Lamarckian: an actor that learned goes back into the search as it is now.

    Raises:
        ConfigError: layers or actions that no policy has, or normalized observations:
            an actor is then more than its parameters.
    """
    if config.normalize_observation:
        raise ConfigError(
            "inner.normalize_observation=true: a policy that evolves cannot take the "
            "statistics of its observations along; set it to false"
        )
    space = policies.space(env, config)
    learn = {"op": "number", "transform": "linear", "scale": 1.0}
    return Space(
        init=lambda key: space.init(key) | {"learn": jnp.ones(())},
        bind=space.bind,
        inherit=lambda params, state: params | {"actor": state.agent.actor.params},
        spec={**space.spec, "learn": learn},
    )


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """TD3 with a shared critic on `env`, whose actions are continuous and bounded.

    A coupled loop: it runs through a search, not alone. Metrics of `train`: those of
    `td3`, and with diversity `log_volume`.

    Raises:
        ConfigError: sizes that do not fit each other, other actions, normalized
            observations, or a slot of `meta` holds what cannot be used there.
    """
    action = _td3.require_actions(env, config)
    if config.normalize_observation:
        raise ConfigError(
            "inner.normalize_observation=true: members with a shared critic would "
            "each show it other observations"
        )
    sizes = off_policy.sizes(config, config.num_step_return)
    to_env, to_unit = envs.unit_box(action)
    nets = _td3.networks_of(env.observation, action, config, config.num_critics)

    # --- the losses -------------------------------------------------------------------

    def diversity_gradient(params, obs, limit):
        """Gradient of −log-volume, no longer than `limit`, and the log-volume."""
        # One member's observations for all: only so are actions comparable.
        obs = population.gather(obs[: config.num_diversity_states])[0]

        def loss(params):
            mine = nets.act(params, obs).reshape(-1)
            everybody = population.gather(mine).at[population.index()].set(mine)
            return -diversity.log_volume(everybody)

        value, gradient = jax.value_and_grad(loss)(params)
        return optimizers.clip_by_global_norm(gradient, limit), -value

    def actor_gradient(gradient, params, obs, meta, context):
        """Gradient of `_td3.actor_loss` − coef · log-volume."""
        if meta.diversity_coef is None:
            return gradient, {}
        coef = slots.value(meta.diversity_coef, context)
        limit = optax.tree.norm(gradient)
        apart, log_volume = diversity_gradient(params, obs, limit)
        gradient = jax.tree.map(lambda g, d: g + coef * d, gradient, apart)
        return gradient, {"log_volume": log_volume}

    def actor_step(before, after, meta, context):
        """The actor's step, if it learns."""
        if meta.learn is None:
            return after
        learns = slots.value(meta.learn, context) > 0.5
        return jax.tree.map(lambda new, old: jnp.where(learns, new, old), after, before)

    variant = _td3.Variant(population.mean, actor_gradient, actor_step)

    # --- birth ------------------------------------------------------------------------

    def num_envs():
        """Of the whole population."""
        return config.num_envs * population.count()

    def init(key, meta):
        actor_key, critic_key, warmup_key = jax.random.split(key, 3)
        params = nets.init(actor_key) if meta.actor is None else meta.actor
        policy = _td3.newborn(params, meta)
        critic = _td3.newborn(nets.critics.init(critic_key), meta)
        _, steps, _ = _td3.warm_up(
            warmup_key, env, action, to_env, num_envs(), sizes.num_warmup, meta
        )
        shared = Shared(critic, sizes.buffer(env, num_envs()).start(steps))
        obs_stats = normalization.init(env.observation.shape)
        agent = Agent(jnp.int32(0), policy, (), obs_stats)
        episodes = rollouts.start(warmup_key, env, config.num_envs)
        no_noise = jnp.zeros((config.num_envs, *action.shape))
        experience = Experience(episodes, no_noise, (), jnp.int32(0))
        return InnerState(agent, experience, shared, training.start_clock())

    # --- update -----------------------------------------------------------------------

    def concat_members(steps):
        """Every member's [T, E, ...] as environments of one, [T, P x E, ...]."""

        def concat(x):
            x = jnp.moveaxis(x, 0, 1)
            return x.reshape(x.shape[0], -1, *x.shape[3:])

        return jax.tree.map(concat, population.gather(steps))

    def update(key, meta, state):
        """T steps of the environments and U gradient steps of the critics."""
        agent, experience, shared, clock = state
        noise_key, act_key, sample_key, smoothing_key = training.keys(key, clock, 4)
        # The schedules of shared slots follow the age of the population.
        context = training.context(clock.update, sizes.lifetime.num_updates)
        act = partial(nets.act, agent.actor.params)
        explore = _td3.explorer(act, to_env, meta, context)
        drawn = noise.draw(noise_key, meta, context, experience.noise, config.num_steps)
        after, _, steps, finished, _ = rollouts.collect(
            act_key, env, experience.episodes, drawn, explore
        )
        shape = _td3.shape_of(config)
        rows, sampled = off_policy.insert_and_sample(
            sample_key,
            sizes.buffer(env, num_envs()),
            shared.rows,
            clock.update,
            None,
            concat_members(steps),
            shape,
        )
        batches = _td3.batches_of(meta, context, to_unit, sampled, lambda obs: obs)
        smoothing = jax.random.normal(smoothing_key, (*shape, *action.shape))
        policy, critic, info = _td3.learn(
            nets, agent.actor, shared.critic, batches, smoothing, meta, context, variant
        )
        agent = Agent(agent.age + 1, policy, (), agent.obs_stats)
        own = experience.steps_since_birth + config.num_steps
        experience = Experience(after, drawn[-1], (), own)
        state = InnerState(
            agent, experience, Shared(critic, rows), training.tick(clock)
        )
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state, mask
        return to_env(nets.act(agent.actor.params, obs)), carry

    return training.inner_loop(
        env,
        config,
        meta,
        sizes.lifetime,
        init,
        update,
        act,
        coupled=True,
        shared_slots=OF_CRITIC,
    )
