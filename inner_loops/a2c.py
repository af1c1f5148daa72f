"""Advantage actor-critic, with parallel workers: A2C, and A3C as a setting.

Mnih et al., 2016, https://arxiv.org/abs/1602.01783. One gradient step on each rollout.
`inner.num_workers=4 inner.max_delay=4` is A3C: each worker acts and learns with
parameters of some updates ago, and their gradients are applied in turn. Differences
from the paper:

* Asynchrony is a whole number of updates, the same in each: a run repeats to the bit.
  Worker w of W is ⌊(w + 1) δ / W⌋ updates behind, δ = `delay`.
* Time limits are bootstrapped: a truncated episode's value target contains the value of
  its true last observation.
* Policy and critic are separate networks. With `inner.memory=gru` they are heads of one
  GRU.
* Workers share a normalizer of observations, if there is one.

The loss and the update are in `_actor_critic`, common with IMPALA.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

import metaevo
from inner_loops import _actor_critic
from inner_loops._actor_critic import Agent, Estimate, Experience
from metaevo import envs, slots, spaces
from metaevo.rl import delays, returns
from metaevo.types import InnerLoop, on_any_env

__all__ = ["STATS", "TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_actor_critic.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_workers: W, divides `num_envs`; each gives one gradient step an update.
    """

    num_workers: int = 1


@slots.extended
class Meta(_actor_critic.Meta):
    """Slots of A2C and A3C.

    Attributes:
        gae_lambda: trace decay, in [0, 1]; 1 is the n-step return of the paper.
        entropy_spread: > 0: the workers' entropy weights go from `ent_coef` /
            `entropy_spread` to `ent_coef` x `entropy_spread`; 1: all explore alike.
        delay_decay: c >= 0: the step size of a worker is lr / (1 + c delay).
        advantage: `(reward, value, next_value, log_ratio, terminated, done, context) ->
            [T, E]`, from [T, E] each, what the policy's gradient is weighted by; None:
            generalized advantage estimation. `context.stats` holds `gamma` and
            `gae_lambda`.

    `context.stats` of all slots holds `entropy`, the mean over the last rollouts, 0
    before the first.
    """

    entropy_spread: slots.Positive = 1.0
    delay_decay: slots.NotNegative = 0.0


STATS = ("entropy",)
"""Names in `context.stats`: means over the last update's rollouts."""

TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log().starting_at(0.95),
    ent_coef=spaces.log(),
    vf_coef=spaces.log(),
    max_grad_norm=spaces.log(),
)
"""The space that a baseline is tuned in. λ, whose default lies at the end of its scale,
starts beside it."""


# --- what makes it A2C ----------------------------------------------------------------


def _numbers(meta, context):
    return {
        "gamma": slots.value(meta.gamma, context),
        "gae_lambda": slots.value(meta.gae_lambda, context),
    }


def _estimate(meta, numbers, rollout, value, next_value, log_ratio, context):
    """On policy: generalized advantages are the errors of the values, too."""
    del meta, log_ratio, context
    ends = rollout.terminated, rollout.done
    advantage = returns.generalized_advantage(
        rollout.reward, value, next_value, *ends, **numbers
    )
    return Estimate(advantage, advantage)


def _learner(acting, params):
    """A worker's gradient is that of the parameters it acted with."""
    del params
    return acting


def _step_size(meta, context, delay):
    decay = slots.value(meta.delay_decay, context)
    return slots.value(meta.lr, context) / (1.0 + decay * delay)


def _entropy(meta, context, num_workers) -> jax.Array:
    spread = slots.value(meta.entropy_spread, context)
    factors = delays.factors(spread, num_workers)
    return slots.value(meta.ent_coef, context) * factors


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """A2C on `env`; A3C with workers that are behind.

    Metrics of `train`: those of `rollouts.metrics`, `entropy`, and mean and root mean
    square of value − target on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    algorithm = _actor_critic.Algorithm(
        _numbers, _estimate, _learner, _step_size, _entropy, STATS
    )
    return _actor_critic.inner_loop(
        *(env, config, meta, algorithm, config.num_workers),
        tunable=TUNABLE,
        choices=_actor_critic.CHOICES,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
