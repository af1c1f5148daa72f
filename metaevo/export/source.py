"""Evolved functions as one file of source code, for numpy, JAX or PyTorch.

The file needs the framework alone. It has the weights, a docstring with where they come
from, a function for each slot, and a class for an optimizer.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from metaevo import slots
from metaevo.errors import ConfigError
from metaevo.export import examples, optimizers, statements
from metaevo.export.dialects import JAX, NUMPY, TORCH, Dialect, number, tuple_of
from metaevo.export.equations import Atom, Constant, EvolvedProgram, Program
from metaevo.export.programs import RESERVED
from metaevo.learned import operations

__all__ = ["DIALECTS", "module"]

DIALECTS = {dialect.name: dialect for dialect in (JAX, TORCH, NUMPY)}

MEANING = {
    "value": "what the critic says",
    "target": "the value target",
    "old_value": "what the critic said when the data was collected",
    "q": "action values",
    "action": "the action",
    "log_prob": "log probability of the action now",
    "old_log_prob": "log probability of the action when the data was collected",
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
    "next_value": "what the critic says of the observation that followed",
    "done": "1 where the episode ended or was cut off, 0 elsewhere",
    "gamma": "the discount",
    "gae_lambda": "decay of the trace",
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
    "advantage": "the advantages",
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
    functions: Sequence[EvolvedProgram],
    constants: Mapping[str, float],
    provenance: Sequence[str],
    stem: str = "",
) -> str:
    """The source of a module.

    Args:
        functions: evolved functions and optimizers.
        constants: evolved numbers by slot.
        provenance: lines of the module's docstring: where it comes from.
        stem: name of the module, for its example; one that is no name is left out.

    Raises:
        ConfigError: a function has an elementary operation that the framework lacks,
            or the file cannot define the slots.
    """
    _check_names(functions, constants)
    public = [name.upper() for name in constants]
    body, helpers, arrays = [], {}, statements.Arrays(dialect)
    for one in functions:
        if one.state:
            step = statements.indented(
                [
                    f"def _step({', '.join(one.value.inputs)}):",
                    '"""Return a direction of n numbers, and what is kept of them."""',
                    *statements.body(dialect, one.value, arrays),
                    f"return {', '.join(map(statements.text, one.value.outputs))}",
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
    helpers = _called(dialect, text) | helpers
    imports = ["from __future__ import annotations\n"]
    imports += ["import base64\n"] * arrays.packed
    if "_arrays" in helpers:
        imports.append("from collections.abc import Mapping\n")
    if any(one.state for one in functions):
        imports.append(optimizers.IMPORTS[dialect.name])
    imports.append(dialect.imports)
    docstring = f'"""{_plain(_title(dialect, functions, constants))}\n\n'
    docstring += examples.text(dialect, functions, sorted(public), stem)
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


def _called(dialect: Dialect, text: str) -> dict[str, str]:
    """The helpers that a text calls, and those that these call, by name."""
    found: dict[str, str] = {}
    before = -1
    while before < len(found):
        before = len(found)
        for name, source in dialect.helpers.items():
            if name not in found and f"{name}(" in text:
                found[name] = source
                text += source
    return dict(sorted(found.items()))


def _check_names(functions: Sequence[EvolvedProgram], constants: Iterable[str]) -> None:
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
        found += textwrap.wrap(line, statements.WIDTH, subsequent_indent=indent) or [""]
    return found


def _plain(text: str) -> str:
    """Return a line that cannot end a docstring."""
    text = " ".join(text.split("\n")) if text.strip() else ""
    shown = "".join(x for x in text if x.isprintable())
    return shown.replace("\\", "/").replace('"', "'").rstrip()


# --- functions ------------------------------------------------------------------------


def _function(dialect: Dialect, one: EvolvedProgram, arrays: statements.Arrays) -> str:
    """The source of one function."""
    program = one.value
    inputs = list(program.inputs)
    kind = operations.get(one.op["op"]).slot
    shape = _axes(program.type_of(program.outputs[0])[1], one)
    result = f"{RESULT.get(kind, 'the value')}, {shape}"
    lines = [_head(one.slot, [f"{x}: {dialect.taken}" for x in inputs], dialect.given)]
    lines += _docstring(one, program, [f"{result}."])
    lines += _converted(dialect, one, program)
    lines += statements.body(dialect, program, arrays)
    found = _returned(program.outputs[0], one, program)
    lines.append(f"return _cast({found}, given)" if _casts(one) else f"return {found}")
    return _decorated(dialect, lines)


def _head(name: str, arguments: Sequence[str], result: str) -> str:
    """The head of a public function, an argument a line if it is long."""
    line = f"def {name}({', '.join(arguments)}) -> {result}:"
    if len(line) <= statements.WIDTH:
        return line
    return "\n".join(
        [f"def {name}(", *(f"    {x}," for x in arguments), f") -> {result}:"]
    )


def _casts(one: EvolvedProgram) -> bool:
    """True for a layer of a network, whose result has the type of its input."""
    return operations.get(one.op["op"]).slot in slots.WITHOUT_CONTEXT


def _gradient(dialect: Dialect, one: EvolvedProgram, arrays: statements.Arrays) -> str:
    """The source of the gradient of a function, which numpy cannot take itself."""
    program = one.gradient
    assert program is not None
    *inputs, _ = program.inputs
    taken = [f"{x}: {dialect.taken}" for x in inputs]
    taken.append(f"along: {dialect.taken} | None = None")
    lines = [_head(f"{one.slot}_gradient", taken, f"tuple[{dialect.given}, ...]")]
    described = f"    {', '.join(inputs)}: as in `{one.slot}`."
    lines += [
        f'"""Return the gradient of the sum of `{one.slot}` in each input.',
        "",
        "Args:",
        *textwrap.wrap(described, statements.WIDTH - 4, subsequent_indent=" " * 8),
        "    along: weights of the values in the sum; None: ones.",
        '"""',
        "if along is None:",
        f"    along = np.ones({() if _over_time(one) else _inner(program)})",
    ]
    lines += _converted(dialect, one, program)
    lines += statements.body(dialect, program, arrays)
    outputs = [
        f"np.full_like({name}, {statements.text(x)})"
        if isinstance(x, Constant) and not x.value.ndim
        else _returned(x, one, program)
        for name, x in zip(inputs, program.outputs, strict=True)
    ]
    lines += ["return (", *(f"    {x}," for x in outputs), ")"]
    return _decorated(dialect, lines)


def _decorated(dialect: Dialect, lines: Sequence[str]) -> str:
    above = f"{dialect.decorator}\n" if dialect.decorator else ""
    return above + statements.indented(lines)


def _inner(program: Program) -> str:
    """The shape of the weights of one element."""
    sizes = program.inputs["along"][1:]
    if "a" not in sizes:
        return repr(tuple(sizes))
    name = next(name for name, shape in program.inputs.items() if shape[-1:] == ("a",))
    return f"np.shape({name})[-1]"


def _docstring(
    one: EvolvedProgram, program: Program, returns: Sequence[str]
) -> list[str]:
    operation = operations.get(one.op["op"])
    text = (inspect.getdoc(operation.build) or operation.title).split("\n\n")[0]
    hidden = ("op", "label", "program", "arrays")
    settings = {key: x for key, x in one.op.items() if key not in hidden}
    lines = [*text.splitlines(), ""]
    lines += [f"{operation.title} of metaevo, settings {settings}.", "", "Args:"]
    for name, shape in program.inputs.items():
        meaning = MEANING.get(name, f"`{name}` of the algorithm")
        sizes = "of any shape: it is not read"
        if name not in _free(one):
            sizes = _axes(shape, one)
        lines.append(f"    {name}: {meaning}, {sizes}.")
    wrapped = []
    for line in map(_plain, [*lines, "", "Returns:", *(f"    {x}" for x in returns)]):
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped += textwrap.wrap(
            line, statements.WIDTH - 4, subsequent_indent=indent + "    " * bool(indent)
        ) or [""]
    wrapped[0] = f'"""{wrapped[0]}'
    return [*wrapped, '"""']


def _axes(shape: Sequence[int | str], one: EvolvedProgram) -> str:
    """A shape as docstrings have it: leading axes are free."""
    if not shape:
        return "a scalar"
    if _over_time(one):
        return "[T, ...]"
    return f"[{', '.join(['...', *map(str, shape[1:])])}]"


def _over_time(one: EvolvedProgram) -> bool:
    return operations.get(one.op["op"]).slot in slots.OVER_TIME


def _free(one: EvolvedProgram) -> frozenset[str]:
    """Inputs of any shape: the action, of a reward that does not read it."""
    single = operations.get(one.op["op"]).slot in slots.ONE_TRANSITION
    unread = single and not one.value.reads("action")
    return frozenset({"action"} if unread else ())


def _converted(dialect: Dialect, one: EvolvedProgram, program: Program) -> list[str]:
    """Statements that check the inputs and take their leading axes apart."""
    given = {x: shape for x, shape in program.inputs.items() if x not in _free(one)}
    over_time = _over_time(one)
    inner = {
        name: None if not shape else () if over_time else shape[1:]
        for name, shape in given.items()
    }
    axes = ", ".join(f'"{name}": {_sizes(x)}' for name, x in inner.items())
    function = "_rollouts" if over_time else "_inputs"
    first = "shape" if any(x is not None for x in inner.values()) else "_"
    targets = ", ".join([first, *given])
    arguments = [f'"{one.slot}"', f"{{{axes}}}", *given]
    kept = _casts(one) and "along" not in given
    lines = [f"given = {next(iter(given))}"] * kept
    lines += statements.call(f"{targets} = {function}", arguments)
    if "return_std" in given:
        m, std = dialect.module, "return_std"
        lines.append("# The deviation of one element may not be a number (n - 1 is 0).")
        lines.append(f"{std} = {m}.where({m}.isnan({std}), 0.0, {std})")
    return lines


def _sizes(axes: Sequence[int | str] | None) -> str:
    """Axes of one element as source.

    >>> _sizes(("a",)), _sizes((2, 3)), _sizes(()), _sizes(None)
    ('("a",)', '(2, 3)', '()', 'None')
    """
    if axes is None:
        return "None"
    return tuple_of([x if isinstance(x, int) else f'"{x}"' for x in axes])


def _returned(output: Atom, one: EvolvedProgram, program: Program) -> str:
    text = statements.text(output)
    _, shape = program.type_of(output)
    if not shape or shape[0] != "n":
        return text
    rest = "" if _over_time(one) else "".join(f", {x}" for x in shape[1:])
    return f"{text}.reshape(*shape{rest})" if rest else f"{text}.reshape(shape)"
