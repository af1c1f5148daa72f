"""The identity of a search as plain data, to tell searches apart.

One description serves three purposes: a run directory is resumed only by the search
that made it, a default directory is named after it, and `metaevo compare` keeps trained
agents under it.

Two searches with equal identity may still differ in their code. `sources` gives the
digests of the source files that a search is made of; they are compared apart, since a
changed comment is no other search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaevo import keys, population
from metaevo.engine import checks
from metaevo.envs import Env
from metaevo.errors import ArtifactError
from metaevo.learned import operations
from metaevo.storage import provenance
from metaevo.types import InnerLoop, Search, Space, Strategy, arguments

_SMALL = 16  # elements of an array that is described by its values
_SUITES = ("metaevo",)  # packages whose sources are covered by their version

_WITH_A_DEFAULT = frozenset(
    ("num_seeds", "aggregate", "segments_per_generation", "common_random_numbers")
)
"""Fields of a search that are in its identity under their names."""

Plain = Any  # None, bool, int, float, str, list and dict of these


def identity(search: Search) -> dict[str, Plain]:
    """Describe a search as plain data.

    Args:
        search: the search. Its horizon `num_generations` is no part of its identity,
            since a run may be extended.

    Returns:
        JSON-compatible data: the environment, the `Config` and all slots of each inner
        loop, the strategy with its arguments, the space, the fitness and all sizes.
        Slots that hold functions are described by the function's name and the values
        that it closes over.
    """
    shapes = jax.eval_shape(search.space.init, jax.random.key(0))
    return {
        "population_size": population_size(search),
        "space": {
            "slots": plain(search.space.spec),
            "params": {
                jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}"
                for path, x in jax.tree_util.tree_leaves_with_path(shapes)
            },
        },
        "strategy": _strategy(search.strategy),
        "aggregate": plain(search.aggregate),
        "num_seeds": search.num_seeds,
        "segments_per_generation": search.segments_per_generation,
        "common_random_numbers": search.common_random_numbers,
        **({"stopping": plain(search.stopping)} if search.stopping else {}),
        **lifetime(search),
    }


def lifetime(search: Search) -> dict[str, Plain]:
    """Describe what a search trains and how it is scored, without how it searches."""
    tasks = {f"task{i}": _loop(loop) for i, loop in enumerate(search.tasks)}
    vary = {} if search.vary is None else {"vary": plain(search.vary.spec)}
    hurdles = {"hurdles": plain(search.hurdles)} if search.hurdles else {}
    return {"fitness": plain(search.fitness), **tasks, **vary, **hurdles}


def defaults(search: Search) -> dict[str, Plain]:
    """Return the part of `identity` that has defaults, as they are.

    These are the fields of `Config`, `Meta` and `Search`, the arguments of the
    strategy's function, and the settings of learned functions.
    """
    found: dict[str, Plain] = {
        name: plain(x)
        for name, x in Search._field_defaults.items()
        if name in _WITH_A_DEFAULT
    }
    for i, loop in enumerate(search.tasks):
        usual = {"config": _of_fields(loop.config), "meta": _of_fields(loop.meta)}
        found[f"task{i}"] = usual | ({"hand_made": usual} if loop.hand_made else {})
    if search.strategy.settings:
        found["strategy"] = plain(search.strategy.defaults)
    slots = {}
    for name, op in search.space.spec.items():
        with contextlib.suppress(ArtifactError):  # a number's is none of the registry
            slots[name] = plain(arguments(operations.get(op["op"]).build))
    return found | {"space": {"slots": slots}}


def _of_fields(value: Any) -> dict[str, Plain]:
    """The defaults of a NamedTuple's or a dataclass's fields."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        known = {
            x.name: x.default
            if x.default_factory is dataclasses.MISSING
            else x.default_factory()
            for x in fields
        }
        known = {k: x for k, x in known.items() if x is not dataclasses.MISSING}
    else:
        known = getattr(value, "_field_defaults", {})
    return {name: plain(x) for name, x in known.items()}


def population_size(search: Search) -> int:
    """Return the number of members of a search's proposals."""
    return population.size(checks.proposal_shapes(search.strategy).params)


def digest(*data: Plain) -> str:
    """Return the sha256 of plain data, for names of caches."""
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def source_files(search: Search, path: str | Path | None = None) -> list[Path]:
    """Return the source files that a search is made of.

    Args:
        search: its inner loops, its strategy and the learned functions of its space
            name the files, with the files of the same package that those import.
        path: the file in which the search is put together, if it is known; the files
            of its package that it imports are named, too.

    Returns:
        absolute paths. Files of metaevo itself are left out; the manifest holds its
        version.
    """
    files = {Path(path)} if path is not None else set()
    functions = [x for loop in search.tasks for x in (loop.init, loop.train)]
    functions += [search.strategy.init, search.strategy.ask]
    names = {_module_of(x) for function in functions for x in _reachable(function)}
    names.add(str(search.strategy.settings.get("strategy", "")).partition(":")[0])
    own = (operations.own(op["op"]) for op in search.space.spec.values())
    names |= {one.build.__module__ for one in own if one is not None}
    names |= {
        name
        for name, module in list(sys.modules.items())
        if path is not None and getattr(module, "__file__", None) == str(path)
    }
    for module in _with_siblings(names):
        files.add(Path(module.__file__))
    return sorted({file.absolute() for file in files if file.is_file()})


def sources(search: Search) -> dict[str, str]:
    """Return digests of the source files that a search is made of."""
    return provenance.digests(source_files(search))


# --- parts of a search ----------------------------------------------------------------


def _loop(loop: InnerLoop) -> dict[str, Plain]:
    # A loop without a config of its own is told by what its functions close over.
    config = plain(loop.config) if loop.config is not None else plain(loop.train)
    parts = {} if loop.parts is None else {"parts": plain(loop.parts)}
    if loop.hand_made is not None:
        parts["hand_made"] = _loop(loop.hand_made)
    return {
        "loop": _modules(loop.config, loop.meta),
        "env": None if loop.env is None else _env(loop.env),
        "config": config,
        "meta": plain(loop.meta),
        "num_segments": loop.num_segments,
        "frames_per_segment": loop.frames_per_segment,
        "coupled": loop.coupled,
        **parts,
    }


def _modules(*structures: Any) -> Plain:
    """The modules whose structures these are, without the package.

    Structures of two algorithms may have the same values where both have a setting.
    That of a program is called as it is where its file is imported.
    """
    found = []
    for structure in structures:
        module = type(structure).__module__
        if module == "__main__":
            module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
        found.append(module.rpartition(".")[2])
    return found


def _env(env: Env) -> dict[str, Plain]:
    return {
        "name": env.name or _name(env.step),
        "observation": plain(env.observation),
        "action": plain(env.action),
        "max_steps": env.max_steps,
        **({} if env.task is None else {"task": plain(env.task)}),
    }


def _strategy(strategy: Strategy) -> dict[str, Plain]:
    if strategy.settings:
        return plain(strategy.settings)
    return {"ask": plain(strategy.ask), "tell": plain(strategy.tell)}


# --- any value ------------------------------------------------------------------------


def plain(value: Any, _inside: tuple[int, ...] = ()) -> Plain:
    """Describe a value as plain data, the same in every process.

    Functions are described by their name and the values that they close over, large
    arrays by a digest, other objects by their type.

    >>> plain({"sigma": 0.5, "factors": (0.8, 1.2), "explore": None})
    {'sigma': 0.5, 'factors': [0.8, 1.2], 'explore': None}
    >>> plain(functools.partial(max, 3))
    {'function': 'max', 'values': [3]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        value = float(value)
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if id(value) in _inside:
        return "..."
    into = functools.partial(plain, _inside=(*_inside, id(value)))
    if isinstance(value, Space):
        return into(dict(value.spec))
    if isinstance(value, InnerLoop):
        return _loop(value)
    if isinstance(value, Env):
        return _env(value)
    if isinstance(value, functools.partial):  # jax.tree_util.Partial is one
        return _function(value.func, [value.args, value.keywords], into)
    if isinstance(value, tuple) and (names := getattr(value, "_fields", ())):
        return {name: into(getattr(value, name)) for name in names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: into(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): into(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [into(x) for x in value]
    if callable(value):
        return _function(value, [], into)
    return _name(type(value))


def _array(x: Any) -> Plain:
    x = np.asarray(keys.to_data(x))
    if x.size <= _SMALL and x.dtype.kind in "biuf":
        return plain(x.tolist())
    data = hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]
    return f"{x.dtype}{list(x.shape)} {data}"


def _function(function: Callable, given: list, into: Callable[[Any], Plain]) -> Plain:
    """A function's name, with the values that it was given or closes over, if any."""
    function = inspect.unwrap(function)
    inner = getattr(function, "__func__", function)
    values = [*given, *_closed_over(inner)]
    values += getattr(inner, "__defaults__", None) or ()
    values += (getattr(inner, "__kwdefaults__", None) or {}).values()
    leaves = [leaf for x in values for leaf in _leaves(into(x))]
    name = _name(function)
    return {"function": name, "values": leaves} if leaves else name


def _closed_over(function: Any) -> Iterator[Any]:
    """The values that a function closes over, those that are assigned."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents


def _leaves(tree: Plain) -> Iterator[Plain]:
    """Numbers and texts in a plain tree, without the names that lead to them."""
    if isinstance(tree, dict):
        for x in tree.values():
            yield from _leaves(x)
    elif isinstance(tree, list):
        for x in tree:
            yield from _leaves(x)
    elif tree is not None:
        yield tree


def _name(x: Any) -> str:
    """The name of the function or class in whose body `x` was made."""
    name = getattr(x, "__qualname__", None) or type(x).__qualname__
    return name.split(".<locals>")[0]


# --- source files ---------------------------------------------------------------------


def _reachable(function: Callable) -> list[Callable]:
    """A function and those that it closes over, directly or through others."""
    found: list[Callable] = []
    waiting: list[Any] = [function]
    while waiting:
        x = waiting.pop()
        x = inspect.unwrap(x.func if isinstance(x, functools.partial) else x)
        if any(x is other for other in found):
            continue
        found.append(x)
        waiting += filter(inspect.isroutine, _closed_over(x))
    return found


def _with_siblings(names: Iterable[str]) -> Iterator[Any]:
    """Imported modules, with the modules of the same package that they use."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        package = (spec.name if spec else name).partition(".")[0]  # of a program, too
        if name in seen or package in _SUITES or not getattr(module, "__file__", None):
            continue
        seen.add(name)
        yield module
        for x in list(vars(module).values()):
            other = x.__name__ if inspect.ismodule(x) else _module_of(x)
            if "." in other and other.partition(".")[0] == package:
                waiting.append(other)


def _module_of(x: Any) -> str:
    return str(getattr(x, "__module__", "")) if callable(x) else ""
