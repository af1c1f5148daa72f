"""Lists of searches, algorithms, strategies, spaces, environments and the zoo.

Searches, algorithms, strategies and spaces are read from the source files, and nothing
is imported. A file in `searches/`, `inner_loops/` or `strategies/` is listed, be it
installed with metaevo or in the current folder, and so is what other distributions
declare by the entry points `metaevo.searches`, `metaevo.inner_loops` and
`metaevo.strategies`. The suites, those of the entry point `metaevo.envs` among them,
are imported for the names of their environments.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from metaevo.cli import values
from metaevo.errors import ConfigError
from metaevo.storage import obeyed, verified


def import_from_here() -> None:
    """Let imports look into the current folder first, as `python -m` does.

    Not into that of a run, which may be a stranger's.
    """
    if "" not in sys.path and obeyed.run_here() is None:
        sys.path.insert(0, "")


def modules(package: str) -> dict[str, Path]:
    """Return the public modules of a namespace package by name, in its order.

    The package may have folders in several places. Of two modules of one name the
    first is returned, which is the one that an import finds: the current folder's.
    """
    spec = importlib.util.find_spec(package)
    paths: dict[str, Path] = {}
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("[!_]*.py"):
            paths.setdefault(path.stem, path)
    return dict(sorted(paths.items()))


def text(kind: str | None = None) -> str:
    """Return the list of one kind, or of all, for a terminal of 80 columns.

    Raises:
        ConfigError: There is no such kind.
    """
    if kind is not None and kind not in KINDS:
        hint = values.nearest(kind, KINDS)
        raise ConfigError(f"list {kind!r}: expected one of {', '.join(KINDS)}.{hint}")
    return "\n\n".join(
        "\n".join([name, *lines()])
        for name, lines in KINDS.items()
        if kind in (None, name)
    )


def _declared(kind: str) -> Iterator[str]:
    """Yield what other distributions declare by an entry point."""
    for point in sorted(metadata.entry_points(group=f"metaevo.{kind}")):
        by = f" ({point.dist.name})" if point.dist else ""
        yield from _entry(point.name, f"{point.value}{by}")


def hidden_by(package: str) -> str | None:
    """Return the file of a user's own that hides an installed namespace package.

    Those are `searches`, `inner_loops` and `strategies`. A regular package or a module
    of the same name takes the place of all of them.
    """
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin


def remedy(package: str) -> str:
    """Return the advice to a user whose own package hides an installed one."""
    own = Path(hidden_by(package) or "")
    rename = own.parent if own.stem == "__init__" else own
    return f"{own} hides those that are installed: remove it, or rename {rename}"


def _each(
    package: str, describe: Callable[[Path, ast.Module], Iterator[str]]
) -> Iterator[str]:
    """Yield what describes each module of a package; of a broken one its error."""
    for path in modules(package).values():
        try:
            lines = list(describe(path, _parsed(path)))
        except ConfigError as error:
            lines = list(_entry(path.stem, f"cannot be read: {error}"))
        yield from lines
    if hidden_by(package):
        yield from _wrapped(remedy(package), "  ")
    yield from _declared(package)


def _searches() -> Iterator[str]:
    return _each(
        "searches",
        lambda path, module: _entry(path.stem, ast.get_docstring(module)),
    )


def _algorithms() -> Iterator[str]:
    """Yield each algorithm with its slots and their defaults, as in the source."""

    def described(path, module):
        yield from _entry(path.stem, ast.get_docstring(module))
        yield from _wrapped(f"slots: {' '.join(_slots(module, path.parent))}")

    return _each("inner_loops", described)


def _slots(module: ast.Module, folder: Path) -> list[str]:
    """Return `slot=default` of the fields of the class `Meta`.

    The class stands in the module, or in a private module beside it that it imports,
    and so does its base.
    """
    shared = [
        folder / f"{name}.py"
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for name in [*(node.module or "").split("."), *(x.name for x in node.names)]
        if name.startswith("_")
    ]
    sources = {path.stem: _parsed(path) for path in shared if path.is_file()}

    def fields(source: ast.Module) -> dict[str, str] | None:
        for node in source.body:
            if isinstance(node, ast.ClassDef) and node.name == "Meta":
                found: dict[str, str] = {}
                for base in map(ast.unparse, node.bases):
                    place = sources.get(base.removesuffix(".Meta"))
                    found |= (place and fields(place)) or {}
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and field.value:
                        found[ast.unparse(field.target)] = ast.unparse(field.value)
                return found
        return None

    metas = map(fields, (module, *sources.values()))
    first = next((found for found in metas if found is not None), {})
    return [f"{name}={default}" for name, default in first.items()]


def _strategies() -> Iterator[str]:
    """Yield each strategy with its parameters."""

    def described(path, module):
        yield from _entry(path.stem, ast.get_docstring(module))
        for function in _functions(module):
            if function.name == path.stem:
                yield from _wrapped(f"({ast.unparse(function.args)})")

    return _each("strategies", described)


def _spaces() -> Iterator[str]:
    """Yield the functions of `metaevo.spaces` that return a `Space`."""
    source = Path(__file__).parents[1] / "spaces.py"
    for function in _functions(_parsed(source)):
        if function.returns and ast.unparse(function.returns) == "Space":
            yield from _entry(function.name, ast.get_docstring(function))


def _environments() -> Iterator[str]:
    from metaevo import envs

    for suite in (*envs.SUITES, *sorted(envs.declared_suites())):
        try:
            names = " ".join(envs.suite(suite).names())
        except ConfigError as error:  # its package is not installed
            names = str(error).partition(": ")[2]
        yield from _wrapped(f"{suite}/ {names}", "  ")
    yield "  or your own, as package.module:function"


def _zoo() -> Iterator[str]:
    """Yield each artifact of the zoo with its slots, first verdict and first limit."""
    for name in verified.zoo():
        path = verified.ZOO / name / verified.FILES[1]
        manifest = json.loads(path.read_text(encoding="utf-8"))
        slots = ", ".join(
            f"{slot}: {op['op']}" for slot, op in sorted(manifest["slots"].items())
        )
        yield from _entry(name, slots)
        found = manifest.get("evidence", {})
        for sentence in (*found.get("verdicts", [])[:1], *found.get("limits", [])[:1]):
            yield from _wrapped(sentence)


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "searches": _searches,
    "algorithms": _algorithms,
    "strategies": _strategies,
    "spaces": _spaces,
    "environments": _environments,
    "zoo": _zoo,
}


def _parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file.

    Raises:
        ConfigError: It cannot be read or parsed; names file and line.
    """
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else path
        raise ConfigError(f"{place}: {type(error).__name__}: {error.msg}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from None


def _functions(module: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in module.body if isinstance(node, ast.FunctionDef)]


def _entry(name: str, doc: str | None) -> Iterator[str]:
    """Return a name and the first paragraph of its docstring."""
    first = (doc or "").split("\n\n")[0].replace("\n", " ")
    return _wrapped(first, f"  {name:21} ")


def _wrapped(line: str, before: str = " " * 24) -> Iterator[str]:
    """Yield `line` in lines of at most 78 columns, the first one after `before`.

    A longer word, such as a path, has a line of its own, so that it can be copied.
    """
    yield from textwrap.wrap(
        line,
        78,
        initial_indent=before,
        subsequent_indent=" " * 24,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [before]
