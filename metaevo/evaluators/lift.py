"""Lifting one member's loop to a population: P members x S seeds as two vmaps."""

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

# What a seed's key, and then a member's, is split into by role.
_COMMON, _MEMBERS = range(2)
_INIT, _TRAIN, _EVALUATE = range(3)


class Lifted(NamedTuple):
    """A loop over S seeds and P members, as programs that compile apart.

    All take `(seed_keys [S], ids [P], params [P])`, the last two also a state.

    Attributes:
        init: `-> InnerState`.
        members: `-> InnerState` of newborn members alone, without what they have in
            common: for those born into a population that lives on.
        run: `-> (state, Outcome)`: one generation of a lifetime.
        evaluate: `-> metrics [S, P]` of the state's agents as they are; reads no
            `experience`.

    `ids` are the members' places in the whole population: with them a member draws
    the same random numbers wherever it runs.
    """

    init: Callable[[Key, jax.Array, Params], InnerState]
    members: Callable[[Key, jax.Array, Params], InnerState]
    run: Callable[[Key, jax.Array, Params, InnerState], tuple[InnerState, Outcome]]
    evaluate: Callable[[Key, jax.Array, Params, InnerState], Metrics]


class Outcome(NamedTuple):
    """What a generation of training gave; leaves [S, P, ...] once lifted.

    Attributes:
        fitness: score, NaN if not healthy.
        healthy: whether every number of the agent, and of what it shares, is finite.
        train: [K] per metric; `return` is NaN where no episode ended.
        evaluation: scalars, {} if not evaluated.
        inherited: Params after `Space.inherit`, () if Baldwinian.
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
) -> Lifted:
    """Lifts one member's `loop` to S seeds x P members.

    `shared` and `clock` enter and leave the vmap without a member axis, so JAX
    raises while tracing when a member-specific value leaks into them.

    Args:
        num_segments: K, segments of one generation.
        common_random_numbers: whether all members of a seed draw the same numbers.
            What depends on the key alone is then computed once per seed.
        evaluate: whether to run `loop.evaluate` even if the fitness does not ask.
    """
    axis = {"axis_name": MEMBERS} if loop.coupled else {}

    def member_key(seed_key, i, role):
        key = jax.random.fold_in(seed_key, _MEMBERS)
        if not common_random_numbers:
            key = jax.random.fold_in(key, i)
        return jax.random.fold_in(key, role)

    def members_of_seed(seed_key, ids, params):
        def member(i, params):
            meta = space.bind(params, loop.meta)
            state = loop.init(member_key(seed_key, i, _INIT), meta)
            return state._replace(shared=(), clock=())

        return _strong(jax.vmap(member, **axis)(ids, params))

    def init_seed(seed_key, ids, params):
        def common(_):
            state = loop.init(jax.random.fold_in(seed_key, _COMMON), loop.meta)
            return state.shared, state.clock

        state = members_of_seed(seed_key, ids, params)
        # What the population has in common knows the default meta and the seed alone.
        shared, clock = _strong(jax.vmap(common, out_axes=None, **axis)(ids))
        return state._replace(shared=shared, clock=clock)

    def run_seed(seed_key, ids, params, state):
        def member(i, params, state):
            meta = space.bind(params, loop.meta)
            train_key = member_key(seed_key, i, _TRAIN)

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
            train = train | {"return": jnp.where(ended, train["return"], jnp.nan)}
            inherited = ()
            if space.inherit is not keep:
                # A failed agent leaves nothing behind.
                learned = space.inherit(params, state)
                good = jnp.isfinite(score) & all_finite(learned)
                inherited = jax.tree.map(partial(jnp.where, good), learned, params)
            outcome = Outcome(score, healthy, train, evaluation or {}, inherited)
            return state, outcome

        in_axes, out_axes = (0, 0, OVER_MEMBERS), (OVER_MEMBERS, 0)
        return jax.vmap(member, in_axes, out_axes, **axis)(ids, params, state)

    def evaluate_seed(seed_key, ids, params, state):
        def member(i, params, state):
            meta = space.bind(params, loop.meta)
            return loop.evaluate(member_key(seed_key, i, _EVALUATE), meta, state)

        return jax.vmap(member, (0, 0, OVER_MEMBERS), **axis)(ids, params, state)

    return Lifted(
        init=jax.vmap(init_seed, (0, None, None), OVER_SEEDS),
        members=jax.vmap(members_of_seed, (0, None, None), OVER_SEEDS),
        evaluate=jax.vmap(evaluate_seed, (0, None, None, OVER_SEEDS)),
        run=jax.vmap(run_seed, (0, None, None, OVER_SEEDS), (OVER_SEEDS, 0)),
    )


def _strong(tree: Any) -> Any:
    """Strips weak types, with which members that live on would compile again."""
    return jax.tree.map(
        lambda x: (
            x
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
            else jax.lax.convert_element_type(x, x.dtype)
        ),
        tree,
    )
