"""Elementary operations in numpy, JAX and PyTorch: one table, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.export import helpers
from metaevo.export.equations import Constant, Equation
from metaevo.portable.numpy_operations import NAMES

__all__ = ["JAX", "NUMPY", "TORCH", "Dialect", "expression", "number", "tuple_of"]


class Call(NamedTuple):
    """An equation to be written.

    Attributes:
        m: name of the module of the framework.
        x: texts of the operands.
        literal: True where an operand is a number.
        settings: of the equation.
        equation: it itself.
        like: a variable with the type and the device of all floating numbers.
    """

    m: str
    x: Sequence[str]
    literal: Sequence[bool]
    settings: Mapping[str, Any]
    equation: Equation
    like: str


Writer = Callable[[Call], str]


class Dialect(NamedTuple):
    """A framework in which functions are written.

    Attributes:
        name: `numpy`, `jax` or `torch`.
        title: its name in prose.
        module: the name of its module in the source.
        imports: lines of source.
        table: operation -> how it is written, where it differs from `_COMMON`.
        array: text of a list of numbers -> text of a constant array.
        moved: a constant, its text and `like` -> the constant where `like` is, of its
            type if it is one of floating numbers.
        helpers: source of functions that the source may call, by name.
        taken: type of an input, in annotations.
        given: type of a result.
        normal: source of an array of normal numbers, of a shape.
        decorator: line above a function; may be empty.
    """

    name: str
    title: str
    module: str
    imports: str
    table: Mapping[str, Writer]
    array: Callable[[str], str]
    moved: Callable[[Constant, str, str], str]
    helpers: Mapping[str, str]
    taken: str
    given: str
    normal: str
    decorator: str = ""


def number(x: Any) -> str:
    """A number as text, as short as float32 allows, or of twelve digits.

    >>> number(np.float32(0.3)), number(1 / 3), number(True), number(-np.inf)
    ('0.3', '0.333333333333', 'True', '-float("inf")')
    """
    x = np.asarray(x).item()
    if not isinstance(x, float):
        return repr(x)
    if math.isfinite(x):
        single = np.float32(x)
        return repr(float(str(single) if float(single) == x else f"{x:.12g}"))
    return 'float("nan")' if math.isnan(x) else f'{"-" * (x < 0)}float("inf")'


def tuple_of(items: Sequence[int | str]) -> str:
    """A tuple as text, of expressions.

    >>> tuple_of(["n", 3]), tuple_of([4]), tuple_of([])
    ('(n, 3)', '(4,)', '()')
    """
    return f"({', '.join(map(str, items))}{',' * (len(items) == 1)})"


def expression(dialect: Dialect, equation: Equation, like: str) -> str | None:
    """The right side of an assignment; None if the dialect cannot say it.

    Args:
        like: a variable with the type and the device of all floating numbers.
    """
    writer = dialect.table.get(equation.operation, _COMMON.get(equation.operation))
    if writer is None:
        return None
    texts = [
        x if isinstance(x, str) else number(x.value) if not x.value.ndim else x.name
        for x in equation.operands
    ]
    literal = [isinstance(x, Constant) and not x.value.ndim for x in equation.operands]
    return writer(
        Call(dialect.module, texts, literal, equation.settings, equation, like)
    )


# --- what all have --------------------------------------------------------------------


def _infix(symbol: str) -> Writer:
    def write(c: Call) -> str:
        left, right = (f"({x})" if x.startswith("-") else x for x in c.x)
        return f"{left} {symbol} {right}"

    return write


def _called(name: str) -> Writer:
    return lambda c: f"{c.m}.{name}({', '.join(c.x)})"


def _method(name: str, key: str) -> Writer:
    def write(c: Call) -> str:
        axes = c.settings[key]
        return f"{c.x[0]}.{name}({tuple_of(axes) if len(axes) > 1 else axes[0]})"

    return write


def _reshape(c: Call) -> str:
    sizes = c.settings["shape"]
    if sum(isinstance(x, str) for x in sizes) == 1:
        sizes = [-1 if isinstance(x, str) else x for x in sizes]
    return f"{c.x[0]}.reshape({', '.join(map(str, sizes))})"


def _squeeze(c: Call) -> str:
    rank = len(c.equation.given[0])
    axes = [axis % rank for axis in c.settings["axes"]]
    return _indexed(c.x[0], ["0" if i in axes else ":" for i in range(rank)])


def _slice(c: Call) -> str:
    names = ("start", "stop", "step")
    parts = []
    for axis, (start, stop, step) in enumerate(
        zip(*(c.settings[name] for name in names), strict=True)
    ):
        whole = stop == c.equation.given[0][axis]
        text = f"{start or ''}:{'' if whole else stop}"
        parts.append(text if step == 1 else f"{text}:{step}")
    return _indexed(c.x[0], parts)


def _take(c: Call) -> str:
    axis, index = c.settings["axis"], c.settings["index"]
    return _indexed(c.x[0], [":"] * axis + [str(index)])


def _indexed(x: str, parts: Sequence[str]) -> str:
    parts = list(parts)
    while parts and parts[-1] == ":":
        parts.pop()
    return f"{x}[{', '.join(parts)}]" if parts else x


def _broadcast(c: Call) -> str:
    shape, axes = c.settings["shape"], c.settings["axes"]
    x, given = c.x[0], c.equation.given[0]
    if axes:
        behind = range(axes[0], len(shape))
        x = _indexed(x, [":" if i in axes else "None" for i in behind])
    reached = [given[axes.index(i)] if i in axes else 1 for i in range(len(shape))]
    if axes and axes[0] == 0 and reached == list(shape):
        return x
    return f"{c.m}.broadcast_to({x}, {tuple_of(shape)})"


def _full(device: str = "") -> Writer:
    def write(c: Call) -> str:
        if not c.literal[0]:
            return _broadcast(c)
        shape = tuple_of(c.settings["shape"])
        dtype = f", dtype={c.like}.dtype" if c.equation.kind == "float" else ""
        return f"{c.m}.full({shape}, {c.x[0]}{dtype}{device.format(c.like)})"

    return write


def _dot(c: Call) -> str:
    if c.equation.is_matmul():
        return f"{c.x[0]} @ {c.x[1]}"
    return f'{c.m}.einsum("{c.equation.einsum()}", {", ".join(c.x)})'


def _select(convert: Writer) -> Writer:
    def write(c: Call) -> str:
        which, off, on = c.x
        text = f"{c.m}.where({which}, {on}, {off})"
        if all(c.literal[1:]) and c.equation.kind == "float":
            return convert(c._replace(x=[text]))
        return text

    return write


def _many(name: str) -> Writer:
    return lambda c: f"{c.m}.{name}([{', '.join(c.x)}], {c.settings['axis']})"


def _stack(c: Call) -> str:
    if len(c.x) > 1:
        return _many("stack")(c)
    return _indexed(c.x[0], [*[":"] * c.settings["axis"], "None"])


def _iota(c: Call) -> str:
    return _spread(c, f"{c.m}.arange({c.settings['shape'][c.settings['axis']]})")


def _spread(c: Call, along: str) -> str:
    shape, axis = c.settings["shape"], c.settings["axis"]
    if len(shape) == 1:
        return along
    parts = [":" if i == axis else "None" for i in range(len(shape))]
    return f"{c.m}.broadcast_to({along}[{', '.join(parts)}], {tuple_of(shape)})"


_INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
_INFIX |= {"eq": "==", "ne": "!=", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_INFIX |= {"and": "&", "or": "|"}

_COMMON: dict[str, Writer] = {
    **{operation: _called(name) for operation, name in NAMES.items()},
    **{name: _infix(symbol) for name, symbol in _INFIX.items()},
    "argmax": _method("argmax", "axes"),
    "broadcast_in_dim": _full(),
    "concatenate": _many("concatenate"),
    "dim_as_value": lambda c: str(c.settings["size"]),
    "dot_general": _dot,
    "integer_pow": lambda c: f"{c.x[0]} ** {c.settings['y']}",
    "iota": _iota,
    "neg": lambda c: f"-{c.x[0]}",
    "not": lambda c: f"~{c.x[0]}",
    "reduce_max": _method("max", "axes"),
    "reduce_min": _method("min", "axes"),
    "reduce_sum": _method("sum", "axes"),
    "reshape": _reshape,
    "rsqrt": lambda c: f"1 / {c.m}.sqrt({c.x[0]})",
    "slice": _slice,
    "squeeze": _squeeze,
    "stack": _stack,
    "take": _take,
    "transpose": _method("transpose", "axes"),
}


def _as_array(module: str):
    def moved(constant: Constant, text: str, like: str) -> str:
        if constant.value.dtype.kind != "f":
            return text
        if module == "np":
            return f"{text}.astype({like}.dtype)"
        return f"jnp.asarray({text}, {like}.dtype)"

    return moved


def _as_tensor(constant: Constant, text: str, like: str) -> str:
    floating = constant.value.dtype.kind == "f"
    return f"{text}.to({like})" if floating else f"{text}.to({like}.device)"


def _tensor(numbers: str) -> str:
    # In double precision: a type is taken from the inputs later.
    truth = "True" in numbers or "False" in numbers
    floating = not truth and ("." in numbers or "e" in numbers)
    return f"torch.tensor({numbers}{', dtype=torch.float64' * floating})"


def _converted(name: str, types: Mapping[str, str]) -> Writer:
    def write(c: Call) -> str:
        to = types.get(c.equation.kind, f"{c.like}.dtype")
        return f"{c.x[0]}.{name}({to})"

    return write


def _bounded(c: Call) -> str:
    low, x, high = c.x
    return f"{c.m}.clip({x}, {low}, {high})"


def _clamped(c: Call) -> str:
    return f"_clamp({', '.join(c.x)})"


def _padded(c: Call) -> str:
    low, high = c.settings["low"], c.settings["high"]
    around = ", ".join(f"({i}, {j})" for i, j in zip(low, high, strict=True))
    return f"{c.m}.pad({c.x[0]}, ({around},), constant_values={c.x[1]})"


# --- where they differ ----------------------------------------------------------------

_to_array = _converted("astype", {"bool": "bool", "int": "int"})
_to_tensor = _converted("to", {"bool": "torch.bool", "int": "torch.int64"})

_ARRAYS: dict[str, Writer] = {
    "clamp": _bounded,
    "convert_element_type": _to_array,
    "pad": _padded,
    "select_n": _select(_to_array),
}


def _torch_bound(side: str) -> Writer:
    """`max` and `min`: of two tensors, or of one and a number."""

    def write(c: Call) -> str:
        if not any(c.literal):
            return f"torch.{side}imum({', '.join(c.x)})"
        bound, x = c.x if c.literal[0] else c.x[::-1]
        return f"_{side}({x}, {bound})"

    return write


def _torch_pad(c: Call) -> str:
    low, high = c.settings["low"], c.settings["high"]
    around = [str(x) for pair in zip(low[::-1], high[::-1], strict=True) for x in pair]
    return f"torch.nn.functional.pad({c.x[0]}, ({', '.join(around)}), value={c.x[1]})"


NUMPY = Dialect(
    name="numpy",
    title="numpy",
    module="np",
    imports="import numpy as np\nfrom numpy.typing import ArrayLike",
    table=_ARRAYS
    | {
        "logistic": lambda c: f"0.5 * (np.tanh(0.5 * {c.x[0]}) + 1)",
        "relu": lambda c: f"np.maximum({c.x[0]}, 0.0)",
        "stop_gradient": lambda c: c.x[0],
    },
    array=lambda numbers: f"np.array({numbers})",
    moved=_as_array("np"),
    helpers=helpers.NUMPY,
    taken="ArrayLike",
    given="np.ndarray",
    normal="rng.normal(size={})",
    decorator='@np.errstate(all="ignore")',
)

JAX = Dialect(
    name="jax",
    title="JAX",
    module="jnp",
    imports="import jax\nimport jax.numpy as jnp\nimport numpy as np",
    table=_ARRAYS
    | {
        "clamp": _clamped,
        "logistic": lambda c: f"jax.nn.sigmoid({c.x[0]})",
        "relu": lambda c: f"jax.nn.relu({c.x[0]})",
        "stop_gradient": lambda c: f"jax.lax.stop_gradient({c.x[0]})",
    },
    array=lambda numbers: f"np.array({numbers})",
    moved=_as_array("jnp"),
    helpers=helpers.JAX,
    taken="jax.typing.ArrayLike",
    given="jax.Array",
    normal="jax.random.normal(key, {})",
)

TORCH = Dialect(
    name="torch",
    title="PyTorch",
    module="torch",
    imports="import torch",
    table={
        # The derivative at 0 is 1, as in JAX.
        "abs": lambda c: "torch.where({0} >= 0, {0}, -{0})".format(*c.x),
        "broadcast_in_dim": _full(", device={}.device"),
        "clamp": _clamped,
        "concatenate": _many("cat"),
        "convert_element_type": _to_tensor,
        "iota": lambda c: _spread(
            c,
            f"torch.arange({c.settings['shape'][c.settings['axis']]}, "
            f"device={c.like}.device)",
        ),
        "logistic": _called("sigmoid"),
        "max": _torch_bound("max"),
        "min": _torch_bound("min"),
        "pad": _torch_pad,
        "reduce_max": _method("amax", "axes"),
        "reduce_min": _method("amin", "axes"),
        "relu": _called("relu"),
        "select_n": _select(_to_tensor),
        "stop_gradient": lambda c: f"{c.x[0]}.detach()",
        "transpose": _method("permute", "axes"),
    },
    array=_tensor,
    moved=_as_tensor,
    helpers=helpers.TORCH,
    taken="torch.Tensor | float",
    given="torch.Tensor",
    normal="torch.randn{}",
)
