"""A search function made of what many searches share and of one's own space."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from metaevo import envs
from metaevo.types import InnerLoop, Search, Space

Build = Callable[[InnerLoop, Space, Mapping[str, Any]], Search]


def framed(
    loop: ModuleType,
    inner: Any,
    meta: Any,
    shared: Mapping[str, Any],
    build: Build,
    kinds: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Space]], Callable[..., Search]]:
    """Make a decorator: of a function that makes a space, it makes a search function.

    The parameters of the search are the keys of `shared`, the parameters of the
    decorated function that have a default, `inner` and `meta`. A parameter of the
    function without a default is given the search's argument of that name; `env` is
    the environment itself.

    Args:
        loop: the module of an inner loop.
        inner, meta: defaults of the loop's `Config` and `Meta`.
        shared: default of each parameter that searches of this kind have, with `env`.
        build: `(inner loop, space, arguments of the search) -> Search`.
        kinds: types of those of `shared` that are more than the type of the default.
    """

    def decorate(space_of: Callable[..., Space]) -> Callable[..., Search]:
        parameters = inspect.signature(space_of).parameters
        own = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not parameter.empty
        }
        defaults = {**shared, **own, "inner": inner, "meta": meta}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature(
            [inspect.Parameter(name, kind, default=x) for name, x in defaults.items()]
        )

        @functools.wraps(space_of)
        def search(*args: Any, **named: Any) -> Search:
            bound = signature.bind(*args, **named)
            bound.apply_defaults()
            env = envs.make(bound.arguments["env"])
            inside = bound.arguments | {"env": env}
            space = space_of(**{name: inside[name] for name in parameters})
            made = loop.make(env, inside["inner"], inside["meta"])
            return build(made, space, inside)

        hints = typing.get_type_hints(space_of)
        types = {name: type(x) for name, x in defaults.items()} | dict(kinds or {})
        search.__annotations__ = types | {name: hints[name] for name in own}
        search.__dict__["__signature__"] = signature
        return search

    return decorate
