"""Lists of what there is to search with: searches, algorithms, strategies and others.

Searches, algorithms, strategies and spaces are read from files; nothing is imported.
A file in `searches/`, `inner_loops/` or `strategies/` is listed, be it installed with
metaevo or in the current folder, and so is what other distributions declare by the
entry points `metaevo.searches`, `metaevo.inner_loops` and `metaevo.strategies`. The
suites, those of the entry point `metaevo.envs` among them, are imported for the names
of their environments.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.cli import docstrings, presets
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


class Listing(NamedTuple):
    """What is listed together.

    Attributes:
        about: what it is, in a few words.
        names: the names of all, or what each is by its name.
        lines: lines of the list; None: a name and what it is.
    """

    about: str
    names: Callable[[], Any]
    lines: Callable[[], Iterator[str]] | None = None


def overview() -> str:
    """Return the names of all kinds, for a terminal of 80 columns."""
    told = []
    for name, kind in KINDS.items():
        told += [f"{name}: {kind.about}", *wrapped(" ".join(kind.names()), "  ", 2), ""]
    told += ["metaevo list KIND describes each of a kind; metaevo list NAME tells all"]
    return "\n".join([*told, "there is to know about one."])


def text(kind: str) -> str:
    """Return the list of one kind, for a terminal of 80 columns."""
    _, names, lines = KINDS[kind]
    listed = lines() if lines else _described(names())
    return "\n".join([kind, *listed])


def _described(about: Mapping[str, str]) -> Iterator[str]:
    for name, text in about.items():
        yield from entry(name, text)


def declared(kind: str) -> list[metadata.EntryPoint]:
    """Return what other distributions declare by an entry point."""
    return sorted(metadata.entry_points(group=f"metaevo.{kind}"))


def _declared(kind: str) -> Iterator[str]:
    for point in declared(kind):
        by = f" ({point.dist.name})" if point.dist else ""
        yield from entry(point.name, f"{point.value}{by}")


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
            lines = list(describe(path, parsed(path)))
        except ConfigError as error:
            lines = list(entry(path.stem, f"cannot be read: {error}"))
        yield from lines
    if hidden_by(package):
        yield from wrapped(remedy(package), "  ")
    yield from _declared(package)


def _searches() -> Iterator[str]:
    return _each(
        "searches",
        lambda path, module: entry(path.stem, ast.get_docstring(module)),
    )


def _algorithms() -> Iterator[str]:
    """Yield each algorithm with its slots and their defaults, as in the source."""

    def described(path, module):
        yield from entry(path.stem, ast.get_docstring(module))
        defaults = (f"{x}={default}" for x, (default, _) in slots(path).items())
        yield from wrapped(f"slots: {' '.join(defaults)}")

    return _each("inner_loops", described)


def slots(path: Path) -> dict[str, tuple[str, str]]:
    """Return the fields of the class `Meta` of an algorithm.

    The class stands in its file, or in a private module beside it that it imports,
    and so does its base.

    Returns:
        default and description of each slot, as in the source.

    Raises:
        ConfigError: A file cannot be read or parsed.
    """
    module = parsed(path)
    shared = [
        path.parent / f"{name}.py"
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for name in [*(node.module or "").split("."), *(x.name for x in node.names)]
        if name.startswith("_")
    ]
    sources = {path.stem: parsed(path) for path in shared if path.is_file()}

    def fields(source: ast.Module) -> dict[str, tuple[str, str]] | None:
        for node in source.body:
            if isinstance(node, ast.ClassDef) and node.name == "Meta":
                found: dict[str, tuple[str, str]] = {}
                for base in map(ast.unparse, node.bases):
                    place = sources.get(base.removesuffix(".Meta"))
                    found |= (place and fields(place)) or {}
                new = {
                    ast.unparse(field.target): ast.unparse(field.value)
                    for field in node.body
                    if isinstance(field, ast.AnnAssign) and field.value
                }
                about = docstrings.entries(ast.get_docstring(node))
                for name in [*found, *new]:
                    default, text = found.get(name, ("", ""))
                    found[name] = new.get(name, default), about.get(name, text)
                return found
        return None

    metas = map(fields, (module, *sources.values()))
    return next((found for found in metas if found is not None), {})


def _strategies() -> Iterator[str]:
    """Yield each strategy with its parameters."""

    def described(path, module):
        yield from entry(path.stem, ast.get_docstring(module))
        for function in functions(module):
            if function.name == path.stem:
                yield from wrapped(f"({ast.unparse(function.args)})")

    return _each("strategies", described)


def spaces() -> dict[str, str]:
    """Return the docstrings of the functions of `metaevo.spaces` that make a space."""
    return {
        function.name: ast.get_docstring(function) or ""
        for function in functions(parsed(METAEVO / "spaces.py"))
        if function.returns and ast.unparse(function.returns) == "Space"
        if not function.name.startswith("_")
    }


def fitnesses() -> dict[str, str]:
    """Return what each fitness of `metaevo.fitness` measures, by how it is written."""
    from metaevo import fitness

    found = {}
    for name, x in vars(fitness).items():
        if isinstance(x, fitness.FitnessFn) and x is not fitness.score:
            found[name] = x.name
        elif inspect.isfunction(x) and x.__annotations__.get("return") == "FitnessFn":
            found[name] = docstrings.summary(x)
    return found


def _presets() -> dict[str, str]:
    return {name: presets.about(path) for name, path in presets.every().items()}


def learned() -> dict[str, Any]:
    """Return the learned functions that are registered, by name."""
    from metaevo.learned import operations

    return operations.everything()


def _functions() -> Iterator[str]:
    """Yield each learned function with its slot and what holds for all parameters."""
    for name, one in learned().items():
        given = one.guarantees(one.build(**one.examples[0]).spec)
        sure = f"; {', '.join(given)}" if given else ""
        about = docstrings.summary(one.build) or one.title
        yield from entry(name, f"{about} [{one.slot}{sure}]")


def _suites() -> list[str]:
    from metaevo import envs

    return [f"{x}/" for x in (*envs.SUITES, *sorted(envs.declared_suites()))]


def _environments() -> Iterator[str]:
    for suite in _suites():
        yield from wrapped(f"{suite} {environments(suite[:-1])}", "  ", 6)
    yield "  or your own, as package.module:function"


def environments(suite: str) -> str:
    """Return the names of a suite's environments, or why there are none."""
    from metaevo import envs

    try:
        return " ".join(envs.suite(suite).names())
    except ConfigError as error:  # its package is not installed
        return str(error).partition(": ")[2]


def _zoo() -> Iterator[str]:
    """Yield each artifact of the zoo with its slots, first verdict and first limit."""
    for name in verified.zoo():
        path = verified.ZOO / name / verified.FILES[1]
        manifest = json.loads(path.read_text(encoding="utf-8"))
        ops = sorted(manifest["slots"].items())
        yield from entry(name, ", ".join(f"{slot}: {op['op']}" for slot, op in ops))
        found = manifest.get("evidence", {})
        for sentence in (*found.get("verdicts", [])[:1], *found.get("limits", [])[:1]):
            yield from wrapped(sentence)


def _names(package: str) -> list[str]:
    return [*modules(package), *(point.name for point in declared(package))]


METAEVO = Path(__file__).parents[1]
KINDS = {
    "searches": Listing("metaevo run NAME", partial(_names, "searches"), _searches),
    "algorithms": Listing(
        "metaevo train NAME", partial(_names, "inner_loops"), _algorithms
    ),
    "strategies": Listing("strategy=NAME", partial(_names, "strategies"), _strategies),
    "spaces": Listing("metaevo.spaces, what evolves", spaces),
    "functions": Listing("values of slots that evolve", learned, _functions),
    "fitnesses": Listing("metaevo.fitness, for what", fitnesses),
    "environments": Listing("env=SUITE/NAME", _suites, _environments),
    "presets": Listing("preset=NAME of an algorithm", _presets),
    "zoo": Listing("artifacts, as zoo:NAME", verified.zoo, _zoo),
}


@cache
def parsed(path: Path) -> ast.Module:
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


def functions(module: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in module.body if isinstance(node, ast.FunctionDef)]


def entry(name: str, doc: str | None) -> Iterator[str]:
    """Return a name and the first paragraph of its docstring."""
    first = (doc or "").split("\n\n")[0].replace("\n", " ")
    return wrapped(first, f"  {name:21} ")


def wrapped(line: str, before: str = " " * 24, indent: int = 24) -> Iterator[str]:
    """Yield `line` in lines of at most 78 columns, the first one after `before`.

    A longer word, such as a path, has a line of its own, so that it can be copied.
    """
    yield from textwrap.wrap(
        line,
        78,
        initial_indent=before,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [before]
