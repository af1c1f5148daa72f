"""Registry of learned functions.

A learned function is one builder in one file. The decorator names it:

    @operation("td_network", slot="td_loss", hand_made=HAND_MADE_TD)
    def td_network(base="td_square", features=(16,), ...) -> Learned:

Artifacts, their numpy reference, plots, closed forms, the table in `docs/spaces.md` and
the contract tests read the rest from here. An artifact names an operation, never a
module.

The registry is a list of modules, `MODULES`. Lookup imports them by name and collects
the decorated builders, so the result does not depend on earlier imports. These modules
lie above this one in the order of layers, and plots and closed forms lie above them:
all are text here, imported on first use. An installed package adds modules of its own
by entry points:

    [project.entry-points."metaevo.operations"]
    mine = "my_package.my_losses"

Needs no more than jax, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from metaevo import slots
from metaevo.errors import ArtifactError

__all__ = [
    "ENTRY_POINTS",
    "GUARANTEES",
    "MODULES",
    "Operation",
    "everything",
    "get",
    "operation",
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

DEFAULT_PLOT = "metaevo.analysis.plots.generic:curves"

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
            default: `temporal`, and those whose default is None.
        hand_made: the slot's value as which it starts, or these by the setting `base`,
            or a reference; None if there is no such start.
        plot: reference to `(Evolved) -> Portrait`, see `metaevo.analysis.plots`.
        together: True if `plot` takes a list, and draws all of a run in one portrait.
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
    plot: str = DEFAULT_PLOT
    together: bool = False
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


def operation(name: str, *, slot: str, **values: Any) -> Callable[[_Builder], _Builder]:
    """Register the builder of a learned function; a decorator.

    The builder's parameters are the operation's settings. `temporal`, and those whose
    default is None, are optional in artifacts, so that those without stay as they are.

    Args:
        name: the operation's name in artifacts.
        slot: a key of `slots.SIGNATURES`.
        **values: further attributes of `Operation`.

    Raises:
        ValueError: there is no such kind of slot.
    """
    if slot not in slots.SIGNATURES:
        raise ValueError(
            f"slot={slot!r}: expected one of {', '.join(slots.SIGNATURES)}"
        )

    def register(build: _Builder) -> _Builder:
        parameters = inspect.signature(build).parameters
        optional = frozenset(
            name
            for name, x in parameters.items()
            if name == "temporal" or x.default is None
        )
        required = frozenset(parameters) - optional
        build.__dict__["operation"] = Operation(
            name, slot, build, required, optional, **values
        )
        return build

    return register


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
        ArtifactError: there is none, or an entry point cannot be imported.
    """
    for module in _modules():
        for found in _inside(module):
            if found.name == name:
                return found
    raise ArtifactError(f"unknown operation {name!r}")


def everything() -> dict[str, Operation]:
    """All operations by name, in the order of `MODULES`, then of entry points.

    Raises:
        ArtifactError: two operations have one name, or an entry point cannot be
            imported.
    """
    found: dict[str, Operation] = {}
    for module in _modules():
        for one in _inside(module):
            if one.name in found:
                raise ArtifactError(
                    f"operation {one.name!r} is both {found[one.name].title} and "
                    f"{one.title}"
                )
            found[one.name] = one
    return found


def _modules() -> Iterator[ModuleType]:
    """Imports, one after the other, the modules that may hold operations."""
    for name in MODULES:
        yield importlib.import_module(name)
    declared = importlib.metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(declared, key=lambda point: (point.name, point.value)):
        try:
            module = importlib.import_module(point.module)
        except ImportError as error:
            raise ArtifactError(
                f"entry point {point.name!r} of {ENTRY_POINTS!r}: {error}"
            ) from None
        yield module


def _inside(module: ModuleType) -> Iterator[Operation]:
    """The operations whose builders a module defines."""
    for value in vars(module).values():
        found = getattr(value, "operation", None)
        if isinstance(found, Operation) and found.build.__module__ == module.__name__:
            yield found
