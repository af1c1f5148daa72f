"""The frame of an inner loop: what remains once its `init` and `update` are written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.rl import config_checks, evaluation, rollouts
from metaevo.rl.config_checks import Lifetime
from metaevo.slots import Context
from metaevo.types import InnerLoop, InnerState, Key, Metrics, PyTree

__all__ = [
    "Clock",
    "context",
    "inner_loop",
    "keys",
    "learning_rate",
    "start_clock",
    "tick",
]

Update = Callable[[Key, Any, InnerState], tuple[InnerState, dict[str, Any]]]


class Clock(NamedTuple):
    """The counter of a lifetime, without member axis."""

    update: jax.Array  # int32, updates done


def start_clock() -> Clock:
    """The clock of a newborn population."""
    return Clock(jnp.int32(0))


def tick(clock: Clock) -> Clock:
    """The clock after one more update."""
    return Clock(clock.update + 1)


def keys(key: Key, clock: Clock, num: int = 2) -> Key:
    """Keys [num] of one update, which differ from those of all others."""
    return jax.random.split(jax.random.fold_in(key, clock.update), num)


def context(
    age: jax.Array,
    num_updates: int,
    stats: Mapping[str, jax.Array | float] | None = None,
) -> Context:
    """The context of an agent that has made `age` of `num_updates` updates.

    >>> float(context(jnp.int32(3), 4).progress), float(context(5, 4).progress)
    (0.75, 1.0)
    """
    return Context(progress=jnp.minimum(age / num_updates, 1.0), stats=stats or {})


def learning_rate(meta: Any, context: Context, anneal: bool) -> jax.Array | float:
    """The slot `lr` now; with `anneal` it falls linearly to 0 over the lifetime."""
    lr = slots.value(meta.lr, context)
    return lr * (1.0 - context.progress) if anneal else lr


def inner_loop(
    env: envs.Env,
    config: Any,
    meta: Any,
    lifetime: Lifetime,
    init: Callable[[Key, Any], InnerState],
    update: Update,
    act: Callable[..., tuple[jax.Array, PyTree]],
    *,
    episodes: Callable[[Any], rollouts.Episodes] = operator.attrgetter("episodes"),
    masks: bool = False,
    takes_turns: bool = False,
    **fields: Any,
) -> InnerLoop:
    """The inner loop that makes `update` after `update`.

    All functions of the loop accept plain functions in the slots of their `meta`, as
    `slots.checked` does.

    Args:
        config: with `num_segments`, `num_envs` and `num_eval_envs`.
        lifetime: from `config_checks.lifetime`.
        update: `(key, meta, state) -> (state, info)`. `info` holds `totals`, from
            `rollouts.totals`, and scalars, of which a segment's metrics are the means;
            `error` and `squared`, the mean and mean square of value − target, become
            `value_error_mean` and `value_error_rms`.
        episodes: `experience -> rollouts.Episodes`: itself, or its field `episodes`.
        masks: whether `update` and `act` take only legal actions.
        takes_turns: whether the algorithm plays for both players of a game of turns.
        **fields: further fields of the `InnerLoop`, such as `tunable`.

    Raises:
        ConfigError: a slot of `meta` holds what cannot be used there, `env` has an
            action mask that the loop does not honor, or is a game of turns.
    """
    config_checks.check_masks(env, masks)
    config_checks.check_turns(env, takes_turns)

    def train(key: Key, meta: Any, state: InnerState) -> tuple[InnerState, Metrics]:
        def step(state, _):
            return update(key, meta, state)

        state, info = jax.lax.scan(
            step, state, None, length=lifetime.updates_per_segment
        )
        totals = info.pop("totals")
        means = jax.tree.map(jnp.mean, info)
        metrics = dict(rollouts.metrics(episodes(state.experience), totals))
        if "error" in means:
            metrics["value_error_mean"] = means.pop("error")
            metrics["value_error_rms"] = jnp.sqrt(means.pop("squared"))
        return state, metrics | means

    def for_new_agent(experience: Any) -> Any:
        after = rollouts.for_new_agent(episodes(experience))
        if isinstance(experience, rollouts.Episodes):
            return after
        return experience._replace(episodes=after)

    frames_per_segment = lifetime.updates_per_segment * lifetime.frames_per_update
    initial_carry = fields.get("initial_carry", tuple)
    evaluate = evaluation.of_agent(env, act, config.num_eval_envs, initial_carry)
    return InnerLoop(
        meta=slots.checked(meta),
        config=config,
        init=_with_checked(init),
        train=_with_checked(train),
        evaluate=_with_checked(evaluate),
        num_segments=config.num_segments,
        act=_with_checked(act),
        frames_per_segment=frames_per_segment,
        for_new_agent=for_new_agent,
        steps_per_segment=frames_per_segment // config.num_envs,
        env=env,
        masks=masks,
        **fields,
    )


def _with_checked(function: Callable) -> Callable:
    """A function of `(key, meta, ...)` whose `meta` is checked first."""

    def call(key, meta, *rest, **named):
        return function(key, slots.checked(meta), *rest, **named)

    return call
