"""Programs whose derivative by autodiff is that of their source.

A program of `tracing` has the operations of a function, not the rules by which JAX
differentiates it. `jax.nn.relu` is `max(x, 0)`, of which autodiff gives half a slope at
0, and a rule of its own, by which the slope is 0 there. It is written as a choice,
which has that slope and the same values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from metaevo.portable import tracing

__all__ = ["describe"]


def describe(slot: str, op: Mapping[str, Any], learned: Any, params: Any) -> dict:
    """A slot's function as plain data; see `tracing.describe`."""
    described = tracing.describe(slot, op, learned, params, _note)
    parts = ("value", "gradient", "step")
    made = {
        part: _differentiable(described[part])
        for part in parts
        if described.get(part) is not None
    }
    return {**described, **made}


def _note(equation: Any, variable: Any, calls: tuple) -> bool:
    return tracing.is_relu(equation, calls)


def _differentiable(program: Mapping[str, Any]) -> dict[str, Any]:
    fresh = itertools.count(1 + max(_numbers(program), default=0))
    return _rewritten(program, fresh)


def _rewritten(program: Mapping[str, Any], fresh: Iterator[int]) -> dict[str, Any]:
    notes, equations = program["notes"], []
    for name, operands, result, settings in program["equations"]:
        if name == "scan":
            inner = _rewritten(settings["program"], fresh)
            settings = {**settings, "program": inner}
        elif name == "max" and notes.get(result) and _is_zero(operands[1]):
            # Of a number that is not finite it is that number, as the maximum is.
            below = next(fresh)
            equations.append(["le", operands, below, {}])
            name, operands = "select_n", [below, *operands]
        equations.append([name, operands, result, settings])
    rest = {key: x for key, x in program.items() if key != "notes"}
    return {**rest, "equations": equations}


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, Mapping) and atom["value"] == 0


def _numbers(program: Mapping[str, Any]) -> Iterator[int]:
    yield from program["inputs"]
    for name, _, result, settings in program["equations"]:
        yield from result if isinstance(result, list) else [result]
        if name == "scan":
            yield from _numbers(settings["program"])
