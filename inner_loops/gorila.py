"""Distributed deep Q-learning: GORILA (Nair et al., 2015).

https://arxiv.org/abs/1507.04296. K learners, each with environments, a share of the
replay buffer and a copy of the network of its own; their gradients are applied to
common parameters in turn, and those that are stale or of an outlying loss are dropped.
Differences from the paper:

* Asynchrony is a whole number of updates, the same in each: a run repeats to the bit.
  Learner k of K is ⌊(k + 1) δ / K⌋ updates behind, δ = `delay`; its environments act
  with the same parameters, as in the paper's bundled mode.
* A loss is outlying if its logarithm lies `drop_deviation` standard deviations above
  the mean of its learner's, both decaying averages, or if it is not finite; the paper
  names no numbers. Minibatches with a terminal step are not compared: their losses are
  the largest while an agent learns that episodes end.
* The optimizer is Adam, the paper's AdaGrad; the target network is updated by counting
  updates.
* The step size of a learner falls with its delay, see `delay_decay`.
* One learner that is not behind, and drops nothing, is `dqn`.

Birth, targets and the loss are in `_dqn`, common with DQN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _dqn
from inner_loops._dqn import Experience
from metaevo import (
    envs,
    optimizers,
    population,
    slots,
    spaces,
)
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    delays,
    normalization,
    off_policy,
    q_learning,
    rollouts,
    training,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_dqn.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        buffer_size: frames that all learners' replay buffers hold, at most a
            lifetime's.
        num_envs: E, environments of one member, of all its learners.
        num_gradient_steps: U, minibatches of each learner in an update.
        batch_size: B, transitions in a learner's minibatch.
        num_learners: K, divides `num_envs`.
        max_delay: D, the most updates that a learner is behind; D sets of parameters
            are kept.
        drop_after: minibatches of a learner before its first outlying one is dropped.
        num_segments: points on the learning curve.
    """

    num_envs: int = 8
    batch_size: int = 32
    num_learners: int = 4
    max_delay: int = 4
    drop_after: int = 100


@slots.extended
class Meta(_dqn.Meta):
    """Slots of GORILA.

    Attributes:
        lr: Adam's step size; `context.stats` holds `delay`, that of the learner whose
            gradient is applied. An update makes as many steps as there are learners.
        max_grad_norm: global norm that each gradient is clipped to; None: no clip.
        epsilon_spread: > 0: the learners' shares go from `epsilon` / `epsilon_spread`
            to `epsilon` x `epsilon_spread`, at most 1; 1: all explore alike.
        delay: δ, updates that the last learner is behind, rounded, in [0, D]; None: D.
        delay_decay: c >= 0: the step size of a learner is lr / (1 + c delay). Without
            it, 0, steps along old gradients overshoot.
        drop_delay: gradients of learners that are further behind are dropped.
        drop_deviation: standard deviations above the mean of the logarithms of a
            learner's losses from which on its gradient is dropped; infinity: none is
            but those of a loss that is not finite.
    """

    lr: Slot = 1e-4
    epsilon_spread: slots.Positive = 1.0
    delay: slots.NotNegative | None = None
    delay_decay: slots.NotNegative = 1.0
    drop_delay: Slot = float("inf")
    drop_deviation: Slot = 3.0


class Losses(NamedTuple):
    """Decaying sums of the logarithms of each learner's losses; leaves [K]."""

    weight: jax.Array  # of the averages, 1 − DECAYᵗ
    mean: jax.Array
    square: jax.Array
    count: jax.Array  # int32


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    past: Any  # params of the last D updates, see `delays`
    target_params: Any
    opt_state: Any
    losses: Losses
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


TUNABLE = spaces.combine(
    spaces.tune(
        lr=spaces.log(),
        gamma=spaces.one_minus_log(),
        target_rate=spaces.logit().starting_at(0.9),
        max_grad_norm=spaces.log().starting_at(10.0),
        drop_deviation=spaces.log(),
    ),
    spaces.schedule("linear", 3, epsilon=spaces.logit()),
)
"""The space that a baseline is tuned in: DQN's, and where a loss is outlying."""

DECAY = 0.99  # of the averages of losses


# --- what is dropped ------------------------------------------------------------------


def no_losses(num_learners: int) -> Losses:
    """The averages before the first loss."""
    zeros = jnp.zeros(num_learners)
    return Losses(zeros, zeros, zeros, jnp.zeros(num_learners, jnp.int32))


def log_loss(loss: jax.Array) -> jax.Array:
    """log max(loss, 1e-8): what `Losses` averages."""
    return jnp.log(jnp.maximum(loss, 1e-8))


def is_outlier(
    averages: Losses, loss: jax.Array, num_sd: Any, min_count: int
) -> jax.Array:
    """True for losses [K] that are not finite or far above their learner's: bool [K].

    Args:
        num_sd: standard deviations above the mean of the logarithms beyond which a loss
            is an outlier; may be infinite.
        min_count: losses of a learner before the first that may be an outlier.
    """
    weight = jnp.maximum(averages.weight, 1e-8)
    mean = averages.mean / weight
    variance = jnp.maximum(averages.square / weight - mean**2, 0.0)
    bound = mean + num_sd * jnp.sqrt(variance + 1e-12)
    far = (averages.count >= min_count) & (log_loss(loss) > bound)
    return far | ~jnp.isfinite(loss)


def with_loss(seen: Losses, loss: jax.Array, counts: jax.Array) -> Losses:
    """The averages after one more loss of each learner, where it counts.

    Args:
        counts: bool [K]. A loss that is not finite does not count in any case.
    """
    counts &= jnp.isfinite(loss)
    log = log_loss(jnp.where(counts, loss, 1.0))

    def average(before, now):
        return DECAY * before + (1 - DECAY) * now

    after = Losses(
        average(seen.weight, 1.0),
        average(seen.mean, log),
        average(seen.square, log**2),
        seen.count + 1,
    )
    return jax.tree.map(lambda x, y: jnp.where(counts, x, y), after, seen)


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """GORILA on `env`, whose actions are discrete.

    Metrics of `train`: those of `rollouts.metrics`; `dropped`, the share of gradients
    that were; and on the minibatches the mean `q`, and mean and root mean square of
    q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, or a slot of
            `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config, may_be_zero=("max_delay",))
    delays.check_delay(meta.delay, config.max_delay)
    num_learners = config.num_learners
    if config.num_envs % num_learners:
        raise ConfigError(
            f"inner.num_learners={num_learners} does not divide "
            f"inner.num_envs={config.num_envs}: each has as many environments"
        )
    parts = _dqn.parts(env, config, "GORILA")
    sizes, buffer, network = parts.sizes, parts.buffer, parts.network
    lifetime, normalize = sizes.lifetime, parts.normalize
    per_learner = config.num_envs // num_learners

    def init(key, meta):
        params, stats, episodes, rows, discounted_return = parts.born(key, meta)
        agent = Agent(
            jnp.int32(0),
            params,
            delays.start(params, config.max_delay),
            params,
            meta.optimizer.init(params),
            no_losses(num_learners),
            *stats,
        )
        experience = Experience(episodes, rows, jnp.int32(0), discounted_return)
        return InnerState(agent, experience, clock=training.start_clock())

    # --- actors and replay ------------------------------------------------------------

    def chooser(copies, obs_stats, meta, context):
        """The `choose` of `rollouts.collect`, by the copy of each learner."""

        def q_values(obs):
            obs = normalize.apply(obs_stats, obs)
            each = obs.reshape(num_learners, per_learner, *obs.shape[1:])
            q = jax.vmap(network.apply)(copies, each)
            return q.reshape(config.num_envs, -1)

        spread = slots.value(meta.epsilon_spread, context)
        factors = jnp.repeat(delays.factors(spread, num_learners), per_learner)
        epsilon = jnp.clip(slots.value(meta.epsilon, context) * factors, 0.0, 1.0)
        return q_learning.explorer(
            q_values, meta._replace(epsilon=epsilon[:, None]), context
        )

    def sample(key, rows, inserted, own):
        """Minibatches [U, K, n, B, ...], each from its learner's environments."""
        size = num_learners * config.batch_size
        indices = buffer.draw(key, inserted, own, (config.num_gradient_steps, size))
        indices = indices.reshape(*indices.shape[:-1], num_learners, -1)
        drawn = indices % config.num_envs
        first = per_learner * jnp.arange(num_learners)[:, None]
        indices = indices - drawn + first + drawn % per_learner
        steps = off_policy.read(buffer, rows, indices)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), steps)

    # --- update -----------------------------------------------------------------------

    def learn(
        params, target_params, opt_state, seen, copies, delay, batches, meta, context
    ):
        """One gradient of each learner on each of its minibatches."""

        def apply(carry, at):
            (params, opt_state), (gradient, delay, kept) = carry, at
            stats = {**context.stats, "delay": delay.astype(jnp.float32)}
            lr = slots.value(meta.lr, context._replace(stats=stats))
            lr = lr / (1.0 + slots.value(meta.delay_decay, context) * delay)
            after = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return jax.tree.map(lambda x, y: jnp.where(kept, x, y), after, carry), None

        def step(carry, batch):
            params, opt_state, seen = carry

            def of_learner(copy, delay, batch):
                # A learner without delay has the result of the last minibatch.
                then = jax.tree.map(
                    lambda now, x: jnp.where(delay == 0, now, x), params, copy
                )
                return parts.gradient(then, target_params, batch, meta, context)

            gradients, info = jax.vmap(of_learner)(copies, delay, batch)
            loss = info.pop("loss")
            most = slots.value(meta.drop_deviation, context)
            ends = batch.terminated.any((1, 2))  # of windows [K, n, B]
            outlying = is_outlier(seen, loss, most, config.drop_after)
            kept = ~outlying | ends & jnp.isfinite(loss)
            kept &= delay <= slots.value(meta.drop_delay, context)
            (params, opt_state), _ = jax.lax.scan(
                apply, (params, opt_state), (gradients, delay, kept)
            )
            info["dropped"] = 1.0 - kept
            return (params, opt_state, with_loss(seen, loss, ~ends)), info

        carry, info = jax.lax.scan(step, (params, opt_state, seen), batches)
        return *carry, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments, and U gradients of each learner."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, sample_key = training.keys(key, clock, 3)
        context = training.context(agent.age, lifetime.num_updates)
        delay = delays.of_workers(
            delays.bounded(meta.delay, config.max_delay, context), num_learners
        )
        copies = jax.vmap(
            lambda one: delays.read(agent.past, clock.update, agent.params, one)
        )(delay)
        after, _, steps, finished, _ = rollouts.collect(
            act_key,
            env,
            experience.episodes,
            parts.noise(noise_key, config.num_steps),
            chooser(copies, agent.obs_stats, meta, context),
        )
        stats, discounted_return = normalization.after_rollout(
            *(config, (agent.obs_stats, agent.return_stats)),
            *(experience.discounted_return, steps, meta, context),
        )
        own = experience.steps_since_birth + config.num_steps
        inserted = clock.update * config.num_steps
        rows = buffer.add(experience.rows, inserted, steps)
        batches = sample(sample_key, rows, inserted + config.num_steps, own)
        batches = parts.seen(stats, batches, meta, context)

        improve = population.phase(partial(learn, meta=meta, context=context))
        params, opt_state, seen, info = improve(
            *(agent.params, agent.target_params, agent.opt_state, agent.losses),
            *(copies, delay, batches),
        )
        past = delays.push(agent.past, clock.update, agent.params)
        target_params = _dqn.target_copy(
            params, agent.target_params, clock, config, meta, context
        )
        agent = Agent(
            *(agent.age + 1, params, past, target_params, opt_state, seen, *stats)
        )
        experience = Experience(after, rows, own, discounted_return)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def greedy(agent, obs):
        return network.apply(agent.params, normalize.apply(agent.obs_stats, obs))

    return training.inner_loop(
        *(env, config, meta, lifetime, init, update, q_learning.greedy(greedy)),
        tunable=TUNABLE,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
