"""An evolved function as an ONNX model, of float32 arrays; n and a stay open.

An optimizer's model is a step for one array, flat, with what is kept of it.
"""

from __future__ import annotations

import copy
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.errors import ConfigError
from metaevo.export.equations import (
    Atom,
    Constant,
    Equation,
    EvolvedProgram,
    Loop,
    Program,
)

__all__ = ["OPSET", "content"]

OPSET = 18
IR_VERSION = 8
_TYPES = {"float": np.float32, "int": np.int64, "bool": np.bool_}


def content(one: EvolvedProgram, provenance: Sequence[str]) -> bytes:
    """The serialized model.

    Args:
        provenance: lines of the model's description.

    Raises:
        ConfigError: the package onnx is missing, or an operation has no translation.
    """
    try:
        onnx, helper = map(importlib.import_module, ("onnx", "onnx.helper"))
    except ImportError:
        raise ConfigError(
            "to=onnx needs the package onnx: pip install 'metaevo[export]'"
        ) from None
    program, graph = one.value, _Graph(one.value)
    _write(graph, program)
    names = ["direction", *one.state] if one.state else [one.slot]
    found = []
    for name, atom in zip(names, program.outputs, strict=True):
        # Kept state has its name twice, as input and output; so has a reward.
        clash = f"next_{name}" if one.state else f"{name}_value"
        result = clash if name in program.inputs else name
        graph.nodes.append(helper.make_node("Identity", [graph(atom)], [result]))
        kind = _input_kind(one, atom) if isinstance(atom, str) else ""
        found.append(_described(result, *program.type_of(atom, kind)))
    inputs = [
        _described(name, _input_kind(one, name), shape)
        for name, shape in program.inputs.items()
    ]
    made = helper.make_graph(graph.nodes, one.slot, inputs, found, graph.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION)
    model.producer_name, model.doc_string = "metaevo", "\n".join(provenance)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _part(name: str) -> Any:
    """A module of the package onnx."""
    return importlib.import_module(f"onnx.{name}")


def _type(kind: str) -> int:
    return _part("helper").np_dtype_to_tensor_dtype(np.dtype(_TYPES[kind]))


def _described(name: str, kind: str, shape: Sequence[int | str]) -> Any:
    tensor = _type(kind)
    return _part("helper").make_tensor_value_info(name, tensor, list(shape))


def _input_kind(one: EvolvedProgram, name: str) -> str:
    return "int" if "int" in one.state.get(name, {}).get("type", "") else "float"


def _write(graph: _Graph, program: Program) -> None:
    """Add the nodes of a program.

    Raises:
        ConfigError: an operation has no translation.
    """
    for equation in program.equations:
        if isinstance(equation, Loop):
            _scan(graph, equation)
            continue
        write = _NODES.get(equation.operation)
        if write is None:
            raise ConfigError(
                f"to=onnx: operation {equation.operation!r} (of "
                f"{equation.function or 'an evolved function'}) has no translation; "
                "to=stablehlo takes any"
            )
        graph.known[equation.result] = write(graph, equation)


def _scan(graph: _Graph, loop: Loop) -> None:
    """Add a loop; its step sees the values of the graph around."""
    helper, step = _part("helper"), graph.inner()
    given = []
    for (name, shape), kind in zip(loop.step.inputs.items(), loop.given, strict=True):
        step.known[name] = step.name(name)
        given.append(_described(step.known[name], kind, shape))
    _write(step, loop.step)
    outputs = []
    for i, atom in enumerate(loop.step.outputs):
        shape = loop.shapes[i][i >= loop.num_carry :]
        result = step.node("Identity", step(atom))
        outputs.append(_described(result, loop.kinds[i], shape))
    body = helper.make_graph(step.nodes, loop.name, given, outputs)
    names = [graph.name(x or "unused") for x in loop.results]
    over = len(loop.operands) - loop.num_carry
    backward = int(loop.reverse)
    made = helper.make_node(
        "Scan",
        [graph(x) for x in loop.operands],
        names,
        body=body,
        num_scan_inputs=over,
        scan_input_directions=[backward] * over,
        scan_output_directions=[backward] * (len(names) - loop.num_carry),
    )
    graph.nodes.append(made)
    pairs = zip(loop.results, names, strict=True)
    graph.known.update((x, name) for x, name in pairs if x is not None)


class _Graph:
    """Nodes and constants of a model while it is written.

    Attributes:
        nodes: nodes in order.
        initializers: constants.
        known: variable of the program -> value of the model.
    """

    def __init__(self, program: Program):
        self.nodes: list = []
        self.initializers: list = []
        self.known = {name: name for name in program.inputs}
        self._program = program
        self._constants: dict[tuple, str] = {}
        self._count = itertools.count(1)

    def inner(self) -> _Graph:
        """A graph inside of this one, with its values, constants and names."""
        found = copy.copy(self)
        found.nodes, found.known = [], dict(self.known)
        return found

    def __call__(self, atom: Atom) -> str:
        """The value of an operand."""
        if isinstance(atom, str):
            return self.known[atom]
        x = atom.value
        return self.constant(x.astype(np.float32) if x.dtype.kind == "f" else x)

    def constant(self, x: Any) -> str:
        """An array as a constant; equal ones are one."""
        x = np.asarray(x)
        key = (x.tobytes(), x.shape, x.dtype.str)
        if key not in self._constants:
            name = self._constants[key] = self.name("constant")
            self.initializers.append(_part("numpy_helper").from_array(x, name))
        return self._constants[key]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of a node."""
        name = self.name(kind)
        made = _part("helper").make_node(kind, list(inputs), [name], **attributes)
        self.nodes.append(made)
        return name

    def axes(self, *axes: int) -> str:
        """A list of integers as a constant."""
        return self.constant(np.asarray(axes, np.int64))

    def sizes(self, sizes: Sequence[int | str]) -> str:
        """A shape; open sizes are read from the inputs."""
        if all(isinstance(x, int) for x in sizes):
            return self.axes(*map(int, sizes))
        parts = [self.axes(x) if isinstance(x, int) else self._open(x) for x in sizes]
        return self.node("Concat", *parts, axis=0)

    def _open(self, symbol: str) -> str:
        """An open size, [1]."""
        name, axis = self._program.place_of(symbol)
        return self.node("Shape", name, start=axis, end=axis + 1)

    def name(self, kind: str) -> str:
        """A name that no other value has."""
        return f"{kind.lower()}_{next(self._count)}"


Node = Callable[[_Graph, Equation], str]


def _plain(kind: str) -> Node:
    return lambda g, e: g.node(kind, *map(g, e.operands))


def _number(x: float) -> Constant:
    return Constant(np.asarray(x, np.float64), "")


def _expm1(g: _Graph, e: Equation) -> str:
    """2 t / (1 - t), t = tanh(x / 2), near 0, where exp(x) - 1 loses digits."""
    x, one, two = g(e.operands[0]), g(_number(1)), g(_number(2))
    t = g.node("Tanh", g.node("Div", x, two))
    near = g.node("Div", g.node("Mul", two, t), g.node("Sub", one, t))
    far = g.node("Sub", g.node("Exp", x), one)
    small = g.node("Less", g.node("Abs", x), one)
    return g.node("Where", small, near, far)


def _power(g: _Graph, e: Equation) -> str:
    x, exponent = g(e.operands[0]), e.settings["y"]
    if exponent == 2:
        return g.node("Mul", x, x)
    return g.node("Pow", x, g(_number(exponent)))


def _broadcast(g: _Graph, e: Equation) -> str:
    x, shape = g(e.operands[0]), e.settings["shape"]
    new = [i for i in range(len(shape)) if i not in e.settings["axes"]]
    if new:
        x = g.node("Unsqueeze", x, g.axes(*new))
    return g.node("Expand", x, g.sizes(shape))


def _stack(g: _Graph, e: Equation) -> str:
    axis = e.settings["axis"]
    parts = [g.node("Unsqueeze", g(x), g.axes(axis)) for x in e.operands]
    return g.node("Concat", *parts, axis=axis)


def _iota(g: _Graph, e: Equation) -> str:
    shape, axis = e.settings["shape"], e.settings["axis"]
    zero, one = (g.constant(np.int64(x)) for x in (0, 1))
    size = g.node("Squeeze", g.sizes([shape[axis]]))
    x = g.node("Range", zero, size, one)
    new = [i for i in range(len(shape)) if i != axis]
    if new:
        x = g.node("Expand", g.node("Unsqueeze", x, g.axes(*new)), g.sizes(shape))
    return _as(g, x, e.kind)


def _cast(g: _Graph, x: str, kind: str) -> str:
    to = _type(kind)
    return g.node("Cast", x, to=to)


def _as(g: _Graph, x: str, kind: str) -> str:
    """Integers as numbers of a kind."""
    return x if kind == "int" else _cast(g, x, kind)


def _slice(g: _Graph, e: Equation) -> str:
    axes = [i for i, x in enumerate(e.settings["stop"]) if isinstance(x, int)]
    if not axes:
        return g.node("Identity", g(e.operands[0]))
    picked = ([e.settings[key][i] for i in axes] for key in ("start", "stop", "step"))
    starts, stops, steps = (g.axes(*x) for x in picked)
    return g.node("Slice", g(e.operands[0]), starts, stops, g.axes(*axes), steps)


def _pad(g: _Graph, e: Equation) -> str:
    x, value = map(g, e.operands)
    return g.node("Pad", x, g.axes(*e.settings["low"], *e.settings["high"]), value)


def _reduced(kind: str) -> Node:
    return lambda g, e: g.node(
        kind, g(e.operands[0]), g.axes(*e.settings["axes"]), keepdims=0
    )


def _transpose(g: _Graph, e: Equation) -> str:
    return g.node("Transpose", g(e.operands[0]), perm=list(e.settings["axes"]))


def _dot(g: _Graph, e: Equation) -> str:
    if e.is_matmul():
        return g.node("MatMul", *map(g, e.operands))
    return g.node("Einsum", *map(g, e.operands), equation=e.einsum())


_CAPITAL = ("abs", "add", "and", "cos", "div", "exp", "floor", "log", "max", "min")
_CAPITAL += ("mul", "neg", "not", "or", "pow", "relu", "sign", "sin", "sqrt", "sub")
_NAMES = {name: name.capitalize() for name in (*_CAPITAL, "tanh")}
_NAMES |= {"eq": "Equal", "gt": "Greater", "lt": "Less", "logistic": "Sigmoid"}
_NAMES |= {"ge": "GreaterOrEqual", "le": "LessOrEqual", "add_any": "Add"}
_NAMES |= {"copy": "Identity", "stop_gradient": "Identity"}
_NODES: Mapping[str, Node] = {
    **{name: _plain(kind) for name, kind in _NAMES.items()},
    "argmax": lambda g, e: g.node(
        "ArgMax", g(e.operands[0]), axis=e.settings["axes"][0], keepdims=0
    ),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda g, e: g.node(
        "Min", g.node("Max", g(e.operands[1]), g(e.operands[0])), g(e.operands[2])
    ),
    "concatenate": lambda g, e: g.node(
        "Concat", *map(g, e.operands), axis=e.settings["axis"]
    ),
    "convert_element_type": lambda g, e: _cast(g, g(e.operands[0]), e.kind),
    "dim_as_value": lambda g, e: _as(
        g, g.node("Squeeze", g.sizes([e.settings["size"]])), e.kind
    ),
    "dot_general": _dot,
    "expm1": _expm1,
    "integer_pow": _power,
    "iota": _iota,
    "is_finite": lambda g, e: g.node(
        "Not",
        g.node("Or", *(g.node(x, g(e.operands[0])) for x in ("IsInf", "IsNaN"))),
    ),
    "log1p": lambda g, e: g.node("Log", g.node("Add", g(e.operands[0]), g(_number(1)))),
    "ne": lambda g, e: g.node("Not", g.node("Equal", *map(g, e.operands))),
    "pad": _pad,
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reduce_sum": _reduced("ReduceSum"),
    "reshape": lambda g, e: g.node(
        "Reshape", g(e.operands[0]), g.sizes(e.settings["shape"])
    ),
    "rsqrt": lambda g, e: g.node("Reciprocal", g.node("Sqrt", g(e.operands[0]))),
    "select_n": lambda g, e: g.node("Where", *(g(e.operands[i]) for i in (0, 2, 1))),
    "slice": _slice,
    "square": lambda g, e: g.node("Mul", g(e.operands[0]), g(e.operands[0])),
    "squeeze": lambda g, e: g.node(
        "Squeeze", g(e.operands[0]), g.axes(*e.settings["axes"])
    ),
    "stack": _stack,
    "take": lambda g, e: g.node(
        "Gather",
        g(e.operands[0]),
        g.constant(np.int64(e.settings["index"])),
        axis=e.settings["axis"],
    ),
    "transpose": _transpose,
}
"""Elementary operation -> how ONNX does it."""
