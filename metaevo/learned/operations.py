"""Registry of learned functions.

A learned function is one builder in one file. The decorator names it, and adds the
settings to what it returns:

    @operation("td_network", slot="td_loss", hand_made=HAND_MADE_TD)
    def td_network(base="td_square", features=(16,), ...) -> Learned:

Artifacts, their numpy reference, portraits, closed forms, the table in `docs/spaces.md`
and the contract tests read the rest from here.

The registry is a list of modules, `MODULES`. Lookup imports them by name and collects
the decorated builders, so the result does not depend on earlier imports. These modules
lie above this one in the order of layers, and closed forms lie above them: all are text
here, imported on first use. An installed package adds modules of its own by entry
points:

    [project.entry-points."metaevo.operations"]
    mine = "my_package.my_losses"

The decorator itself enters the builders of all other modules, such as a file beside a
search: they are known once that module is imported. `metaevo.storage.sources` records
in an artifact where such a builder stands, and `metaevo.storage.programs` stands in for
it where its module is not imported.

Needs no more than jax, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from metaevo import slots
from metaevo.errors import ArtifactError, ConfigError

__all__ = [
    "ENTRY_POINTS",
    "GUARANTEES",
    "MODULES",
    "STORED",
    "Operation",
    "everything",
    "get",
    "is_installed",
    "operation",
    "own",
    "resolve",
]

MODULES = (
    "metaevo.losses",
    "metaevo.critic_losses",
    "metaevo.drifts",
    "metaevo.advantages",
    "metaevo.activations",
    "metaevo.learned.optimizers",
    "metaevo.rewards",
    "metaevo.messages",
    "metaevo.exploration",
    "metaevo.learned.priorities",
    "metaevo.learned.rescalings",
    "metaevo.closed_forms",
    "metaevo.formulas",
    "metaevo.schedules",
    "metaevo.policies",
)
"""Modules of metaevo that hold operations, in the order of the docs."""

ENTRY_POINTS = "metaevo.operations"
"""Group of the entry points by which other packages name their modules."""

GUARANTEES: Mapping[str, str] = {
    "nonnegative": "a loss >= 0",
    "coercive": "a loss that grows without bound in |value - target|, the target fixed",
    "scale-equivariant": "f(c v, c g) = c² f(v, g) if context.return_std is c times as "
    "large, c > 0: gradients scale as the squared error's",
    "convex": "a loss whose slope in value - target never falls",
    "drift": "D(r, A) >= 0, D(1, A) = 0, dD/dr(1, A) = 0",
    "potential": "a reward that adds gamma (1 - terminated) Phi(o') - Phi(o)",
    "increasing": "a function of one number that never falls, from 0 at 0 to 1 at 1",
    "order-preserving": "a function of one number that rises everywhere, 0 at 0",
    "between": "a weight that never falls with the ratio, lies between 1 and it, and "
    "is at most `largest` of its settings",
    "proportional": "a priority between |td_error| / `largest` of its settings and "
    "|td_error| times it; c times as large if td_error, reward and context.return_std "
    "are, c > 0",
    "bounded": "|output| <= `bound` of its facts; of a reward, where the reward is 0",
}
"""Guarantees that a family may give for all parameters: name -> meaning."""

STORED = "stored:"
"""First part of the name of a function that runs by its stored program."""

_STORED_FUNCTION = "metaevo.storage.programs:operation"
_OWN: dict[str, Operation] = {}

Settings = Mapping[str, Any]
Shape = tuple[int | str, ...]
_Builder = TypeVar("_Builder", bound=Callable)


class Operation(NamedTuple):
    """A learned function as the rest of metaevo knows it.

    References are `"module:name"`, resolved on first use.

    Attributes:
        name: its `op` in artifacts; never changes.
        slot: the kind of slot it fits, a key of `slots.SIGNATURES`.
        build: `(**settings) -> Learned` or `LearnedOptimizer`.
        settings: names of the settings that an artifact holds.
        optional: names of settings that an artifact holds only if they are not the
            default: `SWITCHES`, and those whose default is None.
        hand_made: the slot's value as which it starts, or these by the setting `base`,
            or a reference; None if there is no such start.
        portrait: `op -> ` what its portrait shows, see `metaevo.learned.portraits`;
            None: what those of its kind show.
        closed_form: reference to a family of `metaevo.analysis.curve_fits`, or None.
        shapes: `op -> {input: shape}` where an input is not one number an element,
            ("n",); "n" elements and "a" actions are open.
        reads: `op -> names` of the scalars that it reads of its context, in order,
            besides the progress of a temporal function.
        for_env: `Env -> settings` that follow from an environment.
        guarantees: `op -> names` in `GUARANTEES` of what holds for all parameters. The
            contract tests hold an operation to each that it names.
        facts: `(op, params) -> numbers by name` that hold for one member by
            construction: `minimum`, of a critic's loss, as value - target; `bound`, of
            what a function gives or adds.
        as_params: True if an algorithm's slot takes the parameters, not the function.
        examples: settings, small, for tests; the first stands for the others.
    """

    name: str
    slot: str
    build: Callable[..., Any]
    settings: frozenset[str]
    optional: frozenset[str] = frozenset()
    hand_made: Any = None
    portrait: Callable[[Settings], Any] | None = None
    closed_form: str | None = None
    shapes: Callable[[Settings], Mapping[str, Shape]] = lambda op: {}
    reads: Callable[[Settings], tuple[str, ...]] = lambda op: ()
    for_env: Callable[[Any], Settings] = lambda env: {}
    guarantees: Callable[[Settings], tuple[str, ...]] = lambda op: ()
    facts: Callable[[Settings, Any], Mapping[str, float]] = lambda op, params: {}
    as_params: bool = False
    examples: Sequence[Settings] = ({},)

    @property
    def title(self) -> str:
        """The builder as users write it, such as `losses.td_network`."""
        return f"{self.build.__module__.removeprefix('metaevo.')}.{self.build.__name__}"

    def rebuild(self, op: Settings) -> Any:
        """The learned function of an entry of `Space.spec` or of a manifest.

        Raises:
            ArtifactError: the entry has other settings than the operation.
            ValueError, TypeError: a setting has a wrong value.
        """
        # A label is for readers.
        given = {key: value for key, value in op.items() if key not in ("op", "label")}
        if given.keys() - self.optional != self.settings:
            raise ArtifactError(
                f"{self.name}: settings {sorted(given)} != {sorted(self.settings)}"
            )
        return self.build(**given)

    def start(self, settings: Settings) -> Any:
        """The hand-made slot value that it starts as with `settings`; None if none."""
        if isinstance(self.hand_made, str):
            return resolve(self.hand_made)
        if isinstance(self.hand_made, Mapping):
            default = inspect.signature(self.build).parameters["base"].default
            return self.hand_made.get(settings.get("base", default))
        return self.hand_made


SWITCHES = ("temporal", "signed", "uncentered")
"""Settings that are False by default and then left out of a `spec`."""


def operation(name: str, *, slot: str, **values: Any) -> Callable[[_Builder], _Builder]:
    """Register the builder of a learned function; a decorator.

    The builder's parameters are the operation's settings. `SWITCHES`, and those whose
    default is None, are optional in artifacts, so that those without stay as they are.
    What the builder returns gets them as its `spec`. The builder itself fills into
    `spec` only the settings that differ from its arguments, such as the name of a
    function, or a label. A setting whose default is a bool has to be one.

    Args:
        name: the operation's name in artifacts.
        slot: a key of `slots.SIGNATURES`.
        **values: further attributes of `Operation`.

    Raises:
        ConfigError: there is no such kind of slot, or another builder has this name.
    """
    if slot not in slots.SIGNATURES:
        raise ConfigError(
            f"slot={slot!r}: expected one of {', '.join(slots.SIGNATURES)}"
        )

    def register(build: _Builder) -> _Builder:
        parameters = inspect.signature(build).parameters
        optional = frozenset(
            name
            for name, x in parameters.items()
            if name in SWITCHES or x.default is None
        )
        required = frozenset(parameters) - optional
        described = cast("_Builder", _describing(name, build))
        made = Operation(name, slot, described, required, optional, **values)
        described.__dict__["operation"] = made
        if build.__module__ not in MODULES:
            _enter(made)
        return described

    return register


def _describing(name: str, build: Callable) -> Callable:
    """`build`, the result of which has the operation's name and settings as `spec`.

    A result whose spec has a name is left as it is.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def described(*args, **settings):
        bound = signature.bind(*args, **settings)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            usual = signature.parameters[key].default
            if isinstance(usual, bool) and not isinstance(value, bool):
                raise ConfigError(f"{key}={value!r}: expected true or false")
        learned = build(*args, **settings)
        if "op" in learned.spec:
            return learned
        spec = {"op": name, **bound.arguments, **learned.spec}
        on = {key: True for key in SWITCHES if spec.pop(key, False)}
        spec = {key: _plain(x) for key, x in spec.items() if x is not None}
        return learned._replace(spec=spec | on)

    return described


def _plain(x: Any) -> Any:
    """Sequences as lists, and whole numbers as Python's.

    >>> _plain({"size": (1, np.int64(2))})
    {'size': [1, 2]}
    """
    if isinstance(x, Mapping):
        return {key: _plain(y) for key, y in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, str):
        return [_plain(y) for y in x]
    return int(x) if isinstance(x, np.integer) else x


def _enter(made: Operation) -> None:
    """Keep an operation of a module that is not metaevo's.

    A module that is imported again, and a cell of a notebook that is run again, replace
    what they entered before.
    """
    known = _OWN.get(made.name)
    if known is not None and not _places(known.build) & _places(made.build):
        raise ConfigError(
            f"operation {made.name!r} is both {known.title} and {made.title}; give "
            "one of them another name"
        )
    _OWN[made.name] = made


def _places(build: Callable) -> set[tuple[str, str]]:
    """The module and the file of a builder, each with its name there."""
    code = getattr(inspect.unwrap(build), "__code__", None)
    file = getattr(code, "co_filename", build.__module__)
    return {(x, build.__qualname__) for x in (build.__module__, file)}


def resolve(reference: str) -> Any:
    """The object that `"module:name"` refers to.

    >>> resolve("math:pi")
    3.141592653589793
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def get(name: str) -> Operation:
    """The operation of a name; metaevo's own come first.

    Raises:
        ArtifactError: there is none, two have this name, or an entry point cannot be
            imported.
    """
    if name.startswith(STORED):
        return resolve(_STORED_FUNCTION)(name)
    mine = _OWN.get(name)
    for found in _ours():
        if found.name == name:
            return found if mine is None else _one_of(found, mine)
    for found in [mine] if mine is not None else _declared():
        if found.name == name:
            return found
    raise ArtifactError(f"unknown operation {name!r}")


def own(name: str) -> Operation | None:
    """The operation of a module that was imported here; None if there is none.

    Those of metaevo and of installed packages are not among them.
    """
    found = _OWN.get(name)
    declared = {point.module for point in _points()} if found is not None else set()
    return None if found is None or found.build.__module__ in declared else found


def is_installed(name: str) -> bool:
    """True for an operation of metaevo or of an installed package.

    Raises:
        ArtifactError: an entry point cannot be imported.
    """
    installed = itertools.chain(_ours(), _declared())
    return name.startswith(STORED) or any(one.name == name for one in installed)


def everything() -> dict[str, Operation]:
    """All operations by name: metaevo's, packages', and those of modules imported here.

    Raises:
        ArtifactError: two operations have one name, or an entry point cannot be
            imported.
    """
    found: dict[str, Operation] = {}
    for one in itertools.chain(_ours(), _declared(), _OWN.values()):
        found[one.name] = _one_of(found.get(one.name, one), one)
    return found


def _one_of(one: Operation, other: Operation) -> Operation:
    if one.build is not other.build:
        raise ArtifactError(
            f"operation {one.name!r} is both {one.title} and {other.title}"
        )
    return one


def _ours() -> Iterator[Operation]:
    """metaevo's operations; each module is imported when it is its turn."""
    for name in MODULES:
        yield from _inside(importlib.import_module(name))


def _points() -> list[importlib.metadata.EntryPoint]:
    declared = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return sorted(declared, key=lambda point: (point.name, point.value))


def _declared() -> Iterator[Operation]:
    """Operations of installed packages."""
    for point in _points():
        try:
            module = importlib.import_module(point.module)
        except ImportError as error:
            raise ArtifactError(
                f"entry point {point.name!r} of {ENTRY_POINTS!r}: {error}"
            ) from None
        yield from _inside(module)


def _inside(module: ModuleType) -> Iterator[Operation]:
    """The operations whose builders a module defines."""
    for value in vars(module).values():
        found = getattr(value, "operation", None)
        if isinstance(found, Operation) and found.build.__module__ == module.__name__:
            yield found
