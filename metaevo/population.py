"""The population as an axis, as a member's program sees it.

Inner loops are written for ONE member, and evaluators run them for P members and S
seeds. `mean`, `gather`, `index` and `count` let a coupled loop see the other members.
`phase` marks a part of a member's program whose batching depends on the backend.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.custom_batching import custom_vmap

from metaevo.types import (
    InnerLoop,
    Params,
    Population,
)

DEVICES, MEMBERS = "devices", "members"

_phase_depth = 0


def _collective(fn: Callable) -> Callable:
    """Decorate a collective: the two common mistakes raise errors with a remedy."""

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
                "an evaluator."
            ) from error

    return checked


@_collective
def mean(x: Any) -> Any:
    """Return the mean of `x` over all members of the population, on all devices.

    Members whose `x` has a number that is not finite are left out, otherwise one
    failed member would break all. The mean is NaN if no member is left.
    """
    good = all_finite(x)
    count = jax.lax.psum(good.astype(jnp.float32), (DEVICES, MEMBERS))

    def average(x):
        total = jax.lax.psum(jnp.where(good, x, 0), (DEVICES, MEMBERS))
        return total / count

    return jax.tree.map(average, x)


@_collective
def gather(tree: Any) -> Any:
    """Return every member's `tree`, [...] -> [P, ...], in the order of the population.

    A member with a number that is not finite has the rows of the first one without, in
    all leaves: what stands there is always one member's own. Give leaves that belong
    together, such as those of transitions, in one call.

    The result has no gradient, because differentiation through an all-gather would
    give P times the gradient. Insert this member's differentiable value with
    `gather(x).at[index()].set(x)`.
    """

    def everyone(x):
        x = jax.lax.all_gather(x, MEMBERS)
        x = jax.lax.all_gather(x, DEVICES)
        return x.reshape((-1, *x.shape[2:]))

    tree = jax.lax.stop_gradient(tree)
    good = everyone(all_finite(tree))

    def rows(x):
        x = everyone(x)
        own = good.reshape(-1, *[1] * (x.ndim - 1))
        return jnp.where(own, x, x[jnp.argmax(good)])

    return jax.tree.map(rows, tree)


@_collective
def index() -> jax.Array:
    """Return this member's place in the population, an int32 scalar in [0, P)."""
    members = jax.lax.axis_size(MEMBERS)
    return jax.lax.axis_index(DEVICES) * members + jax.lax.axis_index(MEMBERS)


@_collective
def count() -> int:
    """Return P, the number of members on all devices, as a Python int."""
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
        member: `(arrays, i) -> Params` of member i, an int32 scalar. It must stay the
            same function object, otherwise programs that take the rule are compiled
            again.
        arrays: Arrays from which members are computed, such as a mean and a key.
    """

    number: int
    member: Callable[[Any, jax.Array], Params]
    arrays: Any


def size(params: Population | Rule) -> int:
    """Return P of a population, or of the shapes of one.

    >>> size({"lr": jnp.zeros((5, 2))})
    5
    """
    if isinstance(params, Rule):
        return params.number
    return jax.tree.leaves(params)[0].shape[0]


def agent_shapes(loop: InnerLoop) -> Any:
    """Return the shapes of one agent, of a coupled loop too."""

    def init(key):
        return loop.init(key, loop.meta).agent

    alone = jax.vmap(jax.vmap(init, axis_name=MEMBERS), axis_name=DEVICES)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (1, 1)))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype),
        jax.eval_shape(alone, keys),
    )


def take(params: Population | Rule, ids: np.ndarray) -> Population:
    """Return the members `ids` [N] of a population, [N, ...].

    >>> take({"depth": jnp.array([1, 2, 3])}, np.array([2, 0]))["depth"].tolist()
    [3, 1]
    """
    if isinstance(params, Rule):
        return _computed(params, jnp.asarray(ids, jnp.int32))
    return jax.tree.map(lambda x: jnp.take(x, ids, 0), params)


@jax.jit
def _computed(rule: Rule, ids: jax.Array) -> Population:
    return jax.vmap(partial(rule.member, rule.arrays))(ids)


# --- phases ---------------------------------------------------------------------------


def _one_by_one() -> bool:
    """Return True if phases run members one after the other.

    On CPU this is faster, because a vmapped matmul is a loop of small ones there, and
    the elementwise work of a whole population does not fit into the cache. On an
    accelerator members run together.
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
    """Mark a part of a member's program, such as PPO's update, as one phase.

    The phase computes what `fn` computes. Under vmap it runs members in sequence on
    CPU and together on an accelerator. Outputs that depend on no batched input stay
    unbatched. `fn` may close over traced values. A phase cannot be differentiated from
    outside, and `fn` must not call a collective of this module.
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
            return tuple(core.eval_jaxpr(closed.jaxpr, consts, *inputs))

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
    """Return which outputs of `fn` vary along the vmapped axis, by one trace."""
    found: dict[int, bool] = {}

    def observed(*operands):
        return [_observe(i, found)(x) for i, x in enumerate(fn(*operands))]

    out = jax.eval_shape(jax.vmap(observed, in_axes), *operands)
    return tuple(found.get(i, False) for i in range(len(out)))


def _observe(i: int, found: dict[int, bool]) -> Callable:
    """Return an identity that records in `found` whether its input is batched."""
    identity = custom_vmap(lambda x: x)

    @identity.def_vmap
    def rule(axis_size, in_batched, x):
        found[i] = bool(in_batched[0])
        return x, in_batched[0]

    return identity


def all_finite(tree: Any) -> jax.Array:
    """Return a bool scalar: are all floating point numbers in `tree` finite?

    >>> bool(all_finite({"w": jnp.array([1.0, jnp.inf])}))
    False
    """
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(x).all() for x in leaves]).all()
