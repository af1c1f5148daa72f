"""QT-Opt (Kalashnikov et al., 2018, https://arxiv.org/abs/1806.10293).

Q-learning with continuous actions and without an actor: the best action is found by the
cross-entropy method, `metaevo.rl.cem`. Targets are clipped double Q-learning with one
network: a Polyak average of its parameters, and an older copy of that average.
Differences from the paper:

* Values are unbounded and the loss is the square. `Config.bounded` with
  `losses.td_cross_entropy` is the paper's, for rewards that sum to at most 1.
* Sizes, discount and target rate are those of small tasks. Observations are vectors.
* Environments explore by uniform and by normal noise, in place of scripts and
  demonstrations.
* Time limits are bootstrapped from the true last observation.

Loss and gradient step are TD3's, in `_td3`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import metaevo
from inner_loops import _off_policy, _td3
from inner_loops._off_policy import Experience
from inner_loops._td3 import TargetTrainState
from metaevo import envs, losses, optimizers, population, rewards, slots, spaces
from metaevo.errors import ConfigError
from metaevo.rl import (
    cem,
    config_checks,
    critics,
    delays,
    noise,
    normalization,
    off_policy,
    rollouts,
    training,
)
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config(_off_policy.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        critic_layer_norm: normalize the hidden layers.
        features: units of each hidden layer.
        num_samples: M, candidates of an iteration of the cross-entropy method.
        num_iterations: I of them for each action. An action costs I x M values.
        max_lag: the most updates that the second target is behind the first.
        num_copies: sets of parameters that are kept for it; at most `max_lag`.
        bounded: keep values in (0, 1), by a sigmoid.
        normalize_observation: by running statistics.
    """

    batch_size: int = 128
    num_samples: int = 64
    num_iterations: int = 2
    max_lag: int = 500
    num_copies: int = 4
    bounded: bool = False
    normalize_observation: bool = False


class Meta(NamedTuple):
    """Slots of QT-Opt. Deviations are in units of half the range of actions.

    Attributes:
        lr: Adam's step size.
        gamma: discount, in [0, 1].
        tau: how far the average moves to the network at each gradient step, in (0, 1].
        lag: updates that the second target is behind the first, in [0, `max_lag`], in
            whole multiples of `max_lag` / `num_copies`, rounded; None: `max_lag`. At 0
            the two are the same.
        num_elites: candidates that are fitted, in [1, `num_samples`], need not be
            whole; see `cem.Numbers`.
        elite_sharpness: how much more the better elites weigh; 0: all weigh the same.
        start_std: of the first candidates, > 0.
        least_std: smallest of a fit, >= 0.
        epsilon: share of uniform actions in acting, in [0, 1].
        exploration_noise: standard deviation of the noise on all other actions.
        fit_noise: adds this multiple of the last fit's deviation to it, >= 0.
        noise_correlation: of that noise, and of the warm-up's actions, from step to
            step, in [0, 1); 0 is white noise.
        reward_scale: factor of rewards.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        q_aggregation: `(q [2, ...], context) -> [...]`, one value of the two targets'.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 1e-3
    gamma: Slot = 0.99
    tau: slots.Rate = 0.005
    lag: slots.NotNegative | None = None
    num_elites: slots.AtLeastOne = 6.0
    elite_sharpness: Slot = 0.0
    start_std: slots.Positive = 1.0
    least_std: slots.NotNegative = 0.05
    epsilon: slots.Share = 0.1
    exploration_noise: slots.NotNegative = 0.1
    fit_noise: slots.NotNegative = 0.0
    noise_correlation: slots.Correlation = 0.0
    reward_scale: Slot = 1.0
    td_loss: Slot = losses.td_square
    q_aggregation: Slot = losses.least_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    critic: TargetTrainState  # `target_params` is the average
    past: Any  # of the average, leaves [num_copies + 1, ...]
    obs_stats: normalization.RunningStats


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    tau=spaces.log(),
    num_elites=spaces.log(),
    start_std=spaces.log(),
    least_std=spaces.log(),
    epsilon=spaces.logit(),
    exploration_noise=spaces.log(),
)
"""The space that a baseline is tuned in."""


# --- the best action and the targets --------------------------------------------------


def best_action(
    params: Any,
    obs: jax.Array,
    noise: jax.Array,
    nets: critics.Critics,
    meta: Meta,
    context: Context,
) -> cem.Fitted:
    """A fit to the actions of large Q(o, a), which are in [−1, 1].

    Args:
        params: of the network.
        obs: [..., *shape].
        noise: [..., I, M, A] standard normal.
    """
    num_samples, leading = noise.shape[-2], noise.ndim - 3

    def values(actions):
        each = jnp.expand_dims(obs, leading)
        shape = *obs.shape[:leading], num_samples, *obs.shape[leading:]
        return nets.values(params, jnp.broadcast_to(each, shape), actions)[0]

    numbers = (meta.num_elites, meta.elite_sharpness, meta.start_std, meta.least_std)
    settings = cem.Numbers(*(slots.value(x, context) for x in numbers))
    return cem.maximize(values, noise, settings)


def target_of(
    average: Any,
    older: Any,
    batch: off_policy.NStepTransition,
    noise: jax.Array,
    nets: critics.Critics,
    meta: Meta,
    context: Context,
) -> jax.Array:
    """R + γⁿ (1 − terminated) agg(Q̄₁(o', a'), Q̄₂(o', a')),  a' = argmax Q̄₁(o', ·).

    Args:
        average, older: parameters of Q̄₁ and Q̄₂.
        noise: [B, I, M, A] standard normal.
    """
    obs = batch.next_obs
    action = best_action(average, obs, noise, nets, meta, context).mean
    q = [nets.values(params, obs, action)[0] for params in (average, older)]
    return batch.target(meta.q_aggregation(jnp.stack(q), context))


def older_average(
    past: Any, average: Any, update: jax.Array, config: Config, meta: Meta, context: Any
) -> Any:
    """The average as it was the slot `lag` of updates ago, rounded.

    A copy stands for `max_lag` / `num_copies` updates, and is from the last of them. So
    a copy that stands for lag L is between L − `max_lag` / `num_copies` and L old.
    """
    lag = config.max_lag if meta.lag is None else slots.value(meta.lag, context)
    steps = jnp.asarray(lag, jnp.float32) / _period(config)
    steps = jnp.clip(jnp.round(steps), 0, config.num_copies).astype(jnp.int32)
    return delays.read(past, update // _period(config), average, steps)


def with_copy(past: Any, average: Any, update: jax.Array, config: Config) -> Any:
    """The copies after an update, before which the average was `average`."""
    return delays.push(past, update // _period(config), average)


def _period(config: Config) -> int:
    """Updates that a copy stands for."""
    return config.max_lag // config.num_copies


def _check(config: Config, meta: Meta) -> None:
    config_checks.check_positive(config)
    if config.max_lag % config.num_copies:
        raise ConfigError(
            f"inner.num_copies={config.num_copies} does not divide "
            f"inner.max_lag={config.max_lag}"
        )
    for name, least, most, of in (
        ("lag", 0, config.max_lag, "max_lag"),
        ("num_elites", 1, config.num_samples, "num_samples"),
    ):
        slot = getattr(meta, name)
        if isinstance(slot, int | float) and not least <= slot <= most:
            raise ConfigError(
                f"the slot {name} holds {slot}, expected {least} to inner.{of}={most}"
            )


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """QT-Opt on `env`, whose actions are continuous and bounded.

    Metrics of `train`: those of `rollouts.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, other actions, or a slot of
            `meta` holds what cannot be used there.
    """
    _check(config, meta)
    action = config_checks.require_box(env, "QT-Opt")
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    normalize = normalization.observations(config.normalize_observation)
    to_env, to_unit = envs.unit_box(action)
    nets = critics.of_actions(
        env.observation,
        action,
        config.features,
        config.activation,
        1,
        config.critic_layer_norm,
    )
    nets = critics.bounded(nets) if config.bounded else nets
    candidates = config.num_iterations, config.num_samples, *action.shape

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        critic_key, warmup_key = jax.random.split(key)
        critic = _td3.newborn(nets.init(critic_key), meta)
        state, steps, last_noise = _td3.warm_up(
            warmup_key, env, action, to_env, config.num_envs, sizes.num_warmup, meta
        )
        obs_stats = normalization.init(env.observation.shape)
        agent = Agent(
            jnp.int32(0),
            critic,
            # One more, which is written to.
            delays.start(critic.target_params, config.num_copies + 1),
            normalize.update(obs_stats, envs.unpacked(steps.obs)),
        )
        experience = Experience(state, last_noise, buffer.start(steps), jnp.int32(0))
        return InnerState(agent, experience, clock=training.start_clock())

    # --- acting -----------------------------------------------------------------------

    def fit(agent, obs, noise, meta, context):
        obs = normalize.apply(agent.obs_stats, obs)
        return best_action(agent.critic.params, obs, noise, nets, meta, context)

    def explore(agent, meta, context):
        """The `choose` of `rollouts.collect`."""

        def choose(carry, obs, noise, state, mask):
            del state, mask
            found = fit(agent, obs, noise["candidates"], meta, context)
            std = slots.value(meta.exploration_noise, context)
            std = std + slots.value(meta.fit_noise, context) * found.std
            unit = jnp.clip(found.mean + std * noise["normal"], -1.0, 1.0)
            random = noise["chance"] < slots.value(meta.epsilon, context)
            unit = jnp.where(random[:, None], noise["uniform"], unit)
            return carry, to_env(unit), ()

        return choose

    def noise_of(key, meta, context, last_noise):
        """Noise of T steps of E environments, leaves [T, E, ...]."""
        normal_key, candidate_key, chance_key, uniform_key = jax.random.split(key, 4)
        shape = config.num_steps, config.num_envs
        return {
            "normal": noise.draw(
                normal_key, meta, context, last_noise, config.num_steps
            ),
            "candidates": jax.random.normal(candidate_key, (*shape, *candidates)),
            "chance": jax.random.uniform(chance_key, shape),
            "uniform": jax.random.uniform(
                uniform_key, (*shape, *action.shape), minval=-1.0
            ),
        }

    # --- update -----------------------------------------------------------------------

    def learn(critic, older, batches, key, meta, context):
        """One gradient step on each of the minibatches, leaves [U, B, ...]."""

        def step(critic, drawn):
            batch, key = drawn
            noise = jax.random.normal(key, (config.batch_size, *candidates))
            target = target_of(
                critic.target_params, older, batch, noise, nets, meta, context
            )
            critic, info = _td3.step_to(
                target, nets, critic, batch, meta.lr, meta, context
            )
            average = optax.incremental_update(
                critic.params, critic.target_params, slots.value(meta.tau, context)
            )
            return critic._replace(target_params=average), info

        keys = jax.random.split(key, config.num_gradient_steps)
        critic, info = jax.lax.scan(step, critic, (batches, keys))
        return critic, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, sample_key, learn_key = training.keys(key, clock, 4)
        context = training.context(agent.age, sizes.lifetime.num_updates)
        drawn = noise_of(noise_key, meta, context, experience.noise)
        after, _, steps, finished, _ = rollouts.collect(
            act_key, env, experience.episodes, drawn, explore(agent, meta, context)
        )
        obs_stats = normalize.update(agent.obs_stats, envs.unpacked(steps.obs))
        own = experience.steps_since_birth + config.num_steps
        shape = (config.num_gradient_steps, config.batch_size)
        rows, sampled = off_policy.insert_and_sample(
            sample_key, buffer, experience.rows, clock.update, own, steps, shape
        )
        batches = _td3.batches_of(
            meta, context, to_unit, sampled, lambda obs: normalize.apply(obs_stats, obs)
        )
        average = agent.critic.target_params
        older = older_average(agent.past, average, clock.update, config, meta, context)

        improve = population.phase(partial(learn, meta=meta, context=context))
        critic, info = improve(agent.critic, older, batches, learn_key)
        past = with_copy(agent.past, average, clock.update, config)
        agent = Agent(agent.age + 1, critic, past, obs_stats)
        experience = Experience(after, drawn["normal"][-1], rows, own)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del state, mask
        leading = obs.shape[: obs.ndim - len(env.observation.shape)]
        context = training.context(agent.age, sizes.lifetime.num_updates)
        drawn = jax.random.normal(key, (*leading, *candidates))
        return to_env(fit(agent, obs, drawn, meta, context).mean), carry

    return training.inner_loop(
        env, config, meta, sizes.lifetime, init, update, act, tunable=TUNABLE
    )


if __name__ == "__main__":
    metaevo.train_main(make)
