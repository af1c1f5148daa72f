"""Formulas: their text, their instructions, and a machine that carries these out.

A formula is a list of instructions over leaves and constants, each an operation of
`OPERATIONS` on one or two of what precedes it; its value is the last one's. As text:

    0.5*d**2 + 0.1*q
    a = tanh(q); gate(d, a*d)

All operations are defined everywhere and have finite slopes. What an instruction
computes is kept within ± `BIG`, so no formula of finite inputs is NaN.

`run` carries a formula out line by line; it can be traced, differentiated and exported.
`interpret` carries out instructions that are arrays, one program for all of one length,
so that a population of formulas is compiled once. Text is read by Python's parser, and
nothing of it is executed.
"""

from __future__ import annotations

import ast
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError
from metaevo.types import Key

__all__ = [
    "BIG",
    "OPERATIONS",
    "Formula",
    "as_arrays",
    "interpret",
    "latex",
    "live",
    "mutate",
    "of_arrays",
    "parse",
    "random_instructions",
    "run",
    "text",
    "used_leaves",
]

BIG = 1e9
LARGEST_EXPONENT = 6.0
MAX_TEXT, MAX_INSTRUCTIONS, MAX_CONSTANTS = 4_000, 64, 32
MAX_PARTS = 1_000  # of a text, equal ones once


def _bounded(x):
    return jnp.clip(x, -BIG, BIG)


class Primitive(NamedTuple):
    """An operation of formulas.

    Attributes:
        apply: of two arrays; one of one argument takes no notice of the second.
        arity: 1 or 2.
    """

    apply: Callable[[Any, Any], Any]
    arity: int


OPERATIONS: Mapping[str, Primitive] = {
    "add": Primitive(lambda x, y: _bounded(x + y), 2),
    "sub": Primitive(lambda x, y: _bounded(x - y), 2),
    "mul": Primitive(lambda x, y: _bounded(x * y), 2),
    "ratio": Primitive(lambda x, y: _bounded(x * y / (y * y + 0.01)), 2),
    "max": Primitive(jnp.maximum, 2),
    "min": Primitive(jnp.minimum, 2),
    "gate": Primitive(lambda x, y: jnp.where(x > 0, y, 0.0), 2),
    "square": Primitive(lambda x, y: _bounded(x * x), 1),
    "abs": Primitive(lambda x, y: jnp.abs(x), 1),
    "tanh": Primitive(lambda x, y: jnp.tanh(x), 1),
    "exp": Primitive(
        lambda x, y: jnp.exp(jnp.clip(x, -LARGEST_EXPONENT, LARGEST_EXPONENT)), 1
    ),
    "log1p": Primitive(lambda x, y: jnp.log1p(jnp.abs(x)), 1),
}
"""Operations by name, in the order of their numbers. `ratio(x, y)` is
x y / (y² + 0.01); `gate(x, y)` is y where x > 0, else 0; `exp` is cut at e^±6; `log1p`
is that of |x|."""

NAMES = tuple(OPERATIONS)
_UNARY = np.array([one.arity == 1 for one in OPERATIONS.values()])


class Formula(NamedTuple):
    """A formula as instructions.

    Attributes:
        leaves: names of the leaves; their places are 0 to N - 1.
        constants: numbers; their places follow.
        instructions: (operation, place, place) each; their own places follow.
    """

    leaves: tuple[str, ...]
    constants: tuple[float, ...]
    instructions: tuple[tuple[str, int, int], ...]


def run(formula: Formula, constants: Any, leaves: Sequence[Any]) -> Any:
    """The value of a formula, of leaves and constants that may be traced.

    Args:
        constants: [C] in place of the formula's own.
        leaves: arrays [...], one a leaf.
    """
    shape = jnp.broadcast_shapes(*map(jnp.shape, leaves))
    places = [_bounded(x) for x in leaves]
    places += [constants[i] for i in range(len(formula.constants))]
    for operation, a, b in formula.instructions:
        places.append(OPERATIONS[operation].apply(places[a], places[b]))
    return jnp.broadcast_to(places[-1], shape)


def used_leaves(formula: Formula) -> frozenset[int]:
    """Places of the leaves that instructions take."""
    return frozenset(
        place
        for operation, *places in formula.instructions
        for place in places[: OPERATIONS[operation].arity]
        if place < len(formula.leaves)
    )


# --- a population of formulas ---------------------------------------------------------

Instructions = Mapping[str, jax.Array]
"""Instructions as arrays: `op`, `a`, `b` [L], whole numbers as float32, and
`constants` [C]."""


def interpret(instructions: Instructions, leaves: jax.Array) -> jax.Array:
    """The value of instructions, `leaves` [N, ...] -> [...]."""
    constants = instructions["constants"]
    shape = leaves.shape[1:]
    told = [
        _bounded(leaves),
        *(jnp.broadcast_to(c, (1, *shape)) for c in constants),
    ]
    first = jnp.concatenate(told)
    length = instructions["op"].shape[0]
    places = jnp.concatenate([first, jnp.zeros((length, *shape), first.dtype)])

    def step(places, now):
        operation, a, b, i = now
        x = jax.lax.dynamic_index_in_dim(places, a, 0, keepdims=False)
        y = jax.lax.dynamic_index_in_dim(places, b, 0, keepdims=False)
        value = jnp.zeros_like(x)
        for number, one in enumerate(OPERATIONS.values()):
            value = jnp.where(operation == number, one.apply(x, y), value)
        at = first.shape[0] + i
        return jax.lax.dynamic_update_index_in_dim(places, value, at, 0), None

    whole = [instructions[name].astype(jnp.int32) for name in ("op", "a", "b")]
    return jax.lax.scan(step, places, (*whole, jnp.arange(length)))[0][-1]


def live(instructions: Instructions, num_leaves: int) -> jax.Array:
    """[L] bool, the instructions that the value depends on."""
    op, a, b = (instructions[x].astype(jnp.int32) for x in ("op", "a", "b"))
    length = len(op)
    first = num_leaves + len(instructions["constants"])
    used = jnp.zeros(first + length, bool).at[-1].set(True)

    def step(i, used):
        at = length - 1 - i
        here = used[first + at]
        used = used.at[a[at]].set(used[a[at]] | here)
        second = here & ~jnp.asarray(_UNARY)[op[at]]
        return used.at[b[at]].set(used[b[at]] | second)

    return jax.lax.fori_loop(0, length, step, used)[first:]


def random_instructions(
    key: Key, length: int, num_leaves: int, constants: Sequence[float]
) -> dict[str, jax.Array]:
    """Instructions drawn at random."""
    first = num_leaves + len(constants)
    op_key, *keys = jax.random.split(key, 3)
    op = jax.random.randint(op_key, (length,), 0, len(NAMES))
    a, b = (_operands(k, jnp.arange(length), first) for k in keys)
    whole = {"op": op, "a": a, "b": b}
    found = {name: x.astype(jnp.float32) for name, x in whole.items()}
    return found | {"constants": jnp.asarray(constants, jnp.float32)}


def _operands(key: Key, at: jax.Array, first: int) -> jax.Array:
    """Places before instruction `at`: half of them leaves and constants."""
    given_key, which_key, kind_key = jax.random.split(key, 3)
    given = jax.random.randint(given_key, at.shape, 0, first)
    earlier = first + jnp.floor(jax.random.uniform(which_key, at.shape) * at)
    simple = jax.random.bernoulli(kind_key, 0.5, at.shape) | (at == 0)
    return jnp.where(simple, given, earlier.astype(jnp.int32))


def mutate(key: Key, instructions: Instructions, num_leaves: int) -> Instructions:
    """Instructions with one of them, or one constant, drawn again.

    Of a live instruction in four of five draws: its operation, its first or second
    operand, or all three. A constant is multiplied by a log-normal number, or its sign
    turns.
    """
    length, size = len(instructions["op"]), len(instructions["constants"])
    first = num_leaves + size
    keys = jax.random.split(key, 9)
    used = live(instructions, num_leaves)
    dead = jax.random.bernoulli(keys[0], 0.2)
    weight = jnp.where(dead, 1.0, used.astype(jnp.float32))
    at = jax.random.categorical(keys[1], jnp.log(weight + 1e-9))
    what = jax.random.randint(keys[2], (), 0, 5)
    here = jnp.arange(length) == at
    new = {
        "op": (jax.random.randint(keys[3], (), 0, len(NAMES)), (what == 0)),
        "a": (_operands(keys[4], at, first), (what == 1)),
        "b": (_operands(keys[5], at, first), (what == 2)),
    }
    changed = {
        name: jnp.where(
            here & (own | (what == 3)), x.astype(jnp.float32), instructions[name]
        )
        for name, (x, own) in new.items()
    }
    which = jnp.arange(size) == jax.random.randint(keys[6], (), 0, size)
    factor = jnp.exp(0.7 * jax.random.normal(keys[7]))
    factor = jnp.where(jax.random.bernoulli(keys[8], 0.15), -factor, factor)
    constants = instructions["constants"]
    constants = jnp.where(which & (what == 4), constants * factor, constants)
    return changed | {"constants": constants}


def as_arrays(
    formula: Formula, key: Key, length: int, spare: Sequence[float]
) -> dict[str, jax.Array]:
    """A formula as the last of L instructions; what precedes it is random and unused.

    Args:
        length: L.
        spare: further constants, which only random instructions use.

    Raises:
        ConfigError: the formula is longer than L.
    """
    num_leaves, num = len(formula.leaves), len(formula.instructions)
    if num > length:
        raise ConfigError(f"a formula of {num} operations; length={length} is less")
    constants = (*formula.constants, *spare)
    found = random_instructions(key, length, num_leaves, constants)
    before = num_leaves + len(formula.constants)
    moved = len(spare) + length - num

    def place(x: int) -> int:
        return x if x < before else x + moved

    at = slice(length - num, None)
    rows = [(NAMES.index(op), place(a), place(b)) for op, a, b in formula.instructions]
    for name, column in zip(("op", "a", "b"), zip(*rows, strict=True), strict=True):
        found[name] = found[name].at[at].set(jnp.asarray(column, jnp.float32))
    return found


def of_arrays(instructions: Mapping[str, np.ndarray], leaves: Sequence[str]) -> Formula:
    """The formula of concrete instructions."""
    constants = tuple(map(float, instructions["constants"]))
    rows = zip(*(instructions[x] for x in ("op", "a", "b")), strict=True)
    listed = tuple((NAMES[int(op)], int(a), int(b)) for op, a, b in rows)
    return Formula(tuple(leaves), constants, listed)


# --- parts: what is printed and read --------------------------------------------------

Part = Any  # a leaf's name, a number, or (operation, place, ...)


class _Parts:
    """The parts of a formula, equal ones once; a part's place follows its arguments'.

    Attributes:
        parts: by place.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._places: dict[Part, int] = {}

    def add(self, part: Part) -> int:
        """The place of a part."""
        kind = type(part), part  # 1 and True, 0 and -0 are not told apart otherwise
        if kind not in self._places:
            self._places[kind] = len(self.parts)
            self.parts.append(part)
        return self._places[kind]

    def number(self, place: int) -> float | None:
        """The number at a place; None if there is none."""
        part = self.parts[place]
        return part if isinstance(part, float) else None

    def operation(self, place: int) -> str | None:
        """The operation at a place; None for a leaf or a number."""
        part = self.parts[place]
        return part[0] if isinstance(part, tuple) else None

    def simple(self, operation: str, *args: int) -> int:
        """The place of an operation of simplified parts, simplified."""
        numbers = [self.number(x) for x in args]
        if None not in numbers:
            with jax.ensure_compile_time_eval():  # also where a caller is traced
                given = [jnp.float32(x) for x in (*numbers, numbers[0])[:2]]
                return self.add(float(OPERATIONS[operation].apply(*given)))
        if len(args) == 1:
            return self._simple_of_one(operation, args[0])
        (x, y), (a, b) = args, numbers
        if operation in ("max", "min") and x == y:
            return x
        if (operation == "sub" and x == y) or (
            operation in ("mul", "ratio", "gate") and 0.0 in (a, b)
        ):
            return self.add(0.0)
        if (operation in ("add", "sub") and b == 0) or (operation == "mul" and b == 1):
            return x
        if (operation == "add" and a == 0) or (operation == "mul" and a == 1):
            return y
        if operation == "gate" and a is not None:
            return y if a > 0 else self.add(0.0)
        if operation == "mul" and x == y:
            return self.add(("square", x))
        if operation == "mul" and b is not None:
            return self.add(("mul", y, x))
        return self.add((operation, x, y))

    def _simple_of_one(self, operation: str, x: int) -> int:
        inside = self.operation(x)
        if operation == "abs" and inside in ("square", "abs", "exp", "log1p"):
            return x
        if operation in ("square", "log1p") and inside == "abs":
            return self.add((operation, self.parts[x][1]))
        return self.add((operation, x))

    def used(self, root: int) -> dict[int, int]:
        """Places that a part depends on, itself too, and how often each is used."""
        counts = {root: 1}
        for place in range(root, -1, -1):
            if place in counts and isinstance(self.parts[place], tuple):
                for x in self.parts[place][1:]:
                    counts[x] = counts.get(x, 0) + 1
        return dict(sorted(counts.items()))


def _simplified(formula: Formula) -> tuple[_Parts, int]:
    """The parts of a formula, simplified, and the place of its value."""
    parts = _Parts()
    places = [parts.add(x) for x in (*formula.leaves, *formula.constants)]
    for operation, a, b in formula.instructions:
        arity = OPERATIONS[operation].arity
        places.append(parts.simple(operation, *(places[x] for x in (a, b)[:arity])))
    return parts, places[-1]


def _digits(x: float) -> str:
    """The shortest text of a float32.

    >>> _digits(0.5), _digits(float(np.float32(0.1))), _digits(3.0)
    ('0.5', '0.1', '3')
    """
    return str(np.float32(x)).removesuffix(".0")


_SIGNS = {"add": (" + ", 1), "sub": (" - ", 1), "mul": ("*", 2)}


def text(formula: Formula) -> str:
    """A formula as text, simplified; a part that is used twice gets a name.

    >>> text(parse("0.5*d**2 + max(q, q)*1", ("d", "q")))
    '0.5*d**2 + q'
    """
    parts, root = _simplified(formula)
    counts = parts.used(root)
    free = (x for x in map("x{}".format, range(1, 999)) if x not in formula.leaves)
    names: dict[int, str] = {}

    def written(place: int, at: int = 0) -> str:
        """A part within a sum (`at` 1), a product (2) or a power (4)."""
        if place in names:
            return names[place]
        part = parts.parts[place]
        if isinstance(part, str):
            return part
        if isinstance(part, float):
            return f"({_digits(part)})" if part < 0 and at else _digits(part)
        operation, *args = part
        if operation in _SIGNS:
            sign, level = _SIGNS[operation]
            found = f"{written(args[0], level)}{sign}{written(args[1], level + 1)}"
        elif operation == "square":
            found, level = f"{written(args[0], 4)}**2", 3
        else:
            return f"{operation}({', '.join(map(written, args))})"
        return f"({found})" if at > level else found

    lines = []
    for place, count in counts.items():
        if count > 1 and place != root and parts.operation(place) is not None:
            line = written(place)
            names[place] = next(free)
            lines.append(f"{names[place]} = {line}")
    return "; ".join([*lines, written(root)])


def latex(formula: Formula, symbols: Mapping[str, str] | None = None) -> str:
    """A formula as LaTeX, simplified.

    Args:
        symbols: leaf -> LaTeX.

    >>> latex(parse("d**2 + abs(q)", ("d", "q")))
    'd^2 + |q|'
    """
    parts, root = _simplified(formula)

    def written(place: int, at: int = 0) -> str:
        part = parts.parts[place]
        if isinstance(part, str):
            return (symbols or {}).get(part, part)
        if isinstance(part, float):
            return f"({_digits(part)})" if part < 0 and at else _digits(part)
        operation, *args = part
        if operation in ("add", "sub"):
            sign, level = _SIGNS[operation]
            found = f"{written(args[0], level)}{sign}{written(args[1], level + 1)}"
        elif operation == "mul":
            found, level = rf"{written(args[0], 2)} \, {written(args[1], 3)}", 2
        elif operation == "gate":
            found, level = rf"[{written(args[0])} > 0] \, {written(args[1], 3)}", 2
        elif operation == "ratio":
            top = rf"{written(args[0], 2)} \, {written(args[1], 3)}"
            found = rf"\frac{{{top}}}{{{written(args[1], 4)}^2 + 0.01}}"
            level = 3
        elif operation == "square":
            found, level = f"{written(args[0], 4)}^2", 3
        elif operation == "exp":
            found, level = f"e^{{{written(args[0])}}}", 3
        elif operation == "abs":
            return f"|{written(args[0])}|"
        elif operation == "log1p":
            return rf"\log(1 + |{written(args[0])}|)"
        else:
            return rf"\{operation}({', '.join(map(written, args))})"
        return f"({found})" if at > level else found

    return written(root)


# --- reading --------------------------------------------------------------------------

_CALLS = {name: name for name in NAMES if name not in ("add", "sub", "mul", "square")}


def parse(source: str, leaves: Sequence[str]) -> Formula:
    """The formula of a text: `0.5*d**2 + 0.1*q`, or `x1 = tanh(q); x1*d`.

    Args:
        leaves: names that the text may use.

    Raises:
        ConfigError: the text is no formula; names what is wrong.

    >>> parse("abs(d) - 1", ("d", "q")).instructions
    (('abs', 0, 0), ('sub', 3, 2))
    """
    if len(source) > MAX_TEXT:
        raise _wrong(source, f"longer than {MAX_TEXT:,} characters")
    try:
        # Nested brackets may exhaust the parser.
        body = ast.parse(source.strip(), mode="exec").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(source, "this is no expression") from None
    if not body or not isinstance(body[-1], ast.Expr):
        raise _wrong(source, "it ends without a value")
    parts = _Parts()
    scope = {name: parts.add(name) for name in leaves}
    try:
        for line in body[:-1]:
            name, value = _assigned(line, source)
            if name in scope:
                raise _wrong(source, f"{name!r} is given twice")
            scope[name] = _read(value, parts, scope, source)
        root = _read(body[-1].value, parts, scope, source)
    except RecursionError:
        raise _wrong(source, "it is nested too deep") from None
    return _compiled(parts, root, tuple(leaves), source)


def _assigned(line: ast.stmt, source: str) -> tuple[str, ast.expr]:
    if (
        not isinstance(line, ast.Assign)
        or len(line.targets) != 1
        or not isinstance(line.targets[0], ast.Name)
    ):
        raise _wrong(source, "before the last part there are only `name = ...;`")
    return line.targets[0].id, line.value


def _read(node: ast.expr, parts: _Parts, scope: Mapping[str, int], source: str) -> int:
    """The place of a syntax tree's part, of what is allowed."""
    if len(parts.parts) > MAX_PARTS:
        raise _wrong(source, f"it has more than {MAX_PARTS:,} parts")
    again = functools.partial(_read, parts=parts, scope=scope, source=source)
    if isinstance(node, ast.Name):
        if node.id not in scope:
            raise _wrong(source, f"unknown name {node.id!r}", scope)
        return scope[node.id]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number = typing.cast("float", node.value)
        return parts.add(_constant(number, source))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inside = again(node.operand)
        number = parts.number(inside)
        if number is not None:
            return parts.add(-number)
        return parts.add(("mul", parts.add(-1.0), inside))
    if isinstance(node, ast.BinOp):
        return _binary(node, again, parts, source)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in _CALLS:
            raise _wrong(source, f"unknown operation {name!r}", _CALLS)
        arity = OPERATIONS[name].arity
        if node.keywords or len(node.args) != arity:
            raise _wrong(source, f"{name} takes {arity} argument{'s' * (arity > 1)}")
        return parts.add((name, *map(again, node.args)))
    raise _wrong(source, f"{ast.unparse(node)[:40]!r} is not part of a formula")


def _binary(node: ast.BinOp, again: Callable, parts: _Parts, source: str) -> int:
    if isinstance(node.op, ast.Pow):
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        if type(power) is not int or power not in (2, 3, 4):
            raise _wrong(source, "a power is 2, 3 or 4")
        base = again(node.left)
        square = parts.add(("square", base))
        more = {2: None, 3: ("mul", square, base), 4: ("square", square)}[power]
        return square if more is None else parts.add(more)
    left, right = again(node.left), again(node.right)
    if isinstance(node.op, ast.Div):
        number = parts.number(right)
        if not number:
            raise _wrong(
                source,
                "a division by what may be 0: write ratio(x, y), x y / (y² + 0.01)",
            )
        return parts.add(("mul", parts.add(_constant(1 / number, source)), left))
    names = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
    if type(node.op) not in names:
        raise _wrong(source, f"{ast.unparse(node)[:40]!r} is not part of a formula")
    return parts.add((names[type(node.op)], left, right))


def _constant(x: float, source: str) -> float:
    if not abs(x) <= BIG:
        raise _wrong(source, f"a number beyond ±{BIG:g}")
    return float(x)


def _wrong(source: str, why: str, names: Any = ()) -> ConfigError:
    listed = f"; there are {', '.join(names)}" if names else ""
    shown = source if len(source) < 80 else f"{source[:77]}..."
    return ConfigError(f"formula {shown!r}: {why}{listed}")


def _compiled(
    parts: _Parts, root: int, leaves: tuple[str, ...], source: str
) -> Formula:
    """A part as instructions."""
    if parts.operation(root) is None:
        root = parts.add(("max", root, root))  # a leaf or a number alone
    used = parts.used(root)
    numbers = [x for x in used if parts.number(x) is not None]
    rows = [x for x in used if parts.operation(x) is not None]
    if len(rows) > MAX_INSTRUCTIONS or len(numbers) > MAX_CONSTANTS:
        raise _wrong(
            source,
            f"{len(rows)} operations and {len(numbers)} constants; at most "
            f"{MAX_INSTRUCTIONS} and {MAX_CONSTANTS}",
        )
    place = {parts.add(name): i for i, name in enumerate(leaves)}
    place |= {x: len(leaves) + i for i, x in enumerate([*numbers, *rows])}
    listed = []
    for row in rows:
        operation, *args = parts.parts[row]
        listed.append((operation, place[args[0]], place[args[-1]]))
    constants = tuple(float(parts.parts[x]) for x in numbers)
    return Formula(leaves, constants, tuple(listed))
