"""`metaevo list NAME`: all there is to know about one thing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaevo.cli import docstrings, listing, presets, values
from metaevo.cli.listing import wrapped
from metaevo.errors import ConfigError
from metaevo.storage import verified

WIDTH = 78


def text(name: str) -> str:
    """Return what is known of a name, of each kind that has it.

    Raises:
        ConfigError: no kind has it; names the nearest.
    """
    found = []
    for describe in DESCRIBE:
        lines = list(describe(name))
        found += ["\n".join(lines)] if lines else []
    if found:
        return "\n\n".join(found)
    words = [*listing.KINDS, *(x for k in listing.KINDS.values() for x in k.names())]
    hint = values.nearest(name, words)
    raise ConfigError(
        f"list {name!r}: expected one of {', '.join(listing.KINDS)}, or a name that "
        f"metaevo list shows.{hint}"
    )


def _of_file(package: str, name: str, kind: str) -> tuple[Path | None, list[str]]:
    """Return the file of a module, and the lines of its heading and docstring."""
    path = listing.modules(package).get(name)
    if path is None:
        return None, []
    doc = ast.get_docstring(listing.parsed(path)) or ""
    return path, [f"{kind} {name}, {path}", *_indented(doc)]


def _indented(doc: str) -> list[str]:
    lines = docstrings.document(doc, WIDTH - 2) if doc else []
    return [f"  {line}".rstrip() for line in lines]


def _search(name: str) -> Iterator[str]:
    path, lines = _of_file("searches", name, "search")
    yield from lines
    if path:
        yield f"  keys: metaevo run {name} --help"


def _algorithm(name: str) -> Iterator[str]:
    path, lines = _of_file("inner_loops", name, "algorithm")
    yield from lines
    if path is None:
        return
    yield from ("", "  slots:")
    for slot, listed in listing.slots(path).items():
        about = docstrings.sentence(listed.about)
        yield from wrapped(f"{slot}={listed.default}  {about}", "    ", 6)
    if of_it := [x for x in presets.every() if x.startswith(f"{name}/")]:
        yield f"  presets: {' '.join(of_it)}"
    yield f"  keys: metaevo train {name} --help"


def _strategy(name: str) -> Iterator[str]:
    path, lines = _of_file("strategies", name, "strategy")
    yield from lines
    for function in listing.functions(listing.parsed(path)) if path else ():
        if function.name == name:
            yield ""
            yield from _function_lines(name, function)
            yield f"  keys: metaevo run SEARCH strategy={name} --help"


def _function_lines(call: str, function: ast.FunctionDef) -> Iterator[str]:
    """Yield the call of a function, and what its docstring says."""
    yield from wrapped(f"{call}({ast.unparse(function.args)})", "  ", 4)
    yield from _indented(ast.get_docstring(function) or "")


def _space(name: str) -> Iterator[str]:
    if function := listing.spaces().get(name):
        yield f"space {name}"
        yield from _function_lines(f"spaces.{name}", function)


def _function(name: str) -> Iterator[str]:
    if name not in listing.KINDS["functions"].names() and "." not in name:
        return  # before anything is imported
    from metaevo import slots
    from metaevo.learned import operations

    for one in operations.everything().values():
        if name not in (one.name, one.title):
            continue
        spec = one.build(**one.examples[0]).spec
        inputs = ", ".join(slots.SIGNATURES[one.slot])
        heading = f"function {one.name}, of slot {one.slot}({inputs})"
        yield from wrapped(heading, "", 4)
        settings = inspect.signature(one.build).parameters.values()
        given = ", ".join(str(x.replace(annotation=x.empty)) for x in settings)
        yield from wrapped(f"{one.title}({given})", "  ", 4)
        yield from _indented(inspect.cleandoc(one.build.__doc__ or ""))
        yield "  guaranteed, whatever its numbers:"
        for sure in one.guarantees(spec) or ["nothing"]:
            about = operations.GUARANTEES.get(sure, "")
            yield from wrapped(f"{sure}: {about}".removesuffix(": "), "    ", 6)
        fitting = [
            name
            for name, path in listing.modules("inner_loops").items()
            if one.slot in listing.slots(path)
        ]
        yield from wrapped(f"algorithms with the slot: {' '.join(fitting)}", "  ", 4)


def _fitness(name: str) -> Iterator[str]:
    if listed := listing.fitnesses().get(name):
        yield f"fitness {name}"
        yield f"  fitness.{listed.call}"
        yield from _indented(listed.about)


def _environment(name: str) -> Iterator[str]:
    """Yield the names of a suite, or what one environment gives and takes."""
    from metaevo import envs

    suite, _, rest = name.partition("/")
    if suite not in (*envs.SUITES, *envs.declared_suites()):
        return
    if not rest:
        yield f"environments {suite}/"
        yield from wrapped(listing.environments(suite), "  ", 2)
        return
    from metaevo.evaluators import surroundings

    surroundings.check_settings()
    env = envs.make(name)
    yield f"environment {name}"
    yield f"  observations: {_box(env.observation)}"
    yield f"  actions: {_box(env.action)}"
    yield f"  episodes: at most {env.max_steps} steps"
    for has, about in (
        (env.num_players > 1, f"{env.num_players} players, who act at once"),
        (env.player is not None, "two players, who take turns"),
        (env.action_mask is not None, "not all actions are legal in every state"),
        (env.task is not None, "a task is drawn for each lifetime"),
        (env.render is not None, "metaevo play draws it"),
    ):
        if has:
            yield f"  {about}"


def _box(space: Any) -> str:
    number = getattr(space, "num", None)
    if number is not None:
        return f"one of {number}"
    return f"{'bits' if space.binary else 'numbers'} of shape {list(space.shape)}"


def _preset(name: str) -> Iterator[str]:
    for known, path in presets.every().items():
        loop, _, short = known.partition("/")
        if name in (known, short):
            yield f"preset {known}: metaevo train {loop} preset={short}"
            yield from _indented(path.read_text(encoding="utf-8").rstrip())


def _artifact(name: str) -> Iterator[str]:
    name = name.removeprefix(verified.ZOO_PREFIX)
    if name not in verified.zoo():
        return
    manifest = listing.zoo(name)
    yield f"artifact zoo:{name}, {verified.ZOO / name / verified.CARD}"
    for slot, op in manifest["slots"].items():
        settings = ", ".join(f"{k}={x}" for k, x in op.items() if k != "op")
        yield from wrapped(f"meta.{slot}: {op['op']}({settings})", "  ", 4)
    said = manifest.get("evidence", {})
    for sentence in (*said.get("verdicts", ()), *said.get("limits", ())):
        yield from wrapped(sentence, "  ", 4)
    yield f"  use it: metaevo.load('zoo:{name}'); metaevo export zoo:{name} to=torch"


DESCRIBE = (
    *(_search, _algorithm, _strategy, _space, _function, _fitness),
    *(_environment, _preset, _artifact),
)
