"""The call example at the top of an exported file: a doctest, so that it runs."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence

from metaevo import slots
from metaevo.export.dialects import TORCH, Dialect, tuple_of
from metaevo.export.equations import EvolvedProgram
from metaevo.export.programs import RESERVED
from metaevo.learned import operations

__all__ = ["text"]

ELEMENTS, STEPS, TRAJECTORIES, ACTIONS = 32, 16, 8, 4
# Inputs that are no normal numbers.
_NUMBERS: Mapping[str, str] = {
    "action": "0",
    "age": "0.5",
    "visits": "1.0",
    "terminated": "0.0",
    "done": "0.0",
    "clip_eps": "0.2",
    "entropy": "1.3",
    "epsilon": "0.1",
    "progress": "0.5",
    "return_std": "1.0",
    "gamma": "0.99",
    "gae_lambda": "0.95",
    "leak": "0.0",
}
_RANDOM = {"np": "rng = np.random.default_rng(0)", "jnp": "key = jax.random.key(0)"}
_WIDTH = 84


def text(
    dialect: Dialect,
    functions: Sequence[EvolvedProgram],
    public: Sequence[str],
    stem: str,
) -> str:
    """Lines of the docstring of a module.

    Args:
        functions: evolved functions and optimizers.
        public: names that the module defines.
        stem: the module's name; without one its import is left out.
    """
    lines = []
    named = stem.isidentifier() and not keyword.iskeyword(stem)
    if named and stem not in RESERVED:
        names = ", ".join(public)
        line = f"from {stem} import {names}"
        lines.append(line if len(line) <= _WIDTH - 4 else f"from {stem} import *")
    if functions:
        first = "import jax" if dialect.module == "jnp" else dialect.imports
        lines.insert(0, first.splitlines()[0])
    for one in functions:
        lines += (_optimizer if one.state else _function)(dialect, one, public)
    shown = [f"    {x.removeprefix(_SAID)}" if x.startswith(_SAID) else f"    >>> {x}"
             for x in lines]  # fmt: skip
    shown = [x.replace("\n", "\n    ... ") for x in shown]
    return "".join(f"{x}\n" for x in ["Example:", *shown, ""]) if lines else ""


_SAID = "= "  # begins a line that is printed


def _function(
    dialect: Dialect, one: EvolvedProgram, public: Sequence[str]
) -> Iterator[str]:
    """Statements that call a function."""
    kind = operations.get(one.op["op"]).slot
    arrays: dict[tuple, list[str]] = {}
    arguments = {}
    for name, shape in one.value.inputs.items():
        plain = len(shape) == 1 + _over_time(kind)
        if not shape or (plain and (name in _NUMBERS or name in public)):
            arguments[name] = _NUMBERS.get(name, "1.0")
        else:
            arrays.setdefault(_concrete(shape, kind), []).append(name)
            arguments[name] = name
    if "return_std" in arguments and "target" in arguments:
        last = "correction=0" if dialect is TORCH else ""
        arguments["return_std"] = f"target.std({last})"
    if arrays and dialect.module in _RANDOM:
        yield _RANDOM[dialect.module]
    for shape, names in arrays.items():
        several = (len(names), *shape) if len(names) > 1 else shape
        normal = dialect.normal.format(tuple_of(several))
        line = f"{', '.join(names)} = {normal}"
        if len(line) > _WIDTH - 8:
            line = line.replace("(", "(\n    ", 1)
        yield line
    positional = list(one.given)
    given = [
        arguments[x] if x in positional else f"{x}={arguments[x]}" for x in arguments
    ]
    yield _call(f"result = {one.slot}", given)
    yield "tuple(result.shape)"
    _, open_axes = one.value.type_of(one.value.outputs[0])
    yield f"{_SAID}{tuple_of(_concrete(open_axes, kind))}"


def _over_time(kind: str) -> bool:
    return kind in slots.OVER_TIME


def _concrete(shape: Sequence[int | str], kind: str) -> tuple[int, ...]:
    sizes = {"n": ELEMENTS, "a": ACTIONS}
    if _over_time(kind):
        sizes = {"n": STEPS, "a": TRAJECTORIES}
    return tuple(sizes[x] if isinstance(x, str) else x for x in shape)


def _call(head: str, arguments: Sequence[str]) -> str:
    """A call, over several lines if it is long."""
    lines = [f"{head}("]
    for i, x in enumerate(arguments):
        part = x + ("," if i < len(arguments) - 1 else ")")
        if len(lines[-1]) + len(part) + 1 > _WIDTH - 8:
            lines.append("    ")
        space = " " * (lines[-1].strip() != "" and not lines[-1].endswith("("))
        lines[-1] += space + part
    return "\n".join(lines)


def _optimizer(
    dialect: Dialect, one: EvolvedProgram, public: Sequence[str]
) -> Iterator[str]:
    """Statements that do a step of an optimizer."""
    del public
    if dialect is TORCH:
        yield "model = torch.nn.Linear(4, 2)"
        yield "optimizer = Evolved(model.parameters(), lr=1e-3)"
        yield "model(torch.randn(8, 4)).square().mean().backward()"
        if "progress" in one.value.inputs:
            yield "optimizer.progress = 0.5"
        yield "optimizer.step()"
        return
    m = dialect.module
    if m == "jnp":
        yield "import jax.numpy as jnp"
    yield f'params = {{"w": {m}.ones((4, 2)), "b": {m}.zeros(2)}}'
    yield "gradient = params"
    yield "state = optimizer_init(params)"
    more = ["progress=0.5"] if "progress" in one.value.inputs else []
    given = ["gradient", "state", "params", *more]
    yield _call("direction, state = optimizer_update", given)
    yield 'direction["w"].shape'
    yield f"{_SAID}(4, 2)"
