"""Lifting of one member's loop to a population: P members x S seeds as two vmaps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.population import MEMBERS, all_finite
from metaevo.types import (
    FitnessFn,
    InnerLoop,
    InnerState,
    Key,
    Metrics,
    Params,
    Space,
    keep,
)

# Roles for which a seed's key, and then a member's key, is split.
_COMMON, _MEMBERS, _WORLD = range(3)
_NUMBERS, _TASK = range(2)
_INIT, _TRAIN, _EVALUATE = range(3)


class Lifted(NamedTuple):
    """A loop over S seeds and P members, as programs that are compiled separately.

    All take `(seed_keys [S], ids [P], params [P, ...])`, the last two also a state.
    `ids` are the members' places in the whole population; because of them a member
    draws the same random numbers wherever it runs.

    Attributes:
        init: Returns the InnerState of a newborn population.
        members: Returns the InnerState of newborn members without `shared` and
            `clock`, for members that are born into an older population.
        run: Trains for one generation; returns the state and an Outcome.
        evaluate: Returns metrics [S, P] of the state's agents; reads no `experience`.
        alone: `(seed_key, i, params) -> (key, loop, meta)`: what member i of one seed
            trains with; `loop.train(key, meta, state)` is its next segment.
    """

    init: Callable[[Key, jax.Array, Params], InnerState]
    members: Callable[[Key, jax.Array, Params], InnerState]
    run: Callable[[Key, jax.Array, Params, InnerState], tuple[InnerState, Outcome]]
    evaluate: Callable[[Key, jax.Array, Params, InnerState], Metrics]
    alone: Callable[[Key, jax.Array, Params], tuple[Key, InnerLoop, Any]]


class Outcome(NamedTuple):
    """Result of a generation of training; leaves [S, P, ...] once lifted.

    Attributes:
        fitness: Fitness; NaN if not healthy.
        healthy: True if all numbers of the agent and of `shared` are finite.
        train: [K] per metric; `return` is NaN where no episode ended.
        evaluation: Scalars; {} if not evaluated.
        inherited: Params after `Space.inherit`; () if nothing is inherited.
    """

    fitness: jax.Array
    healthy: jax.Array
    train: Metrics
    evaluation: Metrics
    inherited: Params


# Axes of an InnerState under the two vmaps.
OVER_MEMBERS = InnerState(agent=0, experience=0, shared=None, clock=None)
OVER_SEEDS = InnerState(agent=0, experience=0, shared=0, clock=None)


def lift(
    loop: InnerLoop,
    space: Space,
    fitness: FitnessFn,
    num_segments: int,
    common_random_numbers: bool,
    evaluate: bool = False,
    vary: Space | None = None,
    world_per_member: bool = False,
) -> Lifted:
    """Lift one member's `loop` to S seeds x P members.

    `shared` and `clock` enter and leave the vmap without a member axis. A value of one
    member that leaks into them raises an error while JAX traces.

    Args:
        loop: Inner loop of one member.
        space: Space that binds params to the loop's slots.
        fitness: Fitness of a member.
        num_segments: K, segments of one generation.
        common_random_numbers: All members of a seed draw the same numbers. Values that
            depend on the key alone are then computed once per seed.
        evaluate: Run `loop.evaluate` even if the fitness does not need it.
        vary: Space of numbers that are drawn for each world, see `Search.vary`.
        world_per_member: Each member is in a world of its own; otherwise in its seed's.
    """
    axis = MEMBERS if loop.coupled else None

    def member_key(seed_key, i, role):
        key = jax.random.fold_in(seed_key, _MEMBERS)
        if not common_random_numbers:
            key = jax.random.fold_in(key, i)
        return jax.random.fold_in(key, role)

    def world(seed_key, i):
        """The loop and the slots of a world, drawn from the seed's key alone."""
        key = jax.random.fold_in(seed_key, _WORLD)
        if world_per_member:
            key = jax.random.fold_in(key, i)
        here, meta = loop, loop.meta
        if loop.env is not None and loop.env.task is not None:
            assert loop.on is not None, "types.on_any_env"  # `checks` says more
            task = loop.env.task(jax.random.fold_in(key, _TASK))
            here = loop.on(loop.env.at(task))
        if vary is not None:
            meta = vary.bind(vary.init(jax.random.fold_in(key, _NUMBERS)), meta)
        return here, meta

    def members_of_seed(seed_key, ids, params):
        def member(i, params):
            loop, meta = world(seed_key, i)
            meta = space.bind(params, meta)
            state = loop.init(member_key(seed_key, i, _INIT), meta)
            return state._replace(shared=(), clock=())

        return _strong(jax.vmap(member, axis_name=axis)(ids, params))

    def init_seed(seed_key, ids, params):
        def common(_):
            # Shared state has no member axis, and so no world of a member's own.
            here, meta = (loop, loop.meta) if world_per_member else world(seed_key, 0)
            state = here.init(jax.random.fold_in(seed_key, _COMMON), meta)
            return state.shared, state.clock

        state = members_of_seed(seed_key, ids, params)
        # `shared` and `clock` depend on the world and on the seed alone.
        shared, clock = _strong(jax.vmap(common, out_axes=None, axis_name=axis)(ids))
        return state._replace(shared=shared, clock=clock)

    def alone(seed_key, i, params):
        loop, meta = world(seed_key, i)
        return member_key(seed_key, i, _TRAIN), loop, space.bind(params, meta)

    def run_seed(seed_key, ids, params, state):
        def member(i, params, state):
            train_key, loop, meta = alone(seed_key, i, params)

            def segment(state, _):
                return loop.train(train_key, meta, state)

            state, train = jax.lax.scan(segment, state, None, length=num_segments)
            evaluation = None
            if evaluate or fitness.needs_evaluation:
                key = member_key(seed_key, i, _EVALUATE)
                evaluation = loop.evaluate(key, meta, state)
            score = fitness.score(train, evaluation)
            healthy = all_finite((state.agent, state.shared))
            score = jnp.where(healthy, score, jnp.nan)
            ended = train["episodes"] > 0
            returns = jnp.where(ended, train["return"], jnp.nan)
            train = {**train, "return": returns}
            inherited = ()
            if space.inherit is not keep:
                # Nothing is inherited from a failed agent.
                learned = space.inherit(params, state)
                good = jnp.isfinite(score) & all_finite(learned)
                inherited = jax.tree.map(partial(jnp.where, good), learned, params)
            outcome = Outcome(score, healthy, train, evaluation or {}, inherited)
            return state, outcome

        in_axes, out_axes = (0, 0, OVER_MEMBERS), (OVER_MEMBERS, 0)
        return jax.vmap(member, in_axes, out_axes, axis_name=axis)(ids, params, state)

    def evaluate_seed(seed_key, ids, params, state):
        def member(i, params, state):
            loop, meta = world(seed_key, i)
            meta = space.bind(params, meta)
            return loop.evaluate(member_key(seed_key, i, _EVALUATE), meta, state)

        return jax.vmap(member, (0, 0, OVER_MEMBERS), axis_name=axis)(
            ids, params, state
        )

    return Lifted(
        init=jax.vmap(init_seed, (0, None, None), OVER_SEEDS),
        members=jax.vmap(members_of_seed, (0, None, None), OVER_SEEDS),
        evaluate=jax.vmap(evaluate_seed, (0, None, None, OVER_SEEDS)),
        run=jax.vmap(run_seed, (0, None, None, OVER_SEEDS), (OVER_SEEDS, 0)),
        alone=alone,
    )


def _strong(tree: Any) -> Any:
    """Strip weak types, with which the next generation would be compiled again."""
    return jax.tree.map(
        lambda x: (
            x
            if jnp.issubdtype(x.dtype, jax.dtypes.extended)
            else jax.lax.convert_element_type(x, x.dtype)
        ),
        tree,
    )
