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
    "simplified",
    "text",
    "used_leaves",
]

BIG = 1e9
LARGEST_EXPONENT = 6.0
MAX_TEXT, MAX_INSTRUCTIONS, MAX_CONSTANTS = 4_000, 64, 32
MAX_TREE = 100_000  # of parts, where each use of a name counts as all of what it names


def _bounded(x):
    return jnp.clip(x, -BIG, BIG)


class Primitive(NamedTuple):
    """An operation of formulas.

    Attributes:
        apply: of two arrays; one of one argument takes no notice of the second.
        arity: 1 or 2.
        latex: a template of its arguments.
    """

    apply: Callable[[Any, Any], Any]
    arity: int
    latex: str


OPERATIONS: Mapping[str, Primitive] = {
    "add": Primitive(lambda x, y: _bounded(x + y), 2, "{0} + {1}"),
    "sub": Primitive(lambda x, y: _bounded(x - y), 2, "{0} - {1}"),
    "mul": Primitive(lambda x, y: _bounded(x * y), 2, "{0} \\, {1}"),
    "ratio": Primitive(
        lambda x, y: _bounded(x * y / (y * y + 0.01)),
        2,
        "\\frac{{{0} \\, {1}}}{{{1}^2 + 0.01}}",
    ),
    "max": Primitive(jnp.maximum, 2, "\\max({0}, {1})"),
    "min": Primitive(jnp.minimum, 2, "\\min({0}, {1})"),
    "gate": Primitive(lambda x, y: jnp.where(x > 0, y, 0.0), 2, "[{0} > 0] \\, {1}"),
    "square": Primitive(lambda x, y: _bounded(x * x), 1, "{0}^2"),
    "abs": Primitive(lambda x, y: jnp.abs(x), 1, "|{0}|"),
    "tanh": Primitive(lambda x, y: jnp.tanh(x), 1, "\\tanh({0})"),
    "exp": Primitive(
        lambda x, y: jnp.exp(jnp.clip(x, -LARGEST_EXPONENT, LARGEST_EXPONENT)),
        1,
        "e^{{{0}}}",
    ),
    "log1p": Primitive(lambda x, y: jnp.log1p(jnp.abs(x)), 1, "\\log(1 + |{0}|)"),
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


# --- trees: what is printed -----------------------------------------------------------

Tree = Any
"""A leaf's name, a number, or (operation, Tree, ...)."""


def _tree(formula: Formula) -> Tree:
    """The formula as a tree, simplified; equal parts are the same object."""
    places: list[Tree] = [*formula.leaves, *formula.constants]
    known: dict[Tree, Tree] = {}
    for operation, a, b in formula.instructions:
        arity = OPERATIONS[operation].arity
        one = _simple(operation, *(places[x] for x in (a, b)[:arity]))
        places.append(known.setdefault(one, one))
    return places[-1]


def _number(x: Tree) -> bool:
    return isinstance(x, float)


def _simple(operation: str, *args: Tree) -> Tree:
    """An operation of simplified trees, simplified."""
    if all(map(_number, args)):
        with jax.ensure_compile_time_eval():  # also where a caller is traced
            numbers = map(jnp.float32, (*args, args[0])[:2])
            return float(OPERATIONS[operation].apply(*numbers))
    x, y = (*args, args[0])[:2]
    if operation in ("max", "min") and x == y:
        return x
    if operation == "sub" and x == y:
        return 0.0
    if operation == "add" and 0.0 in args:
        return y if x == 0.0 else x
    if operation == "sub" and y == 0.0:
        return x
    if operation in ("mul", "ratio", "gate") and 0.0 in args:
        return 0.0
    if operation == "mul" and 1.0 in args:
        return y if x == 1.0 else x
    if operation == "gate" and _number(x):
        return y if x > 0 else 0.0
    if operation == "mul" and x == y:
        return ("square", x)
    nonnegative = isinstance(x, tuple) and x[0] in ("square", "abs", "exp", "log1p")
    if operation == "abs" and nonnegative:
        return x
    if operation in ("square", "log1p") and isinstance(x, tuple) and x[0] == "abs":
        return (operation, x[1])
    if operation == "mul" and _number(y):
        return ("mul", y, x)
    return (operation, *args)


def _uses(tree: Tree, counts: dict[Tree, int]) -> dict[Tree, int]:
    """How often each part of a tree is used, parts of it counted once."""
    if isinstance(tree, tuple):
        counts[tree] = counts.get(tree, 0) + 1
        if counts[tree] == 1:
            for one in tree[1:]:
                _uses(one, counts)
    return counts


def _digits(x: float) -> str:
    """The shortest text of a float32.

    >>> _digits(0.5), _digits(float(np.float32(0.1))), _digits(3.0)
    ('0.5', '0.1', '3')
    """
    short = str(np.float32(x))
    return short.removesuffix(".0")


def _written(tree: Tree, names: Mapping[Tree, str], at: int = 0) -> str:
    """A tree as text, within a sum (`at` 1), a product (2) or a power (4)."""
    if tree in names and isinstance(tree, tuple):
        return names[tree]
    if not isinstance(tree, tuple):
        if isinstance(tree, str):
            return tree
        number = _digits(tree)
        return f"({number})" if tree < 0 and at else number
    operation, *args = tree
    symbol = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2)}.get(operation)
    if symbol is not None:
        sign, level = symbol
        left = _written(args[0], names, level)
        right = _written(args[1], names, level + (operation != "add"))
        space = " " if level == 1 else ""
        found = f"{left}{space}{sign}{space}{right}"
        return f"({found})" if at > level else found
    if operation == "square":
        return f"{_written(args[0], names, 4)}**2"
    return f"{operation}({', '.join(_written(x, names) for x in args)})"


def text(formula: Formula) -> str:
    """A formula as text, simplified; a part that is used twice gets a name.

    >>> text(parse("0.5*d*d + max(q, q)*1", ("d", "q")))
    '0.5*d**2 + q'
    """
    return _text(_tree(formula), formula.leaves)


def _text(tree: Tree, leaves: Sequence[str]) -> str:
    names: dict[Tree, str] = {}
    letters = (x for x in map("x{}".format, range(1, 99)) if x not in leaves)
    shared = [one for one, n in _uses(tree, {}).items() if n > 1 and one != tree]
    shared.sort(key=_depth)
    lines = []
    for one in shared:
        name = next(letters)
        lines.append(f"{name} = {_written(one, names)}")
        names[one] = name
    return "; ".join([*lines, _written(tree, names)])


def _depth(tree: Tree) -> int:
    return 1 + max(map(_depth, tree[1:])) if isinstance(tree, tuple) else 0


def latex(formula: Formula, symbols: Mapping[str, str] | None = None) -> str:
    """A formula as LaTeX, simplified.

    Args:
        symbols: leaf -> LaTeX.

    >>> latex(parse("0.5*d**2 + tanh(q)", ("d", "q")), {"d": "\\\\delta"})
    '0.5 \\\\, \\\\delta^2 + \\\\tanh(q)'
    """

    def written(tree: Tree, at: int = 0) -> str:
        if isinstance(tree, str):
            return (symbols or {}).get(tree, tree)
        if not isinstance(tree, tuple):
            return f"({_digits(tree)})" if tree < 0 and at else _digits(tree)
        operation, *args = tree
        level = {"add": 1, "sub": 1, "mul": 2, "ratio": 2, "gate": 2, "square": 3}
        here = level.get(operation, 0)
        inside = [
            written(x, here + (operation == "sub" and i)) for i, x in enumerate(args)
        ]
        found = OPERATIONS[operation].latex.format(*inside)
        loose = here in (1, 2, 3) and operation != "ratio"
        return f"({found})" if loose and at and at > here - (at == 3) else found

    return written(_tree(formula))


def simplified(formula: Formula) -> Formula:
    """The formula of `text`: without what is not used, and shorter where it can be."""
    return parse(text(formula), formula.leaves)


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
    scope: dict[str, Tree] = {name: name for name in leaves}
    sizes = dict.fromkeys(leaves, 1)
    try:
        for line in body:
            sizes[""] = _size(line, sizes)
            if sizes[""] > MAX_TREE:
                raise _wrong(source, "it is too large with its names written out")
            if isinstance(line, ast.Expr) and line is body[-1]:
                break
            name, value = _assigned(line, source)
            if name in scope:
                raise _wrong(source, f"{name!r} is given twice")
            sizes[name] = sizes[""]
            scope[name] = _read(value, scope, source)
        tree = _read(body[-1].value, scope, source)  # an Expr, see above
    except RecursionError:
        raise _wrong(source, "it is nested too deep") from None
    return _compiled(tree, tuple(leaves), source)


def _size(line: ast.stmt, sizes: Mapping[str, int]) -> int:
    """The parts of a line with its names written out; a power counts its base twice."""
    found = 0
    for node in ast.walk(line):
        times = 2 if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else 1
        one = sizes.get(node.id, 1) if isinstance(node, ast.Name) else 1
        found = (found + one) * times if times == 2 else found + one
    return found


def _assigned(line: ast.stmt, source: str) -> tuple[str, ast.expr]:
    if (
        not isinstance(line, ast.Assign)
        or len(line.targets) != 1
        or not isinstance(line.targets[0], ast.Name)
    ):
        raise _wrong(source, "before the last part there are only `name = ...;`")
    return line.targets[0].id, line.value


def _read(node: ast.expr, scope: Mapping[str, Tree], source: str) -> Tree:
    """The tree of a syntax tree, of what is allowed."""
    again = functools.partial(_read, scope=scope, source=source)
    if isinstance(node, ast.Name):
        if node.id not in scope:
            raise _wrong(source, f"unknown name {node.id!r}", scope)
        return scope[node.id]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _constant(typing.cast("float", node.value), source)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inside = again(node.operand)
        return -inside if _number(inside) else ("mul", -1.0, inside)
    if isinstance(node, ast.BinOp):
        return _binary(node, again, source)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in _CALLS:
            raise _wrong(source, f"unknown operation {name!r}", _CALLS)
        arity = OPERATIONS[name].arity
        if node.keywords or len(node.args) != arity:
            raise _wrong(source, f"{name} takes {arity} argument{'s' * (arity > 1)}")
        return (name, *map(again, node.args))
    raise _wrong(source, f"{ast.unparse(node)[:40]!r} is not part of a formula")


def _binary(node: ast.BinOp, again: Callable, source: str) -> Tree:
    if isinstance(node.op, ast.Pow):
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        if type(power) is not int or power not in (2, 3, 4):
            raise _wrong(source, "a power is 2, 3 or 4")
        base = again(node.left)
        square = ("square", base)
        return {2: square, 3: ("mul", square, base), 4: ("square", square)}[power]
    left, right = again(node.left), again(node.right)
    if isinstance(node.op, ast.Div):
        if not _number(right) or right == 0:
            raise _wrong(
                source,
                "a division by what may be 0: write ratio(x, y), x y / (y² + 0.01)",
            )
        return ("mul", _constant(1 / right, source), left)
    names = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
    if type(node.op) not in names:
        raise _wrong(source, f"{ast.unparse(node)[:40]!r} is not part of a formula")
    return (names[type(node.op)], left, right)


def _constant(x: float, source: str) -> float:
    if not abs(x) <= BIG:
        raise _wrong(source, f"a number beyond ±{BIG:g}")
    return float(x)


def _wrong(source: str, why: str, names: Any = ()) -> ConfigError:
    listed = f"; there are {', '.join(names)}" if names else ""
    shown = source if len(source) < 80 else f"{source[:77]}..."
    return ConfigError(f"formula {shown!r}: {why}{listed}")


def _compiled(tree: Tree, leaves: tuple[str, ...], source: str) -> Formula:
    """A tree as instructions, equal parts once."""
    constants: list[float] = []
    rows: list[tuple[str, Any, Any]] = []
    known: dict[Tree, Any] = {}

    def place(one: Tree) -> tuple[str, int]:
        if isinstance(one, str):
            return "leaf", leaves.index(one)
        if _number(one):
            if one not in constants:
                constants.append(one)
            return "constant", constants.index(one)
        if one not in known:
            args = [place(x) for x in one[1:]]
            rows.append((one[0], args[0], args[-1]))
            known[one] = "row", len(rows) - 1
        return known[one]

    if not isinstance(tree, tuple):
        tree = ("max", tree, tree)  # a leaf or a number alone
    place(tree)
    if len(rows) > MAX_INSTRUCTIONS or len(constants) > MAX_CONSTANTS:
        raise _wrong(
            source,
            f"{len(rows)} operations and {len(constants)} constants; at most "
            f"{MAX_INSTRUCTIONS} and {MAX_CONSTANTS}",
        )
    start = {"leaf": 0, "constant": len(leaves)}
    start["row"] = len(leaves) + len(constants)
    numbered = tuple((op, start[a[0]] + a[1], start[b[0]] + b[1]) for op, a, b in rows)
    return Formula(leaves, tuple(constants), numbered)
