"""`metaevo list NAME`: all there is to know about one thing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from metaevo.cli import docstrings, listing, presets, values
from metaevo.cli.listing import wrapped
from metaevo.errors import ConfigError
from metaevo.storage import verified

WIDTH = 76


def text(name: str) -> str:
    """Return what is known of a name, of each kind that has it.

    Raises:
        ConfigError: no kind has it; names the nearest.
    """
    found = [lines for describe in DESCRIBE if (lines := [*describe(name)])]
    if found:
        return "\n\n".join("\n".join(lines) for lines in found)
    words = [*listing.KINDS, *(x for k in listing.KINDS.values() for x in k.names())]
    hint = values.nearest(name, words)
    raise ConfigError(
        f"list {name!r}: expected one of {', '.join(listing.KINDS)}, or a name that "
        f"metaevo list shows.{hint}"
    )


def _indented(doc: str | None) -> Iterator[str]:
    for line in docstrings.document(inspect.cleandoc(doc or ""), WIDTH):
        yield f"  {line}".rstrip()


def _of_file(
    package: str,
    kind: str,
    keys: str,
    inside: Callable[[Any, str], Iterator[str]] = lambda path, name: iter(()),
) -> Callable[[str], Iterator[str]]:
    """Make the description of a module of a package.

    Args:
        package: folder of the module.
        kind: what one is called.
        keys: command that shows its keys.
        inside: `(path, name) -> lines` about what is in it.
    """

    def describe(name: str) -> Iterator[str]:
        if path := listing.modules(package).get(name):
            yield f"{kind} {name}, {path}"
            yield from _indented(ast.get_docstring(listing.parsed(path)))
            yield from inside(path, name)
            yield f"  keys: metaevo {keys.replace('NAME', name)} --help"

    return describe


def _slots(path: Any, name: str) -> Iterator[str]:
    yield from ("", "  slots:")
    for slot, (default, about) in listing.slots(path).items():
        yield from wrapped(f"{slot}={default}  {docstrings.sentence(about)}", "    ", 6)


def _call(path: Any, name: str) -> Iterator[str]:
    for function in listing.functions(listing.parsed(path)):
        if function.name == name:
            yield ""
            yield from wrapped(f"{name}({ast.unparse(function.args)})", "  ", 4)
            yield from _indented(ast.get_docstring(function))


def _space(name: str) -> Iterator[str]:
    if name in listing.spaces():
        yield f"space spaces.{name}"
        yield from _call(listing.METAEVO / "spaces.py", name)


def _function(name: str) -> Iterator[str]:
    one = listing.learned().get(name)
    if one is None:
        return
    from metaevo import slots
    from metaevo.learned.operations import GUARANTEES

    inputs = ", ".join(slots.SIGNATURES[one.slot])
    yield from wrapped(f"function {name}, of slot {one.slot}({inputs})", "", 4)
    settings = inspect.signature(one.build).parameters.values()
    given = ", ".join(str(x.replace(annotation=x.empty)) for x in settings)
    yield from wrapped(f"{one.title}({given})", "  ", 4)
    yield from _indented(one.build.__doc__)
    yield "  guaranteed, whatever its numbers:"
    for sure in one.guarantees(one.build(**one.examples[0]).spec) or ["nothing"]:
        yield from wrapped(f"{sure}: {GUARANTEES.get(sure, '')}", "    ", 6)
    loops = listing.modules("inner_loops").items()
    fitting = [loop for loop, path in loops if one.slot in listing.slots(path)]
    yield from wrapped(f"algorithms with the slot: {' '.join(fitting)}", "  ", 4)


def _slot(name: str) -> Iterator[str]:
    """Yield the algorithms that have a slot, and the functions that evolve in it."""
    modules = listing.modules("inner_loops").items()
    found = {loop: listing.slots(path) for loop, path in modules}
    loops = [loop for loop, slots in found.items() if name in slots]
    if not loops:
        return
    default, about = found[loops[0]][name]
    yield from wrapped(f"slot {name}={default} of {loops[0]}", "", 4)
    yield from wrapped(docstrings.sentence(about), "  ", 2)
    yield from wrapped(f"algorithms with the slot: {' '.join(loops)}", "  ", 4)
    fitting = [key for key, one in listing.learned().items() if one.slot == name]
    if fitting:
        yield from wrapped(f"functions that evolve in it: {' '.join(fitting)}", "  ", 4)


def _fitness(name: str) -> Iterator[str]:
    if about := listing.fitnesses().get(name):
        yield f"fitness fitness.{name}"
        yield from wrapped(about, "  ", 2)


def _environment(name: str) -> Iterator[str]:
    """Yield the names of a suite, or what one environment gives and takes."""
    from metaevo import envs
    from metaevo.evaluators import surroundings

    suite, _, rest = name.partition("/")
    if suite not in (*envs.SUITES, *envs.declared_suites()):
        return
    if not rest:
        yield f"environments {suite}/"
        yield from wrapped(listing.environments(suite), "  ", 2)
        return
    surroundings.check_settings()
    env = envs.make(name)
    yield f"environment {name}"
    for what, space in (("observations", env.observation), ("actions", env.action)):
        number = getattr(space, "num", None)
        shape = f"numbers of shape {list(getattr(space, 'shape', ()))}"
        yield f"  {what}: {shape if number is None else f'one of {number}'}"
    yield f"  episodes: at most {env.max_steps} steps"


def _preset(name: str) -> Iterator[str]:
    for known, path in presets.every().items():
        loop, _, short = known.partition("/")
        if name in (known, short):
            yield f"preset {known}: metaevo train {loop} preset={short}"
            lines = path.read_text(encoding="utf-8").splitlines()
            yield from (f"  {line}" for line in lines)


def _artifact(name: str) -> Iterator[str]:
    name = name.removeprefix(verified.ZOO_PREFIX)
    if name in verified.zoo():
        from metaevo.storage import artifacts

        yield f"artifact zoo:{name}, {verified.ZOO / name / verified.CARD}"
        artifact = artifacts.load(f"{verified.ZOO_PREFIX}{name}")
        for line in str(artifact).splitlines():
            yield from wrapped(line, "  ", 4)


DESCRIBE = (
    _of_file("searches", "search", "run NAME"),
    _of_file("inner_loops", "algorithm", "train NAME", _slots),
    _of_file("strategies", "strategy", "run SEARCH strategy=NAME", _call),
    *(_space, _function, _slot, _fitness, _environment, _preset, _artifact),
)
