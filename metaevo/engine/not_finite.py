"""The operation that made the first number that is not finite.

A function is traced and evaluated operation by operation. From a result that is not
finite its inputs are followed back to the operation whose inputs all were; where that
is a loop, to the iteration and the operation in its body. Numbers that are not finite
and have no part in the result, such as the mean return of no episodes, do not count.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from metaevo._jax import one_equation, scan_sizes
from metaevo.types import PyTree

_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "stdlib")
)
_OURS = ("metaevo", "inner_loops", "strategies", "searches")


class NonFinite(NamedTuple):
    """An operation whose result is not finite, of inputs that are.

    Attributes:
        operation: name of the operation in JAX, such as `log`.
        file, line, function: the innermost call outside of libraries; empty and 0 if
            there is none.
        inputs: range of each input's numbers, in words.
    """

    operation: str
    file: str
    line: int
    function: str
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}" if self.file else "?"
        return f"{self.operation} of {', '.join(self.inputs)} at {place}"


def find(fn: Callable[..., PyTree], *args: PyTree) -> NonFinite | None:
    """Return the operation that makes the first bad number of `fn(*args)`.

    Args:
        fn: function that JAX can trace.
        *args: its arguments.

    Returns:
        the operation; None if the result is finite, or an argument is not.
    """
    closed = jax.make_jaxpr(fn)(*args)
    found = _trace(closed, jax.tree.leaves(args), range(len(closed.jaxpr.outvars)))
    return found if isinstance(found, NonFinite) else None


def first_bad(tree: PyTree) -> list[str]:
    """Return the paths of the leaves that hold a number that is not finite.

    >>> first_bad({"a": jnp.ones(2), "b": [jnp.array([1.0, jnp.nan])]})
    ["['b'][0]"]
    """
    return [
        jax.tree_util.keystr(path)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if _nan(x) or _infinite(x)
    ]


def _trace(
    closed: Any, inputs: Sequence[Any], targets: Sequence[int]
) -> NonFinite | int | None:
    """Follow a bad output of a traced function back to where it was made.

    Returns:
        the origin; the index of an input that was bad already; None if all of the
        outputs `targets` are finite.
    """
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known |= dict(zip(jaxpr.invars, inputs, strict=True))
    made_by: dict[Any, Any] = {}

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        made = _done(jaxpr, equation, read)
        for variable, x in zip(equation.outvars, made, strict=True):
            known[variable] = x
            made_by[variable] = equation
    outputs = [jaxpr.outvars[i] for i in targets]
    # NaN comes first: an infinity may be meant, as that of a mask.
    for bad in (_nan, _infinite):
        at = next((v for v in outputs if bad(read(v))), None)
        if at is not None:
            return _back(jaxpr, read, made_by, at, bad)
    return None


def _done(jaxpr: Any, equation: Any, read: Callable) -> list[Any]:
    """Return the results of one operation."""
    alone, inputs = one_equation(jaxpr, equation)
    return core.jaxpr_as_fun(alone)(*map(read, inputs))


def _back(
    jaxpr: Any, read: Callable, made_by: dict, at: Any, bad: Callable
) -> NonFinite | int | None:
    """Follow a bad variable back through the operations of one traced function."""
    while at in made_by:
        equation = made_by[at]
        before = next((v for v in equation.invars if bad(read(v))), None)
        inside = _inside(
            equation,
            [read(v) for v in equation.invars],
            [i for i, v in enumerate(equation.outvars) if v is at],
        )
        if isinstance(inside, NonFinite):
            return inside if inside.file else inside._replace(**_place(equation))
        if isinstance(inside, int):
            before = equation.invars[inside]
        if before is None or isinstance(before, core.Literal):
            return _origin(equation, [read(v) for v in equation.invars])
        at = before
    return next((i for i, v in enumerate(jaxpr.invars) if v is at), None)


def _inside(
    equation: Any, inputs: list[Any], targets: list[int]
) -> NonFinite | int | None:
    """Follow an output of an operation that is made of others into these."""
    name, settings = equation.primitive.name, equation.params
    if name == "scan":
        return _in_scan(settings, inputs, targets[0])
    if name == "while":
        return _in_while(settings, inputs, targets[0])
    if name == "cond":
        found = _trace(settings["branches"][int(inputs[0])], inputs[1:], targets)
        return found + 1 if isinstance(found, int) else found
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        inner = settings.get(key)
        if isinstance(inner, core.Jaxpr):
            inner = core.ClosedJaxpr(inner, ())
        if isinstance(inner, core.ClosedJaxpr) and len(inner.jaxpr.invars) == len(
            inputs
        ):
            found = _trace(inner, inputs, targets)
            if isinstance(found, NonFinite) and _of_a_library(inner):
                # Traced once for all of its callers, and names the first of them.
                found = found._replace(file="")
            return found
    return None


def _of_a_library(closed: Any) -> bool:
    """Return True for a function of JAX or another package, such as `jnp.sqrt`."""
    _, _, place = str(closed.jaxpr.debug_info.func_src_info).rpartition(" at ")
    return _in_a_library(place.rpartition(":")[0])


def _in_a_library(file: str) -> bool:
    path = Path(file).resolve()
    for folder in _LIBRARIES:
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0] not in _OURS
    return file.startswith("<")


def _in_scan(settings: dict, inputs: list[Any], target: int) -> NonFinite | int | None:
    """Follow an output of a scan back through its iterations."""
    body, length = settings["jaxpr"], settings["length"]
    num_consts, num_carry = scan_sizes(settings)
    consts, carry = inputs[:num_consts], inputs[num_consts:][:num_carry]
    stacked = inputs[num_consts + num_carry :]
    order = list(range(length))
    order = order[::-1] if settings["reverse"] else order
    step = jax.jit(core.jaxpr_as_fun(body))

    def at(i):
        return [x[i] for x in stacked]

    # The carries before each iteration are made again rather than kept: they may be
    # large, such as replay buffers.
    flags, now = [], list(carry)
    for i in order:
        outputs = step(*consts, *now, *at(i))
        flags.append([_nan(x) or _infinite(x) for x in outputs])
        now = outputs[:num_carry]
    bad = [k for k, found in enumerate(flags) if found[target]]
    if not bad:
        return None
    last = bad[0]
    while True:
        now = list(carry)
        for i in order[:last]:
            now = step(*consts, *now, *at(i))[:num_carry]
        found = _trace(body, [*consts, *now, *at(order[last])], [target])
        if not isinstance(found, int):
            return found
        if found < num_consts or found >= num_consts + num_carry or last == 0:
            return found
        target, last = found - num_consts, last - 1
        while last > 0 and flags[last - 1][target]:
            last -= 1


def _in_while(settings: dict, inputs: list[Any], target: int) -> NonFinite | int | None:
    """Follow an output of a while loop back through its iterations."""
    num_test, num_consts = settings["cond_nconsts"], settings["body_nconsts"]
    test, consts = inputs[:num_test], inputs[num_test:][:num_consts]
    now = inputs[num_test + num_consts :]
    goes_on = jax.jit(core.jaxpr_as_fun(settings["cond_jaxpr"]))
    step = jax.jit(core.jaxpr_as_fun(settings["body_jaxpr"]))
    while goes_on(*test, *now)[0]:
        after = step(*consts, *now)
        if _nan(after[target]) or _infinite(after[target]):
            found = _trace(settings["body_jaxpr"], [*consts, *now], [target])
            return found + num_test if isinstance(found, int) else found
        now = after
    return None


def _origin(equation: Any, inputs: list[Any]) -> NonFinite:
    words = tuple(map(_in_words, inputs))
    return NonFinite(equation.primitive.name, inputs=words, **_place(equation))


def _place(equation: Any) -> dict[str, Any]:
    """Return file, line and function of the innermost call outside of libraries."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not _in_a_library(frame.file_name):
            return {
                "file": frame.file_name,
                "line": frame.line_num,
                "function": frame.function_name,
            }
    return {"file": "", "line": 0, "function": ""}


def _in_words(x: Any) -> str:
    """Return the type and the range of an array.

    >>> _in_words(jnp.array([0.0, -2.0]))
    'float32[2] in [-2, 0]'
    """
    x = jnp.asarray(x)
    kind = f"{x.dtype}{list(x.shape)}"
    if not jnp.issubdtype(x.dtype, jnp.number) or not x.size:
        return kind
    return f"{kind} in [{float(x.min()):.6g}, {float(x.max()):.6g}]"


def _nan(x: Any) -> bool:
    return _is_float(x) and bool(np.isnan(np.asarray(x, np.float32)).any())


def _infinite(x: Any) -> bool:
    return _is_float(x) and bool(np.isinf(np.asarray(x, np.float32)).any())


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
