"""What there is to search with, read from the source files: nothing is imported.

A file in `searches/`, `inner_loops/` or `strategies/` is all it takes to be found.
Only the names of environments are asked of their suites, which imports those.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path

from metaevo.errors import ConfigError


def files(package: str) -> list[Path]:
    """The modules of a package, private ones and packages aside, by name."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else ()
    found = {
        path.stem: path for folder in folders for path in Path(folder).glob("*.py")
    }
    return [path for name, path in sorted(found.items()) if not name.startswith("_")]


def text(kind: str | None = None) -> str:
    """All kinds, or one of them, as text for an 80-column terminal.

    Raises:
        ConfigError: there is no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"list {kind!r}: expected one of {', '.join(KINDS)}")
    return "\n\n".join(
        "\n".join([name, *lines()])
        for name, lines in KINDS.items()
        if kind in (None, name)
    )


def _searches() -> Iterator[str]:
    for path in files("searches"):
        yield from _entry(path.stem, ast.get_docstring(_parsed(path)))


def _algorithms() -> Iterator[str]:
    """Each with its slots, and their defaults as the source has them."""
    for path in files("inner_loops"):
        module = _parsed(path)
        yield from _entry(path.stem, ast.get_docstring(module))
        slots = [
            f"{ast.unparse(field.target)}={ast.unparse(field.value)}"
            for node in _parsed(_home_of_meta(path, module)).body
            if isinstance(node, ast.ClassDef) and node.name == "Meta"
            for field in node.body
            if isinstance(field, ast.AnnAssign) and field.value
        ]
        yield from _wrapped(f"slots: {' '.join(slots)}")


def _strategies() -> Iterator[str]:
    """Each with what it wants to know."""
    for path in files("strategies"):
        module = _parsed(path)
        yield from _entry(path.stem, ast.get_docstring(module))
        for function in _functions(module):
            if function.name == path.stem:
                yield from _wrapped(f"({ast.unparse(function.args)})")


def _spaces() -> Iterator[str]:
    """The functions of `metaevo.spaces` that return a `Space`."""
    for function in _functions(_parsed(Path(__file__).with_name("spaces.py"))):
        if function.returns and ast.unparse(function.returns) == "Space":
            yield from _entry(function.name, ast.get_docstring(function))


def _environments() -> Iterator[str]:
    from metaevo import envs

    for suite in envs.SUITES:
        names = importlib.import_module(f"metaevo.envs.{suite}").names()
        yield from textwrap.wrap(
            f"{suite}/ {' '.join(names)}", 78, initial_indent="  ", **_INDENT
        )
    yield "  or your own, as package.module:function"


KINDS = {
    "searches": _searches,
    "algorithms": _algorithms,
    "strategies": _strategies,
    "spaces": _spaces,
    "environments": _environments,
}


_INDENT = {"subsequent_indent": " " * 24, "break_on_hyphens": False}


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _home_of_meta(path: Path, module: ast.Module) -> Path:
    """The file that defines an inner loop's `Meta`: its own, or a private sibling."""
    for node in module.body:
        names = node.names if isinstance(node, ast.ImportFrom) else []
        if any(alias.name == "Meta" for alias in names):
            return path.with_name(f"{node.module.rpartition('.')[-1]}.py")
    return path


def _functions(module: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in module.body if isinstance(node, ast.FunctionDef)]


def _entry(name: str, doc: str | None) -> Iterator[str]:
    """A name, and the first sentence of its docstring."""
    first = (doc or "").split("\n\n")[0].replace("\n", " ")
    return _wrapped(first, f"  {name:21} ")


def _wrapped(line: str, before: str = " " * 24) -> Iterator[str]:
    yield from textwrap.wrap(line, 78, initial_indent=before, **_INDENT) or [before]
