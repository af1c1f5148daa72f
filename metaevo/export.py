"""Functions written down as elementary operations, for `metaevo.reference` to do.

The batch axis n stays open. Only operations of the reference's closed list are allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from metaevo.reference import OPERATIONS
from metaevo.slots import Context

__all__ = ["INPUTS", "describe", "program"]

INPUTS = {
    "value_loss": ("value", "target", "old_value"),
    "td_loss": ("td_error", "q", "target"),
    "drift": ("log_ratio", "advantage", "clip_eps"),
    "policy_loss": ("log_prob", "log_ratio", "advantage", "entropy"),
}
"""Slots of elementwise functions: the names of their inputs, all [n]."""


def describe(slot: str, op: Mapping[str, Any], apply: Callable, params: Any) -> dict:
    """A slot's function as plain data, and which parameters it takes.

    Args:
        op: its entry in `Space.spec`.
        apply: `(params, *inputs, context)`.
        params: nested dicts of arrays, or one array.

    Raises:
        NotImplementedError: the function has an operation that the reference does not
            know, or nothing is known of the slot's inputs.
    """
    (n,) = jax.export.symbolic_shape("n")
    if slot in INPUTS:
        names, shapes = INPUTS[slot], [(n,)] * len(INPUTS[slot])
        if op.get("temporal"):
            names, shapes = (*names, "progress"), [*shapes, ()]
    elif op["op"] == "policy":
        names, shapes = ("obs",), [(n, *op["observation"])]
    elif op["op"] in ("steps", "knots"):
        names, shapes = ("progress",), [()]
    else:
        raise NotImplementedError(f"{slot}: its inputs are not known")
    leaves, tree = jax.tree.flatten_with_path(params)
    paths = ["/".join([slot, *(str(k.key) for k in path)]) for path, _ in leaves]

    def value(*arrays):
        inside = jax.tree.unflatten(tree, arrays[: len(leaves)])
        inputs, context = arrays[len(leaves) :], None
        if names[-1] == "progress":
            *inputs, progress = inputs
            context = Context(progress=progress)
        return apply(inside, *inputs, context)

    def gradient(*arrays):
        inputs = tuple(range(len(leaves), len(arrays)))
        return jax.grad(lambda *x: value(*x).sum(), inputs)(*arrays)

    shapes = [np.shape(x) for _, x in leaves] + shapes
    # In double precision: a constant such as 0.2 is then written down as what it is.
    with jax.enable_x64(True):
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
        chooses = jnp.issubdtype(jax.eval_shape(value, *arrays).dtype, jnp.integer)
        return {
            "inputs": list(names),
            "params": paths,
            "value": program(value, arrays),
            "gradient": None if chooses else program(gradient, arrays),
        }


def program(fn: Callable, arrays: Sequence[jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """`fn` of arrays as `{"inputs", "shapes", "equations", "outputs"}`.

    A variable is a number; an equation is [operation, operands, result, settings].

    Raises:
        NotImplementedError: an operation that is not in the reference's list.
    """
    closed = jax.jit(fn).trace(*arrays).jaxpr
    numbers = itertools.count()
    equations: list = []

    def atom(x, scope):
        return _constant(x.val) if isinstance(x, core.Literal) else scope[x]

    def walk(closed, operands):
        """Writes a function's equations down; returns its results."""
        jaxpr = closed.jaxpr
        constants = map(_constant, closed.consts)
        scope = dict(zip(jaxpr.constvars, constants, strict=True))
        scope |= dict(zip(jaxpr.invars, operands, strict=True))
        for equation in jaxpr.eqns:
            inputs = [atom(x, scope) for x in equation.invars]
            called = _called(equation)
            if called is not None:
                found = walk(called, inputs)
            elif equation.primitive.name == "unstack":
                found = [next(numbers) for _ in equation.outvars]
                for i, number in enumerate(found):
                    at = {"axis": equation.params["axis"], "index": i}
                    equations.append(["take", inputs, number, at])
            else:
                operation = equation.primitive.name
                if operation not in OPERATIONS:
                    raise NotImplementedError(f"operation {operation!r}")
                found = [next(numbers)]
                settings = _settings(operation, equation.params)
                equations.append([operation, inputs, found[0], settings])
            scope |= dict(zip(equation.outvars, found, strict=True))
        return [atom(x, scope) for x in jaxpr.outvars]

    inputs = [next(numbers) for _ in arrays]
    outputs = walk(closed, inputs)
    return {
        "inputs": inputs,
        "shapes": [[_size(size) for size in x.shape] for x in arrays],
        "equations": equations,
        "outputs": outputs,
    }


def _constant(x: Any) -> dict[str, Any]:
    x = np.asarray(x)
    return {"value": x.tolist(), "type": str(x.dtype)}


def _called(equation: Any) -> Any:
    """The function that an operation merely calls."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if isinstance(inner, core.ClosedJaxpr):
            return inner
    return None


def _size(x: Any) -> int | str:
    return x if isinstance(x, int) else str(x)


def _settings(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference needs to know of an operation."""
    axes = {"axes": "axes", "dimensions": "axes", "permutation": "axes"}
    match operation:
        case "integer_pow":
            return {"y": params["y"]}
        case "broadcast_in_dim":
            shape = [_size(x) for x in params["shape"]]
            return {"shape": shape, "axes": list(params["broadcast_dimensions"])}
        case "reshape":
            return {"shape": [_size(x) for x in params["new_sizes"]]}
        case "stack":
            return {"axis": params["axis"]}
        case "concatenate":
            return {"axis": params["dimension"]}
        case "convert_element_type":
            return {"to": str(np.dtype(params["new_dtype"]))}
        case "dot_general":
            contract, batch = params["dimension_numbers"]
            return {
                "contract": [list(x) for x in contract],
                "batch": [list(x) for x in batch],
            }
        case "slice":
            rank = len(params["start_indices"])
            return {
                "start": [_size(x) for x in params["start_indices"]],
                "stop": [_size(x) for x in params["limit_indices"]],
                "step": list(params["strides"] or [1] * rank),
            }
        case _:
            return {axes[key]: list(x) for key, x in params.items() if key in axes}
