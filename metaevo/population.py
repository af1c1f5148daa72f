"""The population as an axis: lifting one member's program to many.

Inner loops are written for ONE member. `lift` runs them for P members and S seeds;
`mean`, `gather`, `index` and `count` let a coupled loop see the others; `phase` marks a
part of a member's program whose batching is chosen by backend.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from metaevo.types import (
    FitnessFn,
    InnerLoop,
    InnerState,
    Key,
    Metrics,
    Params,
    Population,
    Space,
    keep,
)

DEVICES, MEMBERS = "devices", "members"

# What a seed's key, and then a member's, is split into by role.
_COMMON, _MEMBERS = range(2)
_INIT, _TRAIN, _EVALUATE = range(3)

_phase_depth = 0


def _collective(fn: Callable) -> Callable:
    """Gives the two mistakes with collectives a message that names the remedy."""

    @functools.wraps(fn)
    def checked(*args):
        if _phase_depth:
            raise RuntimeError(
                f"population.{fn.__name__} inside a phase: a phase runs members one "
                "after the other. Call it before or after the phase."
            )
        try:
            return fn(*args)
        except NameError as error:
            raise RuntimeError(
                f"population.{fn.__name__} needs the population axis: declare the "
                "loop InnerLoop(..., coupled=True) and run it through a search or "
                "population.lift."
            ) from error

    return checked


@_collective
def mean(x: Any) -> Any:
    """Mean of `x` over all members of the population, on all devices.

    Members in which `x` holds a number that is not finite are left out, lest one
    failed member breaks all. If all are, the mean is NaN.
    """
    good = _all_finite(x)
    count = jax.lax.psum(good.astype(jnp.float32), (DEVICES, MEMBERS))

    def average(x):
        total = jax.lax.psum(jnp.where(good, x, 0), (DEVICES, MEMBERS))
        return total / count

    return jax.tree.map(average, x)


@_collective
def gather(x: jax.Array) -> jax.Array:
    """Every member's `x`, [...] -> [P, ...], in the order of the population.

    The row of a member that is not finite is the mean of the others'.

    The result carries no gradient: differentiating through an all-gather would give
    P times the gradient. Put the own, differentiable value in with
    `gather(x).at[index()].set(x)`.
    """
    x = jax.lax.stop_gradient(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        x = jnp.where(_all_finite(x), x, mean(x))
    x = jax.lax.all_gather(x, MEMBERS)
    x = jax.lax.all_gather(x, DEVICES)
    return x.reshape((-1, *x.shape[2:]))


@_collective
def index() -> jax.Array:
    """This member's place in the population, an int32 scalar in [0, P)."""
    members = jax.lax.axis_size(MEMBERS)
    return jax.lax.axis_index(DEVICES) * members + jax.lax.axis_index(MEMBERS)


@_collective
def count() -> int:
    """P, members in the population on all devices; static."""
    return jax.lax.axis_size(DEVICES) * jax.lax.axis_size(MEMBERS)


# --- members of a population ----------------------------------------------------------


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["number", "member"],
)
@dataclass(frozen=True)
class Rule:
    """A population that is computed when it is needed, in place of arrays [P, ...].

    Attributes:
        number: P.
        member: `(arrays, i) -> Params` of member i, an int32 scalar. A function that
            stays the same object, lest all that takes the rule compiles again.
        arrays: what it is computed from, such as a mean and a key.
    """

    number: int
    member: Callable[[Any, jax.Array], Params]
    arrays: Any


def size(params: Population | Rule) -> int:
    """P, of a population or the shapes of one."""
    if isinstance(params, Rule):
        return params.number
    return jax.tree.leaves(params)[0].shape[0]


def agent_shapes(loop: InnerLoop) -> Any:
    """Shapes of one agent; also a coupled loop's, which asks for its population."""

    def init(key):
        return loop.init(key, loop.meta).agent

    alone = jax.vmap(jax.vmap(init, axis_name=MEMBERS), axis_name=DEVICES)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (1, 1)))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype),
        jax.eval_shape(alone, keys),
    )


def take(params: Population | Rule, ids: np.ndarray) -> Population:
    """The members `ids` [N] of a population, [N, ...]."""
    if isinstance(params, Rule):
        return _computed(params, jnp.asarray(ids, jnp.int32))
    return jax.tree.map(lambda x: jnp.take(x, ids, 0), params)


@jax.jit
def _computed(rule: Rule, ids: jax.Array) -> Population:
    return jax.vmap(partial(rule.member, rule.arrays))(ids)


# --- phases ---------------------------------------------------------------------------


def _one_by_one() -> bool:
    """Whether phases run members one after the other.

    On CPU a vmapped matmul is a loop of small ones and elementwise work of the whole
    population falls out of the cache, so members in turn are faster; an accelerator
    wants them together.
    """
    return jax.default_backend() == "cpu"


@contextlib.contextmanager
def _inside_phase():
    global _phase_depth
    _phase_depth += 1
    try:
        yield
    finally:
        _phase_depth -= 1


def phase(fn: Callable) -> Callable:
    """Marks a part of a member's program, such as PPO's update, as one phase.

    The phase computes what `fn` computes. Under vmap it runs members in sequence on
    CPU and together on an accelerator. Outputs that depend on no batched input stay
    unbatched. `fn` may close over traced values. Not differentiable from outside; no
    collective of this module inside.
    """

    @functools.wraps(fn)
    def call(*args):
        leaves, treedef = jax.tree.flatten(args)

        def flat_fn(*leaves):
            return fn(*jax.tree.unflatten(treedef, leaves))

        with _inside_phase():
            closed, out_shape = jax.make_jaxpr(flat_fn, return_shape=True)(*leaves)
        num_consts = len(closed.consts)

        # Closed-over tracers become arguments: custom_vmap would reject them.
        def body(*operands):
            consts, inputs = operands[:num_consts], operands[num_consts:]
            return tuple(jax.core.eval_jaxpr(closed.jaxpr, consts, *inputs))

        run = custom_vmap(body)

        @run.def_vmap
        def rule(axis_size, in_batched, *operands):
            del axis_size
            if not _one_by_one():
                axes = [0 if b else None for b in in_batched]
                out_batched = _batched_outputs(body, axes, operands)
                out_axes = tuple(0 if b else None for b in out_batched)
                return jax.vmap(body, axes, out_axes)(*operands), out_batched

            def one(mapped):
                mapped = iter(mapped)
                return run(
                    *(
                        next(mapped) if b else x
                        for x, b in zip(operands, in_batched, strict=True)
                    )
                )

            axes = [0 if b else None for b in in_batched]
            out_batched = _batched_outputs(body, axes, operands)
            mapped = [x for x, b in zip(operands, in_batched, strict=True) if b]
            out = jax.lax.map(one, mapped)
            out = tuple(x if b else x[0] for x, b in zip(out, out_batched, strict=True))
            return out, out_batched

        flat_out = run(*closed.consts, *leaves)
        return jax.tree.unflatten(jax.tree.structure(out_shape), flat_out)

    return call


def _batched_outputs(fn: Callable, in_axes: list, operands: tuple) -> tuple[bool, ...]:
    """Which outputs of `fn` vary along the vmapped axis, found by tracing it once."""
    found: dict[int, bool] = {}

    def observed(*operands):
        return [_observe(i, found)(x) for i, x in enumerate(fn(*operands))]

    out = jax.eval_shape(jax.vmap(observed, in_axes), *operands)
    return tuple(found.get(i, False) for i in range(len(out)))


def _observe(i: int, found: dict[int, bool]) -> Callable:
    """An identity that records in `found` that its input was batched."""
    identity = custom_vmap(lambda x: x)

    @identity.def_vmap
    def rule(axis_size, in_batched, x):
        found[i] = bool(in_batched[0])
        return x, in_batched[0]

    return identity


# --- the lift -------------------------------------------------------------------------


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
            healthy = _all_finite((state.agent, state.shared))
            score = jnp.where(healthy, score, jnp.nan)
            ended = train["episodes"] > 0
            train = train | {"return": jnp.where(ended, train["return"], jnp.nan)}
            inherited = ()
            if space.inherit is not keep:
                # A failed agent leaves nothing behind.
                learned = space.inherit(params, state)
                good = jnp.isfinite(score) & _all_finite(learned)
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


def _all_finite(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(x).all() for x in leaves]).all()
