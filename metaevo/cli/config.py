"""Configuration of a search from `key=value` arguments.

The keys are the parameters of a function or the fields of a dataclass, and the fields
of those that are structures: `inner.*` of an inner loop's `Config`, `meta.*` the number
slots of its `Meta`, `run.*` of a `RunConfig`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from metaevo import slots
from metaevo.config import RunConfig
from metaevo.errors import ArtifactError, ConfigError
from metaevo.types import Search

Options = TypeVar("Options")


def parse(search: Callable[..., Search], argv: Sequence[str]) -> dict[str, Any]:
    """Check `key=value` arguments against a search's signature.

    Returns:
        The search's arguments by name, and `run`, a RunConfig.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    return parse_into(search, _defaults(search), argv)


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

    The value of a text is what stands behind the equals sign, as it is; other values
    are read as YAML. `${...}` is refused: it would read the environment.

    Args:
        hinted: Function or class whose type hints say what values are valid.
        defaults: Default of each key.
        argv: Arguments of the form `key=value`; the last one of a key counts.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    schema = OmegaConf.structured(_schema_of(hinted, defaults))
    texts = _text_keys(typing.get_type_hints(hinted), defaults)
    for arg in argv:
        key, equals, value = arg.partition("=")
        if not equals or not key or arg.startswith("-"):
            raise ConfigError(f"{arg!r}: expected key=value; --help lists the keys")
        literal = ConfigError(f"{key}={value}: ${{...}} is not expanded here")
        if "${" in arg:
            raise literal
        try:
            if key in texts and value != "null":
                given = OmegaConf.create({})
                OmegaConf.update(given, key, value)
            else:
                given = OmegaConf.from_dotlist([arg])
            if _interpolates(OmegaConf.to_container(given)):
                raise literal
            schema = OmegaConf.merge(schema, given)
            OmegaConf.to_container(schema)
        except ConfigError:
            raise
        except OmegaConfBaseException as error:
            raise ConfigError(_explain(key, value, error)) from None
        except (YAMLError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{key}={value}: {str(error).splitlines()[0]}") from None
    resolved: Any = OmegaConf.to_container(schema)
    return {key: _restore(default, resolved[key]) for key, default in defaults.items()}


def _text_keys(hints: dict[str, Any], defaults: dict[str, Any]) -> set[str]:
    """Return the keys whose values are texts."""
    found = set()
    for name, default in defaults.items():
        nested, given = _fields(default), _given(default)
        values = {field: given.get(field) for field in nested}
        found |= {f"{name}.{key}" for key in _text_keys(nested, values)}
        if hints.get(name) in (str, str | None):
            found.add(name)
    return found


def _interpolates(value: Any) -> bool:
    """Return True if a text in nested lists and dictionaries holds `${`."""
    if isinstance(value, dict):
        return any(_interpolates(x) for pair in value.items() for x in pair)
    if isinstance(value, list):
        return any(map(_interpolates, value))
    return isinstance(value, str) and "${" in value


def settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a search's arguments as plain data, structures as dictionaries."""
    return {key: _given(value) or value for key, value in arguments.items()}


def assignments(config: dict[str, Any]) -> list[str]:
    """Return the `key=value` argument of every key.

    >>> assignments({"size": 8, "features": (16, 16), "maybe": None})
    ['size=8', 'features=[16,16]', 'maybe=null']
    """
    lines = []
    for name, value in config.items():
        if fields := _given(value):
            lines += [f"{name}.{f}={_shown(x)}" for f, x in fields.items()]
        else:
            lines.append(f"{name}={_shown(value)}")
    return lines


def changes(search: Callable[..., Search], config: dict[str, Any]) -> list[str]:
    """Return the assignments that differ from the defaults."""
    defaults = set(assignments(_defaults(search)))
    return [line for line in assignments(config) if line not in defaults]


def help_text(search: Callable[..., Search]) -> str:
    """Return the docstring of the search's module and every key with its default."""
    return "\n".join(
        [
            getattr(inspect.getmodule(search), "__doc__", None) or "",
            "keys (key=value):",
            *(f"  {line}" for line in assignments(_defaults(search))),
            *_slots_help(_defaults(search)),
            "",
            "--cfg       prints the configuration and starts nothing",
            "--cfg-diff  prints what differs from the defaults",
            "--dry-run   compiles, times a generation, prints the plan, starts nothing",
        ]
    )


def _slots_help(defaults: dict[str, Any]) -> list[str]:
    """Return a line on the slots of each `Meta` that take an artifact."""
    lines = []
    for key, value in defaults.items():
        if hasattr(value, "_fields"):
            names = [name for name in _fields(value) if name not in _given(value)]
            text = (
                f"{key}.SLOT=PATH puts the function of an artifact, or of a finished "
                f"run, in the place of the hand-made one, {key}.SLOT=package.module:"
                f"function any other, as {key}.value_loss=metaevo.losses:square. SLOT: "
                f"{', '.join(names)}"
            )
            lines += ["", *textwrap.wrap(text, 78, break_on_hyphens=False)]
    return lines


def _shown(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _defaults(search: Callable[..., Search]) -> dict[str, Any]:
    """Return the default of each parameter, and of `run`."""
    parameters = inspect.signature(search).parameters.values()
    missing = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{search.__name__}: parameter {missing[0]!r} has no default")
    return {p.name: p.default for p in parameters} | {"run": RunConfig()}


def _fields(value: Any) -> dict[str, Any]:
    """Return the keys of a nested default, name -> type.

    These are all fields of a dataclass (`Config`, `RunConfig`), and all fields of a
    NamedTuple (`Meta`): slots that hold a number take a number, those of a function the
    name of one, and others, such as a schedule or a number that is None by
    default, either. Other values have none.
    """
    if dataclasses.is_dataclass(value):
        return typing.get_type_hints(type(value))
    if not hasattr(value, "_fields"):
        return {}

    def hint(name: str, slot: Any) -> Any:
        if isinstance(slot, int | float):
            return float
        number = slot is None or (callable(slot) and slots.is_number(slot))
        return Any if number and name not in slots.SIGNATURES else str | None

    return {name: hint(name, getattr(value, name)) for name in value._fields}


def _given(value: Any) -> dict[str, Any]:
    """Return the keys of a nested value that have plain data, name -> value.

    A slot that holds a function has none, unless an artifact was given for it.
    """
    found = {name: getattr(value, name) for name in _fields(value)}
    if dataclasses.is_dataclass(value):
        return found
    return {k: x for k, x in found.items() if isinstance(x, int | float | str)}


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with arguments whose slots may name functions.

    Args:
        function: Search function.
        arguments: As `parse` returns them, without `run`. A text in a slot of a `Meta`
            is `package.module:function`, or the path of an artifact, or of a finished
            run, which has this slot.

    Raises:
        ConfigError: There is no such function or artifact, or it has no such slot.
    """
    return function(**{key: _with_functions(key, x) for key, x in arguments.items()})


def _from_artifact(path: str, slot: str) -> Any:
    """Return the function of one slot of an artifact."""
    from metaevo.storage import artifacts

    found = artifacts.load(path).slots
    if slot not in found:
        raise ConfigError(
            f"this artifact has no slot {slot!r}, but {', '.join(sorted(found))}"
        )
    return found[slot]


def _imported(text: str) -> Any:
    """Return the function that `package.module:function` names."""
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def named_functions(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that slots hold in place of functions, by key."""
    return {
        f"{key}.{name}": path
        for key, value in arguments.items()
        if hasattr(value, "_fields")
        for name, path in _given(value).items()
        if isinstance(path, str)
    }


def _with_functions(key: str, value: Any) -> Any:
    if not hasattr(value, "_fields"):
        return value
    for given, text in named_functions({key: value}).items():
        name = given.partition(".")[2]
        try:
            found = _imported(text) if ":" in text else _from_artifact(text, name)
        except (ArtifactError, ConfigError) as error:
            raise ConfigError(
                f"{given}={text}: {error}; expected package.module:function, or the "
                "path of an artifact"
            ) from None
        value = value._replace(**{name: found})
    return value


def _schema_of(hinted: Callable, defaults: dict[str, Any]) -> type:
    """Return a dataclass of all keys, against which OmegaConf checks.

    A mutable twin takes the place of each frozen dataclass, because OmegaConf cannot
    merge into a frozen one.
    """
    hints = typing.get_type_hints(hinted)

    def field(name, hint, default):
        if nested := _fields(default):
            given = _given(default)
            inner = [field(f, t, given.get(f)) for f, t in nested.items()]
            twin = dataclasses.make_dataclass(type(default).__name__, inner)
            return name, twin, dataclasses.field(default_factory=twin)
        if isinstance(default, tuple):
            values = dataclasses.field(default_factory=lambda: list(default))
            return name, list[_element(hint)], values
        return name, hint, float(default) if hint is float else default

    fields = [field(name, hints.get(name, Any), d) for name, d in defaults.items()]
    return dataclasses.make_dataclass("Keys", fields)


def _element(hint: Any) -> Any:
    """Return `int` for `tuple[int, ...]`."""
    arguments = [a for a in typing.get_args(hint) if a is not Ellipsis]
    return arguments[0] if arguments else Any


def _restore(default: Any, value: Any) -> Any:
    """Return plain data as a value of the type of `default`."""
    if fields := _fields(default):
        if dataclasses.is_dataclass(default):
            given = {f: _restore(getattr(default, f), value[f]) for f in fields}
            return type(default)(**given)
        # A slot for which nothing is given keeps its function.
        given = {f: value[f] for f in fields if value[f] is not None}
        return default._replace(**given)
    return tuple(value) if isinstance(default, tuple) else value


def _explain(key: str, value: str, error: Exception) -> str:
    """Return one line with the key, the value, the expectation and the nearest key."""
    message = str(error).splitlines()[0]
    if "not in" in message and "Key" in message:
        _, _, hint = message.partition("Did you mean")
        hint = f" Did you mean{hint.rstrip('?')}?" if hint else ""
        return f"unknown key {key!r}.{hint} --help lists the keys"
    return f"{key}={value}: {message}"
