"""Distributed prioritized experience replay: Ape-X DQN (Horgan et al., 2018).

https://arxiv.org/abs/1803.00933. Many actors, each with its own share of random
actions, fill one buffer, and give what they add its first priority; the learner samples
by priority (Schaul et al., 2016, https://arxiv.org/abs/1511.05952) and gives another to
what it has seen. Double, dueling and of n steps. Differences from the paper:

* Actors act with the newest parameters, in step with the learner.
* A window of n steps never joins two episodes: it ends where one does.
* The buffer is a ring, whose oldest transitions go first.
* The optimizer is Adam, the paper's centered RMSProp; sizes are for small environments.

With α = 0 and equal shares of random actions it is the double dueling DQN of n steps,
on minibatches drawn uniformly. With one environment, a distribution of the return and
noisy networks it is Rainbow (Hessel et al., 2018, https://arxiv.org/abs/1710.02298),
whose priorities are |δ| of the means, where Rainbow's are divergences. Birth, targets
and the loss are in `_dqn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _dqn
from metaevo import (
    envs,
    optimizers,
    population,
    slots,
    spaces,
)
from metaevo.learned.priorities import absolute
from metaevo.rl import (
    config_checks,
    noisy,
    normalization,
    off_policy,
    packing,
    priorities,
    q_learning,
    rollouts,
    training,
    value_heads,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_dqn.RainbowConfig):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_envs: E, environments of one member: actors.
        num_gradient_steps: U, minibatches of an update, drawn at once.
    """

    total_timesteps: int = 250_000
    learning_starts: int = 2_000
    buffer_size: int = 50_000
    num_envs: int = 16
    target_period: int = 32
    double: bool = True
    dueling: bool = True
    num_step_return: int = 3


@slots.extended
class Meta(_dqn.Meta):
    """Slots of Ape-X.

    Attributes:
        epsilon: share of random actions of the first environment, in [0, 1].
        epsilon_exponent: >= 0; that of environment i of E is
            epsilon^(1 + epsilon_exponent i / (E − 1)).
        priority: `(td_error, age, visits, reward, terminated, context) -> p [...]`, see
            `metaevo.learned.priorities`.
        priority_exponent: α >= 0: transitions are drawn in proportion to p^α.
        importance_exponent: β in [0, 1]: of the importance weights; 1 corrects in full.
    """

    lr: Slot = 5e-4
    epsilon: slots.Share = 0.4
    max_grad_norm: slots.Positive | None = 40.0
    epsilon_exponent: slots.NotNegative = 7.0
    priority: Slot = absolute
    priority_exponent: slots.NotNegative = 0.6
    importance_exponent: slots.Share = 0.4


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    target_params: Any
    opt_state: Any
    return_std: jax.Array  # of the last minibatch's targets
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


class Experience(NamedTuple):
    episodes: rollouts.Episodes
    rows: packing.Packed  # of the replay buffer
    priorities: priorities.Priorities  # of its windows
    steps_since_birth: jax.Array  # int32, warm-up not counted
    discounted_return: jax.Array  # of the learner's reward, for its normalization


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    epsilon=spaces.logit(),
    epsilon_exponent=spaces.log(),
    target_rate=spaces.logit().starting_at(0.9),
    priority_exponent=spaces.log(),
    importance_exponent=spaces.logit(),
    max_grad_norm=spaces.log(),
)
"""The space that a baseline is tuned in; the target rate, whose default lies at the end
of its scale, starts beside it."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Ape-X on `env`, whose actions are discrete.

    Metrics of `train`: those of `rollouts.metrics`; `importance`, the mean of the
    importance weights; and on the minibatches the mean `q`, and mean and root mean
    square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, or a slot of
            `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    head = value_heads.of(config, meta.td_loss)
    parameters = noisy.NOISY if config.noisy else noisy.PLAIN
    parts = _dqn.parts(env, config, "Ape-X", head, parameters.network)
    sizes, buffer, network = parts.sizes, parts.buffer, parts.network
    lifetime, normalize = sizes.lifetime, parts.normalize
    windows = sizes.priorities(config.num_envs)

    def acting(obs_stats, keys, params):
        """Observations [E, ...] to values [E, A], each by parameters of its own."""
        each = parameters.of_each(network.apply, keys, params)
        return lambda obs: each(normalize.apply(obs_stats, obs))

    # --- priorities -------------------------------------------------------------------

    def first_mass(params, stats, rows, indices, std, meta, context):
        """The actors' own p^α of new windows, [n, T, E] to [T, E], and their targets.

        By the parameters that act, in the place of the target network, too, without
        noise.
        """
        params = parameters.quiet(params)

        def seen_in(indices):
            new = off_policy.read(buffer, rows, indices)
            new = parts.seen(stats, new, meta, context)
            return parts.errors(params, params, new, meta, context)

        seen = priorities.map_windows(seen_in, indices, config.batch_size)
        mass, std = _dqn.first_mass(seen, std, meta, context)
        return mass.reshape(indices.shape[1:]), std

    def init(key, meta):
        params, stats, episodes, rows, discounted_return = parts.born(key, meta)
        context = training.context(jnp.int32(0), lifetime.num_updates)
        mass, std = first_mass(
            params, stats, rows, windows.first(), None, meta, context
        )
        opt_state = meta.optimizer.init(params)
        agent = Agent(jnp.int32(0), params, params, opt_state, std, *stats)
        kept = windows.start(mass)
        experience = Experience(episodes, rows, kept, jnp.int32(0), discounted_return)
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def learn(params, target_params, opt_state, batches, drawn, keys, meta, context):
        """One gradient step on each of the minibatches, leaves [U, n, B, ...]."""
        lr = slots.value(meta.lr, context)
        beta = slots.value(meta.importance_exponent, context)

        def step(carry, at):
            (params, opt_state), (batch, mass, age, visits, keys) = carry, at
            params = parameters.redrawn(keys[0], params)
            target = parameters.redrawn(keys[1], target_params)
            weights = priorities.weights(mass, beta)
            gradient, info, seen = parts.weighted(
                params, target, batch, weights, meta, context
            )
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            std = info["return_std"]
            mass = _dqn.mass_of(seen, age, visits + 1.0, std, meta, context)
            info = {k: x for k, x in info.items() if k != "loss"}
            return (params, opt_state), (mass, info | {"importance": weights.mean()})

        (params, opt_state), (mass, info) = jax.lax.scan(
            step, (params, opt_state), (batches, *drawn, keys)
        )
        std = info["return_std"][-1]
        return params, opt_state, std, mass, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        key = jax.random.fold_in(key, clock.update)
        noise_key, act_key, sample_key = jax.random.split(key, 3)
        own_keys, learn_keys = _dqn.noise_keys(jax.random.fold_in(key, 3), config)
        context = training.context(agent.age, lifetime.num_updates)
        epsilon = q_learning.ladder(
            slots.value(meta.epsilon, context),
            slots.value(meta.epsilon_exponent, context),
            config.num_envs,
        )
        after, _, steps, finished, _ = rollouts.collect(
            act_key,
            env,
            experience.episodes,
            parts.noise(noise_key, config.num_steps),
            q_learning.explorer(
                acting(agent.obs_stats, own_keys, agent.params),
                meta._replace(epsilon=epsilon[:, None]),
                context,
            ),
        )
        stats, discounted_return = normalization.after_rollout(
            *(config, (agent.obs_stats, agent.return_stats)),
            *(experience.discounted_return, steps, meta, context),
        )
        own = experience.steps_since_birth + config.num_steps
        before = clock.update * config.num_steps
        inserted = before + config.num_steps
        rows = buffer.add(experience.rows, before, steps)
        mass, _ = first_mass(
            *(agent.params, stats, rows, windows.newest(before)),
            *(agent.return_std, meta, context),
        )
        kept = windows.add(experience.priorities, before, own, mass)
        shape = (config.num_gradient_steps, config.batch_size)
        drawn = windows.draw(sample_key, kept, inserted, own, shape)
        sampled = off_policy.read(buffer, rows, drawn.indices)
        sampled = parts.seen(stats, sampled, meta, context)
        batches = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), sampled)

        improve = population.phase(partial(learn, meta=meta, context=context))
        params, opt_state, std, mass, info = improve(
            *(agent.params, agent.target_params, agent.opt_state, batches),
            (drawn.mass, drawn.age, drawn.visits),
            learn_keys,
        )
        kept = windows.update(kept, drawn.indices, mass)
        target_params = _dqn.target_copy(
            params, agent.target_params, clock, config, meta, context
        )
        agent = Agent(agent.age + 1, params, target_params, opt_state, std, *stats)
        experience = Experience(after, rows, kept, own, discounted_return)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def q_values(agent, obs):
        obs = normalize.apply(agent.obs_stats, obs)
        return network.apply(parameters.quiet(agent.params), obs)

    return training.inner_loop(
        *(env, config, meta, lifetime, init, update, q_learning.greedy(q_values)),
        tunable=TUNABLE,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
