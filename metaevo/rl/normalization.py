"""Running statistics for observation and reward normalization.

They are part of the agent: updated while training, frozen while evaluating, and
separate for each member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.rl import returns, rollouts
from metaevo.slots import Context

__all__ = [
    "Normalizer",
    "RunningStats",
    "after_rollout",
    "init",
    "normalize",
    "observations",
    "rewards",
    "scale",
    "update",
]


class RunningStats(NamedTuple):
    """Mean and variance of all inputs so far, per component."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array


def init(shape: tuple[int, ...]) -> RunningStats:
    """Zero mean, unit variance, count 0."""
    return RunningStats(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def update(stats: RunningStats, batch: jax.Array) -> RunningStats:
    """Merge a batch [..., *shape] (Chan et al., 1979, parallel variance)."""
    axes = tuple(range(batch.ndim - stats.mean.ndim))
    size = batch.size / max(stats.mean.size, 1)
    total = stats.count + size
    delta = batch.mean(axes) - stats.mean
    mean = stats.mean + delta * size / total
    moment = stats.var * stats.count + batch.var(axes) * size
    moment = moment + delta**2 * stats.count * size / total
    return RunningStats(mean, moment / total, total)


def normalize(stats: RunningStats, x: jax.Array, limit: float = 10.0) -> jax.Array:
    """(x − mean) / std, clipped to ±limit."""
    return jnp.clip((x - stats.mean) * jax.lax.rsqrt(stats.var + 1e-8), -limit, limit)


def scale(stats: RunningStats, x: jax.Array, limit: float = 10.0) -> jax.Array:
    """x / std, clipped to ±limit: keeps the sign, as rewards need it."""
    return jnp.clip(x * jax.lax.rsqrt(stats.var + 1e-8), -limit, limit)


class Normalizer(NamedTuple):
    """A use of running statistics; `observations` and `rewards` make one.

    Attributes:
        update: `(stats, batch [..., *shape]) -> stats`.
        apply: `(stats, x [..., *shape]) -> x`.
    """

    update: Callable[[RunningStats, jax.Array], RunningStats]
    apply: Callable[[RunningStats, jax.Array], jax.Array]


def _off(stats: RunningStats, x: jax.Array) -> jax.Array:
    del stats
    return x


_OFF = Normalizer(lambda stats, batch: stats, _off)


def observations(enabled: bool) -> Normalizer:
    """Shifts and scales observations, or leaves them and the statistics alone."""
    return Normalizer(update, normalize) if enabled else _OFF


def rewards(enabled: bool) -> Normalizer:
    """Scales rewards by statistics of returns, or leaves both alone."""
    return Normalizer(update, scale) if enabled else _OFF


def after_rollout(
    config: Any,
    stats: tuple[RunningStats, RunningStats],
    discounted_return: jax.Array,
    steps: rollouts.Transition,
    meta: Any,
    context: Context,
) -> tuple[tuple[RunningStats, RunningStats], jax.Array]:
    """Statistics of observations and returns, and the discounted return [E], after it.

    Args:
        config: with `normalize_observation` and `normalize_reward`.
        stats: of observations and of discounted returns, before it.
        discounted_return: [E], of the learner's reward, before it.
        steps: leaves [T, E, ...], as they were collected.
        meta: with the slots `reward` and `gamma`.
    """
    obs_stats, return_stats = stats
    normalize = observations(config.normalize_observation)
    obs_stats = normalize.update(obs_stats, envs.unpacked(steps.obs))
    if config.normalize_reward:
        reward = rollouts.learned_from(meta, steps, context)
        gamma = slots.value(meta.gamma, context)
        discounted_return, discounted = returns.discounted_so_far(
            reward, steps.done, gamma, discounted_return
        )
        return_stats = update(return_stats, discounted)
    return (obs_stats, return_stats), discounted_return
