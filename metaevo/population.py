"""The population as an axis of one member's program.

Inner loops are written for ONE member. `mean`, `gather`, `index` and `count` give a
coupled loop values of the other members; `phase` marks a part of a member's program
whose batching is chosen by backend. `evaluators.lift` runs loops for P members.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from metaevo.types import (
    InnerLoop,
    Params,
    Population,
)

DEVICES, MEMBERS = "devices", "members"

_phase_depth = 0


def _collective(fn: Callable) -> Callable:
    """Gives two misuses of collectives a message that names the remedy."""

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
                "evaluators.lift."
            ) from error

    return checked


@_collective
def mean(x: Any) -> Any:
    """Mean of `x` over all members of the population, on all devices.

    Members in which `x` holds a number that is not finite are left out, so that one
    failed member does not fail all. The mean is NaN if all members are left out.
    """
    good = all_finite(x)
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
    P times the gradient. Insert the member's own, differentiable value with
    `gather(x).at[index()].set(x)`.
    """
    x = jax.lax.stop_gradient(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        x = jnp.where(all_finite(x), x, mean(x))
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
            stays the same object; otherwise programs that take the rule compile
            again.
        arrays: inputs of the computation, such as a mean and a key.
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
    """Shapes of one agent; a coupled loop's are of a population of one."""

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
    """True if phases run members one after the other.

    On CPU a vmapped matmul is a loop of small ones, and elementwise work of the whole
    population does not fit the cache, so one member after the other is faster. On an
    accelerator all members together are faster.
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
    """Flags of the outputs of `fn` that vary along the vmapped axis, by tracing it."""
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


def all_finite(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(x).all() for x in leaves]).all()
