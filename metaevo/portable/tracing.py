"""Writes functions as elementary operations, for `numpy_reference` to carry out.

The batch axis n stays open. Only operations of the reference's closed list are allowed.
A function's inputs are those of its slot, `metaevo.slots.SIGNATURES`, with the shapes
of its entry in `metaevo.learned.operations`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from metaevo._jax import scan_sizes
from metaevo.learned.functions import Learned
from metaevo.learned.optimizers import LearnedOptimizer
from metaevo.portable.numpy_operations import OPERATIONS
from metaevo.portable.signatures import N, Signature, context_of, signature

__all__ = ["Signature", "context_of", "describe", "program", "signature"]

Note = Callable[[Any, Any, tuple], Any]
Signed = Callable[[Mapping[str, Any]], Signature]


def describe(
    slot: str,
    op: Mapping[str, Any],
    learned: Any,
    params: Any,
    note: Note | None = None,
    signed: Signed = signature,
) -> dict:
    """A slot's function or optimizer as plain data, for `numpy_reference`.

    Args:
        slot: its name in the artifact.
        op: its entry in `Space.spec`.
        learned: a `Learned` or a `LearnedOptimizer`.
        params: nested dicts of arrays, or one array.
        note: as for `program`.
        signed: `op -> Signature`, the inputs of a function.

    Raises:
        NotImplementedError: it has an operation that the reference does not have.
    """
    writer = _WRITERS.get(type(learned))
    if writer is None:
        raise NotImplementedError(f"a {type(learned).__name__} has no reference")
    return writer(slot, op, learned, params, note, signed)


def _function(
    slot: str,
    op: Mapping[str, Any],
    learned: Learned,
    params: Any,
    note: Note | None,
    signed: Signed,
) -> dict:
    """A function's values and gradients, and the names of its parameters."""
    leaves, tree, paths = _leaves(slot, params)

    def value(*arrays):
        inside = jax.tree.unflatten(tree, arrays[: len(leaves)])
        return call(inside, *arrays[len(leaves) :])

    def gradient(*arrays):
        *arrays, along = arrays
        inputs = tuple(range(len(leaves), len(arrays)))
        return jax.grad(lambda *x: (value(*x) * along).sum(), inputs)(*arrays)

    # In double precision: a constant such as 0.2 is then written down as what it is.
    with jax.enable_x64(True):
        call, inputs = _value(op, learned, signed)
        arrays = [*map(_array, map(np.shape, leaves)), *inputs.values()]
        values = jax.eval_shape(value, *arrays)
        chooses = jnp.issubdtype(values.dtype, jnp.integer)
        return {
            "inputs": [*inputs],
            "params": paths,
            "value": program(value, arrays, note),
            "gradient": None if chooses else program(gradient, [*arrays, values], note),
        }


def _optimizer(
    slot: str,
    op: Mapping[str, Any],
    learned: LearnedOptimizer,
    params: Any,
    note: Note | None,
    signed: Signed,
) -> dict:
    """An optimizer's step for one array [n] of the agent, as plain data.

    `state` describes the state that it keeps of the array and its start, `inputs` and
    `outputs` name those of its program.
    """
    del signed  # its inputs are those of every optimizer
    leaves, tree, paths = _leaves(slot, params)

    def step(*arrays):
        inside = jax.tree.unflatten(tree, arrays[: len(leaves)])
        return call(inside, *arrays[len(leaves) :])

    with jax.enable_x64(True):
        call, inputs = _step(op, learned)
        arrays = [*map(_array, map(np.shape, leaves)), *inputs.values()]
        first = learned.start(jnp.zeros(1))._asdict()
        kinds = [name for name in inputs if name in first and name != "params"]
        return {
            "inputs": [*inputs],
            "params": paths,
            "state": {
                name: {
                    "shape": [_size(x) for x in inputs[name].shape],
                    "type": str(inputs[name].dtype),
                    "start": float(np.asarray(first[name]).flat[0]),
                }
                for name in kinds
            },
            "outputs": ["direction", *kinds],
            "step": program(step, arrays, note),
        }


_WRITERS = {Learned: _function, LearnedOptimizer: _optimizer}


# --- what is traced -------------------------------------------------------------------

Inputs = dict[str, jax.ShapeDtypeStruct]


def traceable(
    op: Mapping[str, Any], learned: Any, signed: Signed = signature
) -> tuple[Callable, Inputs]:
    """A function of arrays, and its inputs by name; n and a are open.

    Args:
        op: its entry in `Space.spec`.
        learned: a `Learned`, or a `LearnedOptimizer`, of which it is a step for one
            array [n].
        signed: as for `describe`.

    Returns:
        `(params, *inputs) -> values`, or `-> (direction, what is kept ...)`.
    """
    if isinstance(learned, LearnedOptimizer):
        return _step(op, learned)
    return _value(op, learned, signed)


def _array(shape: tuple) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(float))


def _value(
    op: Mapping[str, Any], learned: Learned, signed: Signed
) -> tuple[Callable, Inputs]:
    given, seen, call = signed(op)

    def value(params, *inputs):
        scalars = dict(zip(seen, inputs[len(given) :], strict=True))
        context = context_of(scalars) if seen else None
        return call(learned.apply, params, inputs[: len(given)], context)

    shapes = {**given, **dict.fromkeys(seen, ())}
    return value, {name: _array(shape) for name, shape in shapes.items()}


def _step(op: Mapping[str, Any], learned: LearnedOptimizer) -> tuple[Callable, Inputs]:
    extra = list(learned.extra_inputs) + ["progress"] * bool(op.get("temporal"))
    whole = jax.eval_shape(learned.start, _array((N,)))
    kinds = {name: x for name, x in whole._asdict().items() if name != "seed"}

    def step(params, gradient, agent, *rest):
        kept = dict(zip(kinds, rest, strict=False))
        more = dict(zip(extra, rest[len(kinds) :], strict=True))
        context = context_of({"progress": more.pop("progress", 0.0)})
        # The seed stays out: noise is given.
        direction, state = learned.update(
            params, gradient, whole._replace(**kept), agent, context, **more
        )
        return direction, *(getattr(state, name) for name in kinds)

    inputs = {"gradient": _array((N,)), "params": _array((N,)), **kinds}
    scalars = {x: _array((N,) if x == "noise" else ()) for x in extra}
    return step, inputs | scalars


def _leaves(slot: str, params: Any) -> tuple[list, Any, list[str]]:
    """Leaves, structure, and the names of the leaves in an artifact."""
    leaves, tree = jax.tree.flatten_with_path(params)
    paths = ["/".join([slot, *(str(k.key) for k in path)]) for path, _ in leaves]
    return [x for _, x in leaves], tree, paths


def program(
    fn: Callable,
    arrays: Sequence[jax.ShapeDtypeStruct],
    note: Note | None = None,
) -> dict[str, Any]:
    """`fn` of arrays as `{"inputs", "shapes", "equations", "outputs"}`.

    A variable is a number; an equation is [operation, operands, result, settings]. That
    of a `scan` has several results, and in its settings the program of one step.

    Args:
        note: called as `note(equation, variable, calls)` for each result, `calls` the
            equations that the equation is inside of, outermost first. What it returns
            is kept under `notes`, by the result's number; None keeps nothing.

    Raises:
        NotImplementedError: an operation that is not in the reference's list.
    """
    closed = jax.jit(fn).trace(*arrays).jaxpr
    return _written(closed, note, itertools.count(), nested=False)


def _written(
    closed: Any, note: Note | None, numbers: Iterator[int], nested: bool
) -> dict[str, Any]:
    """A program; `nested` is that of one step of a `scan`, which holds no other."""
    equations: list = []
    notes: dict[int, Any] = {}

    def atom(x, scope):
        return _constant(x.val) if isinstance(x, core.Literal) else scope[x]

    def walk(closed, operands, calls=()):
        """Write a function's equations down; return its results."""
        jaxpr = closed.jaxpr
        constants = map(_constant, closed.consts)
        scope = dict(zip(jaxpr.constvars, constants, strict=True))
        scope |= dict(zip(jaxpr.invars, operands, strict=True))
        for equation in jaxpr.eqns:
            inputs = [atom(x, scope) for x in equation.invars]
            name = equation.primitive.name
            called = _called(equation)
            found: list[Any]
            if name in ("scan", "split", "unstack"):
                found = [next(numbers) for _ in equation.outvars]
                if name == "scan":
                    settings = _steps(equation, nested, note, numbers)
                    equations.append([name, inputs, found, settings])
                elif name == "split":
                    equations.extend(_pieces(equation, inputs, found))
                else:
                    axis = _size(equation.params["axis"])
                    equations.extend(
                        ["take", inputs, number, {"axis": axis, "index": i}]
                        for i, number in enumerate(found)
                    )
            elif name == "one_minus_square":  # 1 - x², of JAX from 0.11 on
                one = {"value": 1.0, "type": str(equation.outvars[0].aval.dtype)}
                found, squared = [next(numbers)], next(numbers)
                equations.append(["square", inputs, squared, {}])
                equations.append(["sub", [one, squared], found[0], {}])
                if note is not None:
                    notes[squared] = note(equation, equation.outvars[0], calls)
            elif called is not None:
                found = walk(called, inputs, (*calls, equation))
            else:
                if name not in OPERATIONS:
                    raise NotImplementedError(f"operation {name!r}")
                found = [next(numbers)]
                settings = _settings(name, equation.params)
                equations.append([name, inputs, found[0], settings])
            if note is not None and (called is None or name == "scan"):
                noted = (note(equation, x, calls) for x in equation.outvars)
                notes.update(zip(found, noted, strict=True))
            scope |= dict(zip(equation.outvars, found, strict=True))
        return [atom(x, scope) for x in jaxpr.outvars]

    shapes = [[_size(size) for size in x.shape] for x in closed.in_avals]
    inputs = [next(numbers) for _ in shapes]
    outputs = walk(closed, inputs)
    return {
        "inputs": inputs,
        "shapes": shapes,
        "equations": equations,
        "outputs": outputs,
        **({} if note is None else {"notes": notes}),
    }


def _steps(equation: Any, nested: bool, note: Note | None, numbers) -> dict[str, Any]:
    """Settings of a `scan`: the program of a step, and which operands are what."""
    given = equation.params
    num_consts, num_carry = scan_sizes(given)
    if nested or len(equation.invars) == num_consts + num_carry:
        raise NotImplementedError("a scan inside another, or over nothing")
    return {
        "program": _written(given["jaxpr"], note, numbers, nested=True),
        "num_consts": num_consts,
        "num_carry": num_carry,
        "reverse": bool(given["reverse"]),
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


def _pieces(equation: Any, operands: list, results: list) -> list:
    """`split` as slices."""
    axis, shape = equation.params["axis"], equation.invars[0].aval.shape
    stops = list(itertools.accumulate(map(_size, equation.params["sizes"])))
    slices = []
    for result, start, stop in zip(results, [0, *stops], stops, strict=False):
        settings = {
            "start": [start if i == axis else 0 for i in range(len(shape))],
            "stop": [stop if i == axis else _size(x) for i, x in enumerate(shape)],
            "step": [1] * len(shape),
        }
        slices.append(["slice", operands, result, settings])
    return slices


def _size(x: Any) -> int | str:
    if isinstance(x, int | np.integer):
        return int(x)
    if str(x) not in ("n", "a"):
        raise NotImplementedError(f"an array of size {x}")
    return str(x)


def _settings(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an elementary operation, as the reference takes them."""
    match operation:
        case "integer_pow":
            return {"y": params["y"]}
        case "broadcast_in_dim":
            shape = [_size(x) for x in params["shape"]]
            axes = [_size(x) for x in params["broadcast_dimensions"]]
            return {"shape": shape, "axes": axes}
        case "pad":
            low, high, inner = zip(*params["padding_config"], strict=True)
            if any(inner) or min(*low, *high) < 0:
                raise NotImplementedError("operation 'pad' other than around")
            return {"low": [_size(x) for x in low], "high": [_size(x) for x in high]}
        case "reshape":
            return {"shape": [_size(x) for x in params["new_sizes"]]}
        case "dim_as_value":
            return {"size": _size(params["dim"])}
        case "iota":
            return {
                "shape": [_size(x) for x in params["shape"]],
                "axis": params["dimension"],
                "type": str(np.dtype(params["dtype"])),
            }
        case "stack":
            return {"axis": _size(params["axis"])}
        case "concatenate":
            return {"axis": params["dimension"]}
        case "convert_element_type":
            return {"to": str(np.dtype(params["new_dtype"]))}
        case "dot_general":
            contract, batch = params["dimension_numbers"]
            return {
                "contract": [[_size(i) for i in x] for x in contract],
                "batch": [[_size(i) for i in x] for x in batch],
            }
        case "slice":
            rank = len(params["start_indices"])
            return {
                "start": [_size(x) for x in params["start_indices"]],
                "stop": [_size(x) for x in params["limit_indices"]],
                "step": list(params["strides"] or [1] * rank),
            }
        case _:
            axes = [
                params[x] for x in ("axes", "dimensions", "permutation") if x in params
            ]
            return {"axes": [_size(i) for i in axes[0]]} if axes else {}
