"""Evolved functions as one file of source code, for numpy, JAX or PyTorch.

The file needs the framework alone. It has the weights, a docstring with where they come
from, a function for each slot, and a class for an optimizer.
"""

from __future__ import annotations

import base64
import builtins
import inspect
import keyword
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from metaevo.errors import ConfigError
from metaevo.export import optimizers
from metaevo.export.dialects import JAX, NUMPY, TORCH, Dialect, expression, number
from metaevo.export.programs import RESERVED, Atom, Constant, Evolved, Program
from metaevo.learned import operations

__all__ = ["DIALECTS", "module"]

DIALECTS = {dialect.name: dialect for dialect in (JAX, TORCH, NUMPY)}
WIDTH = 88
MOST_WRITTEN = 512
"""The numbers of a larger array are written in base 64."""

MEANING = {
    "value": "what the critic says",
    "target": "the value target",
    "old_value": "what the critic said when the data was collected",
    "td_error": "target - q",
    "q": "action values",
    "action": "the action",
    "log_prob": "log probability of the action",
    "log_ratio": "log probability now, less that when the data was collected",
    "advantage": "the advantage of the action",
    "entropy": "entropy of the policy",
    "kl": "divergence of the policy from the one that collected the data",
    "clip_eps": "epsilon of PPO's clip",
    "x": "what a hidden unit gets",
    "own": "logits of the policy that the player just played",
    "other": "logits of the policy that its opponent just played",
    "obs": "the observation",
    "reward": "the environment's reward",
    "next_obs": "the observation that the action led to",
    "terminated": "1 where the episode ended, 0 elsewhere",
    "epsilon": "share of random actions",
    "age": "steps since it was complete, in shares of the buffer's capacity",
    "visits": "how often it was sampled before",
    "progress": "share of the training that is done, 0 to 1",
    "return_std": "standard deviation of the batch's value targets",
    "along": "weights of the values in the sum; ones if None",
}
"""Inputs of learned functions in a few words; others are numbers of the algorithm."""

RESULT = {
    "value_loss": "the loss, per element",
    "td_loss": "the loss, per element",
    "policy_loss": "a term of the policy's loss, per element",
    "drift": "the penalty D: minimize D - ratio * advantage",
    "shaper": "logits of the next policy",
    "correction": "the weight, where weights are truncated at 1",
    "activation": "the activation, elementwise",
    "reward": "the reward to learn from",
    "exploration": "probabilities of the actions",
    "priority": "the priority of a transition in the replay buffer",
    "rescale": "the rescaled return",
    "actor": "the action",
    "number": "the number",
}


def module(
    dialect: Dialect,
    functions: Sequence[Evolved],
    constants: Mapping[str, float],
    provenance: Sequence[str],
) -> str:
    """The source of a module.

    Args:
        functions: evolved functions and optimizers.
        constants: evolved numbers by slot.
        provenance: lines of the module's docstring: where it comes from.

    Raises:
        ConfigError: a function has an elementary operation that the framework lacks,
            or the file cannot define the slots.
    """
    _check_names(functions, constants)
    public = [name.upper() for name in constants]
    body, helpers, arrays = [], {}, _Arrays(dialect)
    for one in functions:
        if one.state:
            step = _indented(
                [
                    f"def _step({', '.join(one.value.inputs)}):",
                    '"""Return a direction of n numbers, and what is kept of them."""',
                    *_lines(dialect, one.value, arrays),
                    f"return {', '.join(map(_text, one.value.outputs))}",
                ]
            )
            parts = [step, *optimizers.parts(dialect, one)]
            helpers |= optimizers.helpers(dialect, one)
            public += optimizers.PUBLIC[dialect.name]
        else:
            parts = [_function(dialect, one, arrays)]
            public.append(one.slot)
            if dialect is NUMPY and one.gradient is not None:
                parts.append(_gradient(dialect, one, arrays))
                public.append(f"{one.slot}_gradient")
        body += parts
    text = "".join(body)
    called = {name: x for name, x in dialect.helpers.items() if f"{name}(" in text}
    helpers = called | helpers
    imports = ["from __future__ import annotations\n"]
    imports += ["import base64\n"] * arrays.packed
    if "_arrays" in helpers:
        imports.append("from collections.abc import Mapping\n")
    imports.append(dialect.imports)
    docstring = f'"""{_plain(_title(dialect, functions, constants))}\n\n'
    docstring += "".join(f"{line}\n" for line in _wrapped(provenance)) + '"""'
    numbers = [f"{name.upper()} = {number(x)}" for name, x in constants.items()]
    listed = "".join(f'    "{name}",\n' for name in sorted(public))
    head = [docstring, "\n".join(imports), f"__all__ = [\n{listed}]"]
    head += ["\n".join(numbers)] if numbers else []
    head += [f"\n{dialect.helpers['_unpacked'].strip()}\n"] if arrays.packed else []
    head += ["\n".join(arrays.written)] if arrays.written else []
    return (
        "\n\n".join(head)
        + "\n"
        + "".join(f"\n\n{text.strip()}\n" for text in (*helpers.values(), *body))
    )


def _check_names(functions: Sequence[Evolved], constants: Iterable[str]) -> None:
    """Check that a file can define the slots.

    Raises:
        ConfigError: it cannot.
    """
    kept = [one.slot for one in functions if one.state]
    if len(kept) > 1:
        raise ConfigError(
            f"slots {', '.join(kept)} are optimizers, and a file holds one; "
            "give slot=NAME"
        )
    defined = {one.slot: one.slot for one in functions if not one.state}
    for slot, name in {**defined, **{x: x.upper() for x in constants}}.items():
        taken = name in RESERVED or name == "base64" or hasattr(builtins, name)
        if taken or keyword.iskeyword(name) or not name.isidentifier():
            raise ConfigError(f"slot {slot!r} cannot be a name in the file")


def _title(dialect, functions, constants) -> str:
    names = ", ".join([*(one.slot for one in functions), *constants])
    return f"{names}: evolved with metaevo, for {dialect.title}."


def _wrapped(lines: Sequence[str]) -> list[str]:
    found = []
    for line in map(_plain, lines):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        found += textwrap.wrap(line, WIDTH, subsequent_indent=indent) or [""]
    return found


def _plain(text: str) -> str:
    """Return a line that cannot end a docstring."""
    text = " ".join(text.split("\n")) if text.strip() else ""
    shown = "".join(x for x in text if x.isprintable())
    return shown.replace("\\", "/").replace('"', "'").rstrip()


# --- functions ------------------------------------------------------------------------


def _function(dialect: Dialect, one: Evolved, arrays: _Arrays) -> str:
    """The source of one function."""
    program = one.value
    inputs = list(program.inputs)
    kind = operations.get(one.op["op"]).slot
    result = f"{RESULT.get(kind, 'the value')}, {_axes(program.outputs[0], program)}"
    lines = [_head(one.slot, inputs)]
    lines += _docstring(one, program, [f"{result}."])
    lines += _converted(program)
    lines += _lines(dialect, program, arrays)
    lines.append(f"return {_returned(program.outputs[0], program)}")
    return _decorated(dialect, lines)


def _gradient(dialect: Dialect, one: Evolved, arrays: _Arrays) -> str:
    """The source of the gradient of a function, which numpy cannot take itself."""
    program = one.gradient
    assert program is not None
    *inputs, _ = program.inputs
    lines = [_head(f"{one.slot}_gradient", [*inputs, "along=None"])]
    described = f"    {', '.join(inputs)}: as in `{one.slot}`."
    lines += [
        f'"""Return the gradient of the sum of `{one.slot}` in each input.',
        "",
        "Args:",
        *textwrap.wrap(described, WIDTH - 4, subsequent_indent=" " * 8),
        "    along: weights of the values in the sum; None: ones.",
        '"""',
        "if along is None:",
        f"    along = np.ones({_inner(program)})",
    ]
    lines += _converted(program)
    lines += _lines(dialect, program, arrays)
    outputs = [_returned(x, program) for x in program.outputs]
    lines += ["return (", *(f"    {x}," for x in outputs), ")"]
    return _decorated(dialect, lines)


def _decorated(dialect: Dialect, lines: Sequence[str]) -> str:
    above = f"{dialect.decorator}\n" if dialect.decorator else ""
    return above + _indented(lines)


def _inner(program: Program) -> str:
    """The shape of the weights of one element."""
    sizes = program.inputs["along"][1:]
    if "a" not in sizes:
        return repr(tuple(sizes))
    name = next(name for name, shape in program.inputs.items() if shape[-1:] == ("a",))
    return f"np.shape({name})[-1]"


def _docstring(one: Evolved, program: Program, returns: Sequence[str]) -> list[str]:
    operation = operations.get(one.op["op"])
    text = (inspect.getdoc(operation.build) or operation.title).split("\n\n")[0]
    settings = {key: x for key, x in one.op.items() if key not in ("op", "label")}
    lines = [*text.splitlines(), ""]
    lines += [f"{operation.title} of metaevo, settings {settings}.", "", "Args:"]
    for name, shape in program.inputs.items():
        meaning = MEANING.get(name, f"`{name}` of the algorithm")
        lines.append(f"    {name}: {meaning}, {_written(shape)}.")
    wrapped = []
    for line in map(_plain, [*lines, "", "Returns:", *(f"    {x}" for x in returns)]):
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped += textwrap.wrap(
            line, WIDTH - 4, subsequent_indent=indent + "    " * bool(indent)
        ) or [""]
    wrapped[0] = f'"""{wrapped[0]}'
    return [*wrapped, '"""']


def _written(shape: Sequence[int | str]) -> str:
    """A shape as docstrings have it: leading axes are free."""
    if not shape:
        return "a scalar"
    return f"[{', '.join(['...', *map(str, shape[1:])])}]"


def _axes(output: Atom, program: Program) -> str:
    return _written(_shape(output, program))


def _shape(output: Atom, program: Program) -> Sequence[int | str]:
    if isinstance(output, Constant):
        return output.value.shape
    found = dict(program.inputs)
    found |= {one.result: one.shape for one in program.equations}
    return found[output]


def _converted(program: Program) -> list[str]:
    """Statements that take the leading axes apart."""
    inputs = list(program.inputs)
    ranks = [len(x) - 1 if x else None for x in program.inputs.values()]
    names = ", ".join(inputs)
    ranked = f"({', '.join(map(str, ranks))}{',' * (len(ranks) == 1)})"
    if not any(x is not None for x in ranks):
        return [f"_, {names} = _inputs({ranked}, {names})"]
    return [*_call(f"shape, {names} = _inputs", [ranked, *inputs])]


def _returned(output: Atom, program: Program) -> str:
    text = _text(output)
    shape = _shape(output, program)
    if not shape or shape[0] != "n":
        return text
    rest = "".join(f", {x}" for x in shape[1:])
    return f"{text}.reshape(*shape{rest})" if rest else f"{text}.reshape(shape)"


def _text(atom: Atom) -> str:
    if isinstance(atom, Constant):
        return atom.name if atom.value.ndim else number(atom.value)
    return atom


# --- statements -----------------------------------------------------------------------


def _lines(dialect: Dialect, program: Program, arrays: _Arrays) -> list[str]:
    """The statements of a program, under the functions that they come from.

    Raises:
        ConfigError: the framework lacks an operation.
    """
    like = next(iter(program.inputs))
    lines = [*_sizes(program)]
    for constant in program.constants():
        moved = dialect.moved(constant, arrays.add(constant), like)
        lines.append(f"{constant.name} = {moved}")
    before = ""
    for one in program.equations:
        right = expression(dialect, one, like)
        if right is None:
            raise ConfigError(
                f"to={dialect.name}: {dialect.title} has no operation "
                f"{one.operation!r} here (of {one.function or 'an evolved function'}); "
                "to=stablehlo takes any"
            )
        if one.function != before:
            before = one.function
            lines.append(f"# {before}")
        if len(right) + len(one.result) + 7 > WIDTH and right.endswith(")"):
            name, _, inside = right[:-1].partition("(")
            lines += _call(f"{one.result} = {name}", [inside])
        else:
            lines.append(f"{one.result} = {right}")
    return lines


def _sizes(program: Program) -> Iterable[str]:
    """Statements that name the open sizes which a program mentions."""
    mentioned = {
        x
        for one in program.equations
        if one.operation != "reshape"
        for key in ("shape", "size")
        for x in np.atleast_1d(np.asarray(one.settings.get(key, ()), object))
    }
    for symbol in ("n", "a"):
        if symbol in mentioned:
            name, axis = next(
                (name, shape.index(symbol))
                for name, shape in program.inputs.items()
                if symbol in shape
            )
            yield f"{symbol} = {name}.shape[{axis}]"


def _head(name: str, arguments: Sequence[str]) -> str:
    """The head of a function, over several lines if it is long."""
    line = f"def {name}({', '.join(arguments)}):"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"def {name}(", *_inside(arguments), "):"])


def _call(head: str, arguments: Sequence[str]) -> list[str]:
    """A call, `head` with its targets, over several lines if it is long."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) + 4 <= WIDTH:
        return [line]
    targets, _, function = head.partition(" = ")
    lines = [f"{head}("]
    if len(head) + 5 > WIDTH:
        lines = ["(", *_inside(targets.split(", ")), f") = {function}("]
    return [*lines, *_inside(arguments), ")"]


def _inside(arguments: Sequence[str]) -> list[str]:
    """Arguments as indented lines."""
    lines = textwrap.wrap(", ".join(arguments), WIDTH - 12, break_long_words=False)
    return [f"    {x}" for x in lines]


def _indented(lines: Sequence[str]) -> str:
    head, *rest = lines
    return "\n".join([head, *(f"    {line}".rstrip() for line in rest)]) + "\n"


# --- weights --------------------------------------------------------------------------


class _Arrays:
    """The constant arrays of a module, written once each.

    Attributes:
        written: statements that define them.
        packed: True if one is in base 64.
    """

    def __init__(self, dialect: Dialect):
        self.dialect, self.packed = dialect, False
        self.written: list[str] = []
        self._names: dict[bytes, str] = {}

    def add(self, constant: Constant) -> str:
        """The name of an array; it is written down if it is new."""
        value = constant.value
        key = value.tobytes() + repr((value.shape, value.dtype)).encode()
        if key not in self._names:
            taken, name, count = set(self._names.values()), constant.name.upper(), 1
            while name in taken:
                count += 1
                name = f"{constant.name.upper()}_{count}"
            self._names[key] = name
            self.written.append(self._statement(name, value))
        return self._names[key]

    def _statement(self, name: str, value: np.ndarray) -> str:
        if value.size <= MOST_WRITTEN or value.dtype.kind != "f":
            return f"{name} = {self.dialect.array(_nested(value))}"
        self.packed = True
        packed = base64.b64encode(value.astype("<f4").tobytes()).decode()
        lines = "".join(f'    "{x}"\n' for x in textwrap.wrap(packed, WIDTH - 6))
        return f"{name} = _unpacked(\n{lines.rstrip()},\n    {value.shape},\n)"


def _nested(value: np.ndarray, depth: int = 0) -> str:
    """An array as nested lists, a few numbers a line."""
    if value.ndim == 1:
        line = f"[{', '.join(map(number, value))}]"
        if len(line) + 4 * depth + 44 <= WIDTH:
            return line
        wrapped = textwrap.wrap(line[1:-1], WIDTH - 4 * depth - 8)
        inner = "\n".join("    " * (depth + 1) + x for x in wrapped)
        return f"[\n{inner},\n{'    ' * depth}]"
    inner = "".join(f"{'    ' * (depth + 1)}{_nested(x, depth + 1)},\n" for x in value)
    return f"[\n{inner}{'    ' * depth}]"
