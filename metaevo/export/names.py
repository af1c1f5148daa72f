"""Names of the intermediate values of an exported function, from its own source.

JAX records the lines that each equation comes from. The value of a statement
`inside = jnp.clip(x, -limit, limit)` is then called `inside`, and that of a `return`
after its function.
"""

from __future__ import annotations

import ast
import functools
import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from metaevo.portable import running

__all__ = ["Origin", "distinct", "identifier", "origin"]

_JAX = str(Path(jax.__file__).parent)
# Carries out stored programs, whose source is not known.
_STORED = str(Path(running.__file__))
# Their values are called after the function around them.
_GENERIC = ("apply", "at", "one", "update", "<")


class Origin(NamedTuple):
    """The place in the source that an equation comes from.

    Attributes:
        function: module and function, such as `losses.clipped_square`; may be empty.
        name: the variable that the statement assigns, or the function's name.
    """

    function: str
    name: str


def origin(equation: Any, calls: tuple) -> Origin:
    """The origin of an equation of a jaxpr.

    Args:
        calls: the equations that it is inside of, outermost first.
    """
    # A jitted part may have been traced earlier, from elsewhere.
    traceback = (calls[0] if calls else equation).source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name == _STORED:
            break
        if not frame.file_name.startswith(_JAX):
            function, *inner = frame.function_name.split(".<locals>.")
            if inner and not inner[-1].startswith(_GENERIC):
                function = inner[-1]
            if function.startswith("<"):
                function = "value"
            function = identifier(function.rpartition(".")[2])
            assigned = _targets(frame.file_name).get(frame.line_num, function)
            module = Path(frame.file_name).stem
            return Origin(f"{module}.{function}", identifier(assigned))
    return Origin("", equation.primitive.name)


@functools.cache
def _targets(file: str) -> Mapping[int, str]:
    """Line -> the one variable that the statement on it assigns; {} if unreadable."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found |= dict.fromkeys(lines, node.targets[0].id)
    return found


def identifier(text: str) -> str:
    """A lower-case Python name like `text`.

    >>> identifier("params/Dense_0/kernel"), identifier("_curve"), identifier("2x")
    ('dense_0_kernel', 'curve', 'x_2x')
    """
    text = text.removeprefix("params/")
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "x"
    if name[0].isdigit() or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return f"x_{name}"
    return name


def distinct(name: str, taken: Iterable[str]) -> str:
    """`name`, or `name_2`, `name_3` ... if it is taken.

    >>> distinct("x", {"x", "x_2"})
    'x_3'
    """
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found
