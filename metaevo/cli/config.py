"""Configuration of a search from `key=value` arguments.

The keys are the parameters of a function or the fields of a dataclass, and the fields
of those that are structures: `inner.*` of an inner loop's `Config`, `meta.*` the number
slots of its `Meta`, `run.*` of a `RunConfig`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from metaevo.cli import values
from metaevo.config import RunConfig
from metaevo.errors import ArtifactError, ConfigError
from metaevo.storage import manifests, verified

if TYPE_CHECKING:
    from metaevo.types import Search

FORMULA = "formula:"
"""Start of a text that stands for a function of a slot; see `formulas.fixed`."""

Options = TypeVar("Options")


def parse(search: Callable[..., Search], argv: Sequence[str]) -> dict[str, Any]:
    """Check `key=value` arguments against a search's signature.

    Returns:
        The search's arguments by name, and `run`, a RunConfig.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    return parse_into(search, defaults(search), argv)


def parse_options(options: type[Options], argv: Sequence[str]) -> Options:
    """Return a frozen dataclass of options, its defaults replaced by `argv`.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    fields = dataclasses.fields(typing.cast(Any, options))
    defaults = {f.name: f.default for f in fields}
    return options(**parse_into(options, defaults, argv))


def parse_into(
    hinted: Callable, defaults: dict[str, Any], argv: Sequence[str]
) -> dict[str, Any]:
    """Return `defaults` with the values that `argv` gives.

    The value of a text is what stands behind the equals sign, as it is. `${...}` is
    refused, since OmegaConf would read the environment.

    Args:
        hinted: Function or class whose type hints say what values are valid.
        defaults: Default of each key.
        argv: Arguments of the form `key=value`; the last one of a key counts.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    kinds = _kinds(typing.get_type_hints(hinted), defaults)
    given = {}
    for i, arg in enumerate(argv):
        key, equals, value = arg.partition("=")
        if not equals or not key or arg.startswith("-"):
            raise ConfigError(values.no_assignment(arg, kinds, argv[i + 1 :]))
        if "${" in arg:
            raise ConfigError(f"{key}={value}: ${{...}} is not expanded here")
        _check_key(key, value, kinds, defaults)
        structure = defaults.get(key.partition(".")[0])
        if hasattr(structure, "_fields") and any(x in value for x in ":/"):
            given[key] = value  # a schedule in a slot that holds a number, for one
            continue
        try:
            given[key] = values.read(kinds[key], value)
        except (KeyError, ValueError):
            raise ConfigError(values.refused(key, value, kinds)) from None
    return {name: _changed(name, x, given, kinds) for name, x in defaults.items()}


def _changed(
    name: str, default: Any, given: Mapping[str, Any], kinds: Mapping[str, Any]
) -> Any:
    """Return a default with what is given for it, or for its fields.

    A slot for which nothing is given keeps its function.
    """
    fields = fields_of(default)
    if not fields:
        value = given.get(name, default)
        whole = isinstance(value, int) and values.is_number(kinds.get(name))
        return float(value) if whole else value
    plain = plain_in(default)
    parts = {
        field: _changed(f"{name}.{field}", plain.get(field), given, kinds)
        for field in fields
        if field in plain or f"{name}.{field}" in given
    }
    if dataclasses.is_dataclass(default):
        return dataclasses.replace(typing.cast(Any, default), **parts)
    return default._replace(**parts)


def kinds(search: Callable[..., Search]) -> dict[str, Any]:
    """Return the type of each key of a search."""
    return _kinds(typing.get_type_hints(search), defaults(search))


def _kinds(hints: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the type of each key, those of structures with dots."""
    found = {}
    for name, default in defaults.items():
        nested, given = fields_of(default), plain_in(default)
        inner = {field: given.get(field) for field in nested}
        found |= {f"{name}.{key}": k for key, k in _kinds(nested, inner).items()}
        if not nested:
            unknown = tuple if isinstance(default, tuple) else Any
            found[name] = hints.get(name, unknown)
    return found


def _check_key(
    key: str, value: str, kinds: dict[str, Any], defaults: dict[str, Any]
) -> None:
    """Check that there is such a key, and that a slot is not given nothing.

    Raises:
        ConfigError: There is none; or it is a structure, or a slot with a function.
    """
    inside = [other for other in kinds if other.startswith(f"{key}.")]
    if inside and key not in kinds:
        raise ConfigError(
            f"{key}={value}: {key} has keys of its own, such as {inside[0]}=...; "
            "--help lists them"
        )
    if key not in kinds:
        raise ConfigError(values.unknown(key, kinds))
    group, _, name = key.partition(".")
    structure = defaults.get(group)
    slot = getattr(structure, name, None)
    in_meta = slot is not None and hasattr(structure, "_fields")
    if value in values.NOTHING and in_meta:
        raise ConfigError(
            f"{key}={value}: this slot cannot be empty; leave the key out to keep what "
            "the search has there"
        )


def settings(
    search: Callable[..., Search], arguments: dict[str, Any]
) -> manifests.Settings:
    """Return a search's arguments and their defaults as plain data."""
    known = {k: x for k, x in defaults(search).items() if k in arguments}
    return manifests.Settings(_plain(arguments), _plain(known))


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Structures as dictionaries."""
    return {key: plain_in(value) or value for key, value in arguments.items()}


def assignments(config: dict[str, Any]) -> list[str]:
    """Return the `key=value` argument of every key.

    >>> assignments({"size": 8, "features": (16, 16), "maybe": None})
    ['size=8', 'features=[16,16]', 'maybe=null']
    """
    lines = []
    for name, value in config.items():
        if fields := plain_in(value):
            lines += [f"{name}.{f}={as_typed(x)}" for f, x in fields.items()]
        else:
            lines.append(f"{name}={as_typed(value)}")
    return lines


def changes(search: Callable[..., Search], config: dict[str, Any]) -> list[str]:
    """Return the assignments that differ from the defaults."""
    usual = set(assignments(defaults(search)))
    return [line for line in assignments(config) if line not in usual]


def as_typed(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults(search: Callable[..., Search]) -> dict[str, Any]:
    """Return the default of each parameter, of `further_keys`, and of `run`."""
    parameters = inspect.signature(search).parameters.values()
    missing = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if missing:
        raise ConfigError(f"{search.__name__}: parameter {missing[0]!r} has no default")
    further = getattr(search, "further_keys", {})  # see `strategies.in_search`
    found = {p.name: p.default for p in parameters}
    found |= {name: key.default for name, key in further.items()}
    return found | {"run": RunConfig()}


def fields_of(value: Any) -> dict[str, Any]:
    """Return the keys of a nested default, name -> type.

    These are all fields of a dataclass (`Config`, `RunConfig`), and all fields of a
    NamedTuple (`Meta`): slots that hold a number take a number, those of a function the
    name of one, and others, such as a schedule or a number that is None by
    default, either. Other values have none. Any slot takes a text with a colon or a
    slash, the name of a function.
    """
    if dataclasses.is_dataclass(value):
        return typing.get_type_hints(type(value))
    if not hasattr(value, "_fields"):
        return {}
    from metaevo import slots

    def hint(name: str, slot: Any) -> Any:
        if isinstance(slot, int | float):
            return float
        number = slot is None or (callable(slot) and slots.is_number(slot))
        return Any if number and name not in slots.SIGNATURES else str | None

    return {name: hint(name, getattr(value, name)) for name in value._fields}


def plain_in(value: Any) -> dict[str, Any]:
    """Return the keys of a nested value that have plain data, name -> value.

    A slot that holds a function has none, unless an artifact was given for it.
    """
    found = {name: getattr(value, name) for name in fields_of(value)}
    if dataclasses.is_dataclass(value):
        return found
    return {k: x for k, x in found.items() if isinstance(x, int | float | str)}


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with arguments whose slots may name functions.

    Args:
        function: Search function.
        arguments: As `parse` returns them, without `run`. A text in a slot of a `Meta`
            is `package.module:function`, or an artifact that has this slot, as
            `metaevo.load` takes it.

    Raises:
        ConfigError: There is no such function or artifact, or it has no such slot; or
            the function refuses its arguments, of which the message names one.
    """
    made = {key: with_functions(key, x) for key, x in arguments.items()}
    try:
        return function(**made)
    except ConfigError as error:
        given = changes(function, dict(arguments))
        named = [line for line in given if line.partition("=")[0] in str(error)]
        if not given or named:
            raise
        # A function deep inside knows its own parameter, not the key it came from.
        raise type(error)(f"{error}; changed: {', '.join(given)}") from None


def _from_artifact(path: str, slot: str) -> Any:
    """Return the function of one slot of an artifact."""
    from metaevo import slots
    from metaevo.storage import artifacts

    found = artifacts.load(path).slots
    if slot not in found:
        raise ConfigError(
            f"this artifact has no slot {slot!r}, but {', '.join(sorted(found))}"
        )
    return slots.unchecked(found[slot])


VOCABULARY = (
    *("losses", "critic_losses", "drifts", "advantages", "exploration"),
    *("rewards", "activations", "optimizers"),
)
"""Modules of metaevo with functions for slots."""


def _by_name(slot: str, name: str) -> list[str]:
    """Return the functions of metaevo and JAX that fit a slot and have this name."""
    places = [f"metaevo.{module}" for module in VOCABULARY]
    places += ["jax.nn"] if slot == "activation" else []
    found = {x: getattr(importlib.import_module(x), name, None) for x in places}
    return [f"{place}:{name}" for place, x in found.items() if _fits(slot, x)]


def _fits(slot: str, found: Any) -> bool:
    """Return True if something is a function for this slot."""
    from metaevo import slots

    if slot == "optimizer":
        return isinstance(found, slots.Optimizer)
    return callable(found) and _problem(slot, found) is None


def _imported(text: str) -> Any:
    """Return the function that `package.module:function` names."""
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def import_path(value: Any) -> str | None:
    """Return `package.module:name` of a function; None if no import gives it."""
    name = getattr(value, "__name__", "")
    for owner in (value, getattr(value, "func", None)):
        module = getattr(owner, "__module__", None)
        if module == "__main__" or module not in sys.modules:
            continue
        if getattr(sys.modules[module], name, None) is value:
            return f"{module}:{name}"
    return None


def _problem(slot: str, function: Any) -> str | None:
    """Say why a function does not take what its slot gives it; None if it does."""
    from metaevo import slots

    kind = slots.SIGNATURES.get(slot)
    if kind is None or not callable(function) or isinstance(function, type):
        return None
    inputs = [*kind, *([] if slot in slots.WITHOUT_CONTEXT else ["context"])]
    try:
        signature = inspect.signature(function)
    except ValueError:  # none, as some functions in C
        return None
    try:
        signature.bind(*inputs)
    except TypeError:
        return f"it takes other inputs than ({', '.join(inputs)})"
    return slots.wrong_kind(slot, function)


def named_functions(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that slots hold in place of functions, by key."""
    return {
        f"{key}.{name}": path
        for key, value in arguments.items()
        if hasattr(value, "_fields")
        for name, path in plain_in(value).items()
        if isinstance(path, str)
    }


def with_functions(key: str, value: Any) -> Any:
    """Return a `Meta` with functions in place of the texts that name them."""
    from metaevo import formulas, slots

    for assigned, text in named_functions({key: value}).items():
        name = assigned.partition(".")[2]
        in_zoo = text.startswith((verified.ZOO_PREFIX, FORMULA))
        try:
            if text.startswith(FORMULA):
                kind = name if name in slots.SIGNATURES else "number"
                function = formulas.fixed(kind, text.removeprefix(FORMULA))
            elif in_zoo or ":" not in text:
                function = _from_artifact(text, name)
            else:
                function = _imported(text)
        except (ArtifactError, ConfigError) as error:
            meant = [] if in_zoo else _by_name(name, text.rpartition(":")[2])
            hint = values.did_you_mean(meant)
            said = str(error).removeprefix(f"{text}: ")
            number = "" if name in slots.SIGNATURES else "a number, "
            raise ConfigError(
                f"{assigned}={text}: {said}; expected {number}package.module:function, "
                f"the path of an artifact, zoo:NAME, or formula:TEXT.{hint}"
            ) from None
        default = getattr(type(value), "_field_defaults", {}).get(name)
        of_number = isinstance(default, int | float)
        if problem := _problem("number" if of_number else name, function):
            raise ConfigError(f"{assigned}={text}: {problem}")
        value = value._replace(**{name: function})
    return value
