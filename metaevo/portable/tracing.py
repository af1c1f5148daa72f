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

__all__ = [
    "Signature",
    "context_of",
    "describe",
    "is_relu",
    "program",
    "signature",
    "traceable",
]

Note = Callable[[Any, Any, tuple], Any]
Signed = Callable[[Mapping[str, Any]], Signature]
Inputs = dict[str, jax.ShapeDtypeStruct]


def describe(
    slot: str,
    op: Mapping[str, Any],
    learned: Any,
    params: Any,
    note: Note | None = None,
    signed: Signed = signature,
) -> dict:
    """A slot's function or optimizer as plain data, for `numpy_reference`.

    Of a function its values and gradients. Of an optimizer its step for one array [n]
    of the agent; `state` describes the state that it keeps of the array and its start,
    `inputs` and `outputs` name those of its program. `params` names the parameters in
    an artifact.

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
    if not isinstance(learned, Learned | LearnedOptimizer):
        raise NotImplementedError(f"a {type(learned).__name__} has no reference")
    found, tree = jax.tree.flatten_with_path(params)
    leaves = [np.shape(x) for _, x in found]
    paths = ["/".join([slot, *(str(k.key) for k in path)]) for path, _ in found]

    def value(*arrays):
        inside = jax.tree.unflatten(tree, arrays[: len(leaves)])
        return call(inside, *arrays[len(leaves) :])

    # In double precision: a constant such as 0.2 is then written down as what it is.
    with jax.enable_x64(True):
        call, inputs = traceable(op, learned, signed)
        arrays = [*map(_array, leaves), *inputs.values()]
        described: dict[str, Any] = {"inputs": [*inputs], "params": paths}
        if isinstance(learned, LearnedOptimizer):
            state = _state(learned, inputs)
            described |= {"state": state, "outputs": ["direction", *state]}
            return described | {"step": program(value, arrays, note)}
        return described | _function(value, arrays, len(leaves), note)


def _function(
    value: Callable,
    arrays: Sequence[jax.ShapeDtypeStruct],
    first: int,
    note: Note | None,
) -> dict[str, Any]:
    """Programs of values, and of gradients in the arrays from `first` on."""

    def gradient(*arrays):
        *arrays, along = arrays
        inputs = tuple(range(first, len(arrays)))
        return jax.grad(lambda *x: (value(*x) * along).sum(), inputs)(*arrays)

    values = jax.eval_shape(value, *arrays)
    chooses = jnp.issubdtype(values.dtype, jnp.integer)
    return {
        "value": program(value, arrays, note),
        "gradient": None if chooses else program(gradient, [*arrays, values], note),
    }


def _state(learned: LearnedOptimizer, inputs: Inputs) -> dict[str, dict]:
    """The state that an optimizer keeps of an array, and its start, by name."""
    first = learned.start(jnp.zeros(1))._asdict()
    return {
        name: {
            "shape": [_size(size) for size in x.shape],
            "type": str(x.dtype),
            "start": float(np.asarray(first[name]).flat[0]),
        }
        for name, x in inputs.items()
        if name in first and name != "params"
    }


# --- what is traced -------------------------------------------------------------------


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


def is_relu(equation: Any, calls: tuple) -> bool:
    """True for the maximum of a `relu`, whose derivative at 0 is another's.

    Args:
        calls: the equations that it is inside of.
    """
    inside = [one.params.get("name") for one in calls]
    return equation.primitive.name == "max" and "relu" in inside


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


_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "broadcast_in_dim": {"shape": "shape", "axes": "broadcast_dimensions"},
    "concatenate": {"axis": "dimension"},
    "convert_element_type": {"to": "new_dtype"},
    "dim_as_value": {"size": "dim"},
    "integer_pow": {"y": "y"},
    "iota": {"shape": "shape", "axis": "dimension", "type": "dtype"},
    "reshape": {"shape": "new_sizes"},
    "slice": {"start": "start_indices", "stop": "limit_indices", "step": "strides"},
    "squeeze": {"axes": "dimensions"},
    "stack": {"axis": "axis"},
    "transpose": {"axes": "permutation"},
}
"""Operation -> name of a setting -> its name in JAX; others may have `axes`."""


def _settings(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an elementary operation, as the reference takes them."""
    if operation == "pad":
        low, high, inner = zip(*params["padding_config"], strict=True)
        if any(inner) or min(*low, *high) < 0:
            raise NotImplementedError("operation 'pad' other than around")
        return {"low": _plain(low), "high": _plain(high)}
    if operation == "dot_general":
        contract, batch = params["dimension_numbers"]
        return {"contract": _plain(contract), "batch": _plain(batch)}
    if operation == "slice" and params["strides"] is None:
        params = {**params, "strides": [1] * len(params["start_indices"])}
    names = _SETTINGS.get(operation, {"axes": "axes"} if "axes" in params else {})
    return {name: _plain(params[there]) for name, there in names.items()}


def _plain(x: Any) -> Any:
    """Sizes, sequences of sizes, and types as an artifact holds them."""
    if isinstance(x, np.dtype | type):
        return str(np.dtype(x))
    return [_plain(y) for y in x] if isinstance(x, Sequence) else _size(x)
