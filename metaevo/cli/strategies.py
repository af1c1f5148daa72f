"""A strategy by its name: `strategy=NAME` and its arguments, `strategy.ARGUMENT=...`.

Every search in which something evolves has the key `strategy`. `null` keeps the
strategy that the search makes; a name replaces it by that of `strategies/NAME.py`, over
the same space. An argument that has the name and the type of a key of the search, such
as `sigma`, is set by that key. An optimizer is set by a `learning_rate`, that of Adam.

`halving=N` stops members of a generation early, by `Search.stopping`.

`space.NUMBER=RANGE` replaces the space, too: the numbers for which a range is given
evolve, and nothing else; see `ranges`.
"""

from __future__ import annotations

import collections.abc
import functools
import importlib
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import optax

from metaevo import slots, spaces
from metaevo.cli import docstrings, listing, ranges, resolve, values
from metaevo.errors import ConfigError
from metaevo.types import Search, Strategy

KEY = "strategy"
_PLAIN = (int, float, bool, str, types.NoneType)


class FurtherKey(NamedTuple):
    """A key of a search that is no parameter of its function.

    Attributes:
        name: with dots.
        kind: the type of its value.
        default: its value if it is not given.
        description: one sentence.
        required: whether None, the default, is no value of the argument that it sets.
    """

    name: str
    kind: Any
    default: Any
    description: str
    required: bool = False


HALVING = FurtherKey(
    "halving",
    int | None,
    None,
    "parts of a lifetime; after one, two, four of them the worse half is stopped",
)
"""The key of `Search.stopping`."""


def in_arguments(
    search: Callable[..., Search], argv: Sequence[str]
) -> Callable[..., Search]:
    """Return a search function with the keys of the strategy that `argv` names.

    Args:
        search: search function.
        argv: arguments of the form `key=value`; the last one of a key counts.

    Raises:
        ConfigError: as `in_search`; or an argument of a strategy is given without one.
    """
    split = [arg.partition("=") for arg in argv]
    given = {key: value for key, _, value in split}
    name = given.get(KEY)
    made = in_search(search, given)
    for key, value in given.items():
        if key.startswith(f"{KEY}.") and name is None and made is not search:
            raise ConfigError(
                f"{key}={value}: it is an argument of a strategy; give strategy=NAME, "
                "too"
            )
    return made


def in_search(
    search: Callable[..., Search], given: Mapping[str, Any] = {}
) -> Callable[..., Search]:
    """Return a search function with the key `strategy`, and those of one strategy.

    They stand in its attribute `further_keys`, by name, and their types in its
    annotations. A function that has the attribute, or a parameter `strategy`, is
    returned as it is.

    Args:
        search: search function.
        given: values of keys. `strategy` names the strategy. A name that no strategy
            has is for `config.parse` to refuse, and stands for None, the search's own.
            If there is a range of a number, all numbers have a key.

    Raises:
        ConfigError: the strategy's file is broken, or no text stands for one of its
            arguments.
    """
    parameters = inspect.signature(search).parameters
    if hasattr(search, "further_keys") or KEY in parameters:
        return search
    hints = typing.get_type_hints(search)
    names = tuple(listing.modules("strategies"))
    name = given.get(KEY)
    ranged = {key: x for key, x in given.items() if key.startswith(f"{ranges.KEY}.")}
    numbers = _numbers(search) if ranged else {}
    texts = [x for x in ranged.values() if x not in (None, *values.NOTHING)]
    if name in (None, *values.NOTHING) and texts and all(map(ranges.is_grid, texts)):
        name = "grid"
    make = named(name) if name in names else None
    arguments = {} if make is None else _arguments(make, hints)
    own = own_name(search)
    about = "strategy in place of the search's own" + (f", {own}" if own else "")
    kind: Any = Literal[names]
    keys = [FurtherKey(KEY, kind | None, None, about), HALVING, *arguments.values()]
    keys += numbers.values()
    further = {x.name: x for x in keys if x.name not in parameters}

    @functools.wraps(search)
    def chosen(**given: Any) -> Search:
        made = search(**{k: x for k, x in given.items() if k not in further})
        if not isinstance(made, Search):
            return made
        if (horizon := given[HALVING.name]) is not None:
            from metaevo.fitness import Halving  # imports JAX, which help need not

            made = made._replace(stopping=Halving(horizon, factor=2))
        texts = {x: given[key.name] for x, key in numbers.items()}
        if texts := {x: text for x, text in texts.items() if text is not None}:
            made = _over(made, texts, make is None)
        return made if make is None else replaced(made, make, arguments, given)

    chosen.__annotations__ = hints | {key: x.kind for key, x in further.items()}
    chosen.__dict__.update(further_keys=further, strategy=make)
    return chosen


def _numbers(search: Callable[..., Search]) -> dict[str, FurtherKey]:
    """Return the keys of the ranges of the numbers of `meta`, by slot."""
    meta = inspect.signature(search).parameters.get("meta")
    default = meta.default._asdict() if meta is not None else {}
    return {
        name: FurtherKey(
            f"{ranges.KEY}.{name}", str | None, None, f"range of `meta.{name}`"
        )
        for name, slot in default.items()
        if slot is not None and slots.is_number(slot)
    }


def _over(search: Search, texts: Mapping[str, str], keep: bool) -> Search:
    """Return a search over numbers in place of its own space.

    Args:
        search: the search.
        texts: range of each number.
        keep: whether its own strategy searches them.

    Raises:
        ConfigError: a text is no range, or there is no such number; or the strategy
            draws its members from no ranges, or is part of the search.
    """
    space = ranges.space(texts)
    given = " ".join(f"{ranges.KEY}.{slot}={text}" for slot, text in texts.items())
    if why := _why_not_replaceable(search):
        raise ConfigError(
            f"{given}: the space of this search cannot be replaced, since {why}; leave "
            "the key out"
        )
    if not keep:
        return search._replace(space=space)
    strategy = search.strategy
    if strategy.with_space is None or not strategy.from_ranges:
        raise ConfigError(
            f"{given}: the strategy of this search draws no numbers from ranges; give "
            "strategy=random_search, pbt or pb2, or a grid([...]) for each number"
        )
    return search._replace(space=space, strategy=strategy.with_space(space))


def named(name: str) -> Callable[..., Strategy]:
    """Return the function of `strategies/NAME.py` that makes a strategy.

    Raises:
        ConfigError: the file cannot be imported, or has no function of its name.
    """
    path = listing.modules("strategies")[name]
    with resolve.explained(path):
        module = importlib.import_module(f"strategies.{name}")
        made: Callable[..., Strategy] | None = getattr(module, name, None)
    if made is None:
        raise ConfigError(f"{path} has no function {name!r}")
    return made


def own_name(search: Callable[..., Search]) -> str | None:
    """Return the name of the one strategy that the code of a search refers to.

    Nothing is called. None if there is no such strategy, or more than one.
    """
    own = search.__module__.partition(".")[0], "searches"  # of a program, too
    found: list[Any] = []
    waiting: list[Any] = [search]
    while waiting:
        x = waiting.pop()
        place = str(getattr(x, "__module__", "")).partition(".")[0]
        if place not in (*own, "strategies") or any(x is y for y in found):
            continue
        found.append(x)
        if inspect.isfunction(x) and place in own:
            scope = inspect.getclosurevars(x)
            waiting += [*scope.nonlocals.values(), *scope.globals.values()]
    names = {x.__name__ for x in found if x.__module__.startswith("strategies.")}
    return names.pop() if len(names) == 1 else None


def replaced(
    search: Search,
    make: Callable[..., Strategy],
    arguments: Mapping[str, FurtherKey],
    given: Mapping[str, Any],
) -> Search:
    """Return a search with another strategy over its space.

    Its members are newborn in each generation. If agents of the strategy live on, a
    generation has as many segments as before, or one, and if it has a `horizon`, that
    share of a lifetime.

    Args:
        search: the search.
        make: the function that makes the strategy.
        arguments: the keys of its arguments, by their names.
        given: the values of the keys; that of an optimizer is a step size.

    Raises:
        ConfigError: they do not fit together, or an argument is missing.
    """
    name = make.__name__
    _check_replaceable(search, name)
    hints = typing.get_type_hints(make)
    chosen = {argument: given[key.name] for argument, key in arguments.items()}
    for argument, (key, kind, _, description, required) in arguments.items():
        value = chosen[argument]
        if required and value is None:
            raise ConfigError(
                f"strategy={name}: give {key}=..., {values.expected(kind)}: "
                f"{description}"
            )
        if hints[argument] is optax.GradientTransformation:
            del chosen[argument]
            chosen |= {} if value is None else {argument: optax.adam(value)}
    try:
        strategy = make(search.space, **chosen)
        if strategy.from_ranges:
            spaces.of_prior(search.space, name)
        if not strategy.mutates:
            spaces.require_numbers(search.space, name)
        segments = _segments(search, strategy)
    except ConfigError as error:
        raise ConfigError(f"strategy={name}: {error}") from None
    return search._replace(strategy=strategy, segments_per_generation=segments)


def _check_replaceable(search: Search, name: str) -> None:
    """Check that members are independent, and their space is not for one strategy.

    Raises:
        ConfigError: they train together, or the search's strategy is one over another.
    """
    if why := _why_not_replaceable(search):
        raise ConfigError(
            f"strategy={name}: the strategy of this search cannot be replaced, since "
            f"{why}; leave the key out"
        )


def _why_not_replaceable(search: Search) -> str | None:
    """Say why the space of a search cannot be replaced; None if it can."""
    module, _, own = str(search.strategy.settings.get("strategy", "")).partition(":")
    make = getattr(sys.modules.get(module), own, None)
    if search.coupled:
        return "its members train together"
    return f"{own} is part of it" if make is not None and _keyless(make) else None


def _segments(search: Search, strategy: Strategy) -> int | None:
    """Return `Search.segments_per_generation` with another strategy."""
    horizon = strategy.settings.get("horizon")
    if horizon is None:
        before = search.segments_per_generation or 1
        return before if strategy.persistent_agents else None
    lengths = {loop.num_segments for loop in search.tasks}
    if len(lengths) > 1 or min(lengths) % horizon:
        shown = " and ".join(map(str, sorted(lengths)))
        raise ConfigError(
            f"horizon={horizon}: expected a divisor of the {shown} segments of a "
            "lifetime"
        )
    return min(lengths) // horizon


# --- arguments as keys ----------------------------------------------------------------


def _arguments(
    make: Callable[..., Strategy], taken: Mapping[str, Any]
) -> dict[str, FurtherKey]:
    """Return the keys of the arguments of a strategy's function, the space aside.

    Arguments with a default for which no text stands, such as functions, have none.

    Args:
        make: the function.
        taken: the types of the search's parameters.

    Raises:
        ConfigError: no text stands for an argument without a default.
    """
    if keyless := _keyless(make):
        raise ConfigError(
            f"strategy={make.__name__}: no key stands for its argument {keyless[0]!r}; "
            "make the search in Python"
        )
    described, hints = docstrings.descriptions(make), typing.get_type_hints(make)
    found = {}
    for argument, parameter in _parameters(make).items():
        kind, default = _kind(hints[argument]), parameter.default
        if kind is None:
            continue
        required = default is parameter.empty
        text = docstrings.sentence(described.get(argument, ""))
        name, may_share = argument, True
        if hints[argument] is optax.GradientTransformation:
            name, may_share, default = "learning_rate", required, None
            own = "" if required else "; None: the strategy's own optimizer"
            text = f"step size of Adam{own}"
        if may_share and taken.get(name) == kind:
            found[argument] = FurtherKey(name, kind, None, text)
            continue
        if required:
            default = None
        elif default is None:
            kind = kind | None
        found[argument] = FurtherKey(f"{KEY}.{name}", kind, default, text, required)
    return found


def _keyless(make: Callable[..., Strategy]) -> list[str]:
    """Return the arguments without a default for which no text stands."""
    hints = typing.get_type_hints(make)
    return [
        name
        for name, x in _parameters(make).items()
        if x.default is x.empty and _kind(hints[name]) is None
    ]


def _parameters(make: Callable[..., Strategy]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a strategy's function but for the space."""
    _, *parameters = inspect.signature(make).parameters.items()
    return dict(parameters)


def _kind(hint: Any) -> Any:
    """Return the type of the key of an argument; None if no text stands for it.

    >>> _kind(Sequence[float] | Callable), _kind(int | None), _kind(Callable | None)
    (tuple[float, ...], int | None, None)
    """
    if hint is optax.GradientTransformation:
        return float
    several = typing.get_origin(hint) in (types.UnionType, typing.Union)
    kinds = []
    for kind in typing.get_args(hint) if several else (hint,):
        if typing.get_origin(kind) is collections.abc.Sequence:
            kind = tuple[(*typing.get_args(kind), ...)]
        if kind in _PLAIN or typing.get_origin(kind) in (Literal, tuple):
            kinds.append(kind)
    only_none = set(kinds) <= {types.NoneType}
    return None if only_none else functools.reduce(operator.or_, kinds)
