"""Deep Q-learning (Mnih et al., 2015, https://www.nature.com/articles/nature14236).

With double Q-learning (van Hasselt et al., 2016, https://arxiv.org/abs/1509.06461),
dueling networks (Wang et al., 2016, https://arxiv.org/abs/1511.06581), n-step returns,
distributions of the return, `metaevo.rl.value_heads`, and noisy networks,
`metaevo.rl.noisy`, by configuration: all of Rainbow (Hessel et al., 2018,
https://arxiv.org/abs/1710.02298) but its priorities, which `apex` has. Defaults are
those of CleanRL. Differences from the paper:

* The loss is the square of the TD error, not Huber's.
* Ten environments take one step each between updates, in place of one that takes ten.
* Time limits are bootstrapped from the true last observation; only termination ends
  the bootstrap.

Birth, targets and the loss are in `_dqn`, common with GORILA.
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
from metaevo.rl import (
    config_checks,
    noisy,
    normalization,
    off_policy,
    q_learning,
    rollouts,
    training,
    value_heads,
)
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config(_dqn.RainbowConfig):
    """Static settings: shapes and loop lengths."""


class Meta(_dqn.Meta):
    """Slots of DQN.

    Attributes:
        epsilon: share of random actions, in [0, 1]; 0 where noise alone explores.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q; of
            each pair of quantiles. A categorical head takes the square alone.
    """


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    target_params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


TUNABLE = spaces.combine(
    spaces.tune(
        lr=spaces.log(),
        gamma=spaces.one_minus_log(),
        target_rate=spaces.logit().starting_at(0.9),
        max_grad_norm=spaces.log().starting_at(10.0),
    ),
    spaces.schedule("linear", 3, epsilon=spaces.logit()),
)
"""The space that a baseline is tuned in: ε bends at its middle and its end. The target
rate and the clip, whose defaults lie at the ends of their scales, start beside them."""

CHOICES = (
    "inner.num_step_return=3",
    "inner.double=true",
    "inner.dueling=true",
    "inner.normalize_observation=true",
    "inner.head=quantile;inner.num_atoms=32",
    "meta.td_loss=metaevo.losses:td_reluctant",
)
"""Static settings that a rival may take: the last is a loss of one line."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """DQN on `env`, whose actions are discrete.

    Metrics of `train`: those of `rollouts.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, or a slot of
            `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    head = value_heads.of(config, meta.td_loss)
    parameters = noisy.NOISY if config.noisy else noisy.PLAIN
    parts = _dqn.parts(env, config, "DQN", head, parameters.network)
    sizes, buffer, network = parts.sizes, parts.buffer, parts.network
    lifetime, normalize = sizes.lifetime, parts.normalize

    def acting(obs_stats, keys, params):
        """Observations [E, ...] to values [E, A], each by parameters of its own."""
        each = parameters.of_each(network.apply, keys, params)
        return lambda obs: each(normalize.apply(obs_stats, obs))

    def init(key, meta):
        params, stats, episodes, rows, discounted_return = parts.born(key, meta)
        opt_state = meta.optimizer.init(params)
        agent = Agent(jnp.int32(0), params, params, opt_state, *stats)
        experience = Experience(episodes, rows, jnp.int32(0), discounted_return)
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def learn(params, target_params, opt_state, batches, keys, meta, context):
        """One gradient step on each of the minibatches, leaves [U, n, B, ...]."""
        lr = slots.value(meta.lr, context)

        def step(carry, drawn):
            (params, opt_state), (batch, keys) = carry, drawn
            params = parameters.redrawn(keys[0], params)
            target = parameters.redrawn(keys[1], target_params)
            gradient, info = parts.gradient(params, target, batch, meta, context)
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return (params, opt_state), {k: x for k, x in info.items() if k != "loss"}

        (params, opt_state), info = jax.lax.scan(
            step, (params, opt_state), (batches, keys)
        )
        return params, opt_state, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        key = jax.random.fold_in(key, clock.update)
        noise_key, act_key, sample_key = jax.random.split(key, 3)
        own_keys, learn_keys = _dqn.noise_keys(jax.random.fold_in(key, 3), config)
        context = training.context(agent.age, lifetime.num_updates)
        after, _, steps, finished, _ = rollouts.collect(
            act_key,
            env,
            experience.episodes,
            parts.noise(noise_key, config.num_steps),
            q_learning.explorer(
                acting(agent.obs_stats, own_keys, agent.params), meta, context
            ),
        )
        stats, discounted_return = normalization.after_rollout(
            *(config, (agent.obs_stats, agent.return_stats)),
            *(experience.discounted_return, steps, meta, context),
        )
        own = experience.steps_since_birth + config.num_steps
        shape = (config.num_gradient_steps, config.batch_size)
        rows, sampled = off_policy.insert_and_sample(
            sample_key, buffer, experience.rows, clock.update, own, steps, shape
        )
        sampled = parts.seen(stats, sampled, meta, context)
        batches = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), sampled)

        improve = population.phase(partial(learn, meta=meta, context=context))
        params, opt_state, info = improve(
            agent.params, agent.target_params, agent.opt_state, batches, learn_keys
        )
        target_params = _dqn.target_copy(
            params, agent.target_params, clock, config, meta, context
        )
        agent = Agent(agent.age + 1, params, target_params, opt_state, *stats)
        experience = Experience(after, rows, own, discounted_return)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def q_values(agent, obs):
        obs = normalize.apply(agent.obs_stats, obs)
        return network.apply(parameters.quiet(agent.params), obs)

    return training.inner_loop(
        *(env, config, meta, lifetime, init, update, q_learning.greedy(q_values)),
        tunable=TUNABLE,
        choices=CHOICES,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
