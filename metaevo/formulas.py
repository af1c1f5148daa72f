"""Formulas in slots: losses, drifts, numbers and more as text, or as programs.

    td_loss(text="0.5*d**2 + 0.1*q")          a formula; its constants may evolve
    expression("td_loss", family="weighted")  programs, whose operations evolve too

Names in a formula are the slot's inputs in units of its own: errors, values and targets
in standard deviations of the value targets, s = `context.return_std`. A formula then
means the same whatever the scale of rewards. `t` is the agent's progress. The language
is `metaevo.learned.language`.

A family says what the formula P stands for:

    free        the loss itself, s² P; nothing is guaranteed
    weighted    ½ 8^tanh(P) e²: never negative, 0 only where there is no error
    ppo_clip, dpo, zero
                a drift, ReLU(base(r, A) + κ P), κ = u² / (0.04 + u²), u = log r
    increasing  a function whose slope is in proportion to 8^tanh(P)

Plain jnp, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import drifts
from metaevo.errors import ConfigError
from metaevo.learned import formula_slots, language
from metaevo.learned.formula_slots import LARGEST_WEIGHT, Family
from metaevo.learned.functions import Learned, LearnedGenome, whole
from metaevo.learned.language import MAX_TEXT
from metaevo.learned.operations import operation
from metaevo.slots import SIGNATURES, Context

__all__ = [
    "LARGEST_WEIGHT",
    "MAX_LENGTH",
    "MAX_TEXT",
    "SLOTS",
    "actor_loss",
    "at_points",
    "behaviour",
    "drift",
    "expression",
    "families",
    "fixed",
    "latex",
    "moved_inputs",
    "num_inputs",
    "number",
    "policy_loss",
    "priority",
    "q_transform",
    "rescale",
    "shown",
    "td_loss",
    "value_loss",
]

MAX_LENGTH = 16
LEAST_SLOPE = 1e-6  # mean size below which nothing is learned
NUM_POINTS = 64  # at which behaviour is looked at
SPARE = (1.0, 0.1, 0.5)  # constants that a program starts with, besides its own
KINDS = {
    **formula_slots.KINDS,
    "drift": formula_slots.drift(drifts.HAND_MADE, drifts.FARTHEST),
}
SLOTS = tuple(KINDS)


def _family(slot: str, family: str) -> Family:
    named = KINDS[slot].families
    if family not in named:
        raise ConfigError(f"family={family!r}: expected one of {', '.join(named)}")
    return named[family]


def families(slot: str) -> tuple[str, ...]:
    """Names of the families of a slot that takes formulas."""
    return tuple(KINDS[slot].families)


def num_inputs(slot: str) -> int:
    """Number of a slot's inputs, without the context."""
    return len(SIGNATURES[slot])


def moved_inputs(slot: str) -> tuple[int, ...]:
    """Inputs by which the agent learns, of a slot that takes formulas."""
    return tuple(KINDS[slot].moves)


def _shape(inputs: Sequence[Any]) -> tuple[int, ...]:
    return jnp.broadcast_shapes(*map(jnp.shape, inputs))


# --- one formula ----------------------------------------------------------------------


@functools.cache
def _parsed(slot: str, text: str) -> language.Formula:
    if not isinstance(text, str):
        raise ConfigError(f"text={text!r}: expected a formula as text")
    return language.parse(text, tuple(KINDS[slot].leaves))


def _reads(slot: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Return a function of an operation's settings: the scalars that it reads."""

    def reads(op):
        kind = KINDS[slot]
        found = set(_family(slot, op["family"]).reads)
        for i in language.used_leaves(_parsed(slot, op["text"])):
            found |= set([*kind.leaves.values()][i].reads)
        return tuple(x for x in ("return_std", "progress") if x in found)

    return reads


def _formula(slot: str, text: str, family: str) -> Learned:
    """The formula, in a family, with its constants as params {"constants": [C]}."""
    kind, chosen = KINDS[slot], _family(slot, family)
    formula = _parsed(slot, text)
    used = language.used_leaves(formula)
    constants = formula.constants or (0.0,)

    def apply(params, inputs, context):
        inputs = kind.elementwise(inputs)
        places = chosen.places(inputs)
        leaves = [
            jnp.asarray(leaf.of(places, context) if i in used else 0.0)
            for i, leaf in enumerate(kind.leaves.values())
        ]
        p = language.run(formula, params["constants"], leaves)
        shape = jnp.broadcast_shapes(_shape(places), p.shape)
        return chosen.wrap(jnp.broadcast_to(p, shape), inputs, context)

    return Learned(
        lambda key: {"constants": jnp.asarray(constants, jnp.float32)},
        _taking_inputs(slot, apply),
    )


def _taking_inputs(slot: str, function: Callable) -> Callable:
    """`function(params, inputs, context)` with the signature of a slot's functions."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ("params", *SIGNATURES[slot])
    parameters = [inspect.Parameter(name, kind) for name in names]
    parameters.append(inspect.Parameter("context", kind, default=None))
    signature = inspect.Signature(parameters)

    def apply(*args, **named):
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        params, *inputs, context = bound.args
        return function(params, inputs, context)

    apply.__dict__["__signature__"] = signature
    return apply


def _guarantees(slot: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    return lambda op: _family(slot, op["family"]).guarantees


@operation(
    "td_formula",
    slot="td_loss",
    reads=_reads("td_loss"),
    guarantees=_guarantees("td_loss"),
    examples=(
        {},
        {"text": "0.5*tanh(d - q) + 0.1*y", "family": "weighted"},
    ),
)
def td_loss(
    text: str = "0.5*d**2", family: Literal["free", "weighted"] = "free"
) -> Learned:
    """A loss of the temporal difference.

    Args:
        text: of d = δ / s, q = Q / s, y = target / s and t.
        family: `free`, s² P, or `weighted`, ½ 8^tanh(P) δ².

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("td_loss", text, family)


@operation(
    "value_formula",
    slot="value_loss",
    reads=_reads("value_loss"),
    guarantees=_guarantees("value_loss"),
    examples=({"text": "0.5*e**2 + 0.1*max(v - o, 0)"},),
)
def value_loss(
    text: str = "0.5*e**2", family: Literal["free", "weighted"] = "free"
) -> Learned:
    """A loss of values.

    Args:
        text: of e = (v − g) / s, v = value / s, g = target / s, o = old_value / s
            and t.
        family: `free`, s² P, or `weighted`, ½ 8^tanh(P) (v − g)².

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("value_loss", text, family)


@operation(
    "drift_formula",
    slot="drift",
    reads=_reads("drift"),
    guarantees=_guarantees("drift"),
    examples=({"text": "0.5*gate(A, u) - 2*eps"},),
)
def drift(
    text: str = "0", family: Literal["ppo_clip", "dpo", "zero"] = "ppo_clip"
) -> Learned:
    """A drift, ReLU(base(r, A) + κ P), κ = u² / (0.04 + u²).

    Args:
        text: of u = log r, A, eps and t.
        family: the base, a drift.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("drift", text, family)


@operation(
    "policy_formula",
    slot="policy_loss",
    reads=_reads("policy_loss"),
    examples=({"text": "0.1*max(u*A, 0)"},),
)
def policy_loss(text: str = "0", family: Literal["free"] = "free") -> Learned:
    """A term of the policy's loss.

    Args:
        text: of logp = log π, u = log r, A, H, the entropy, and t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("policy_loss", text, family)


@operation(
    "priority_formula",
    slot="priority",
    reads=_reads("priority"),
    guarantees=_guarantees("priority"),
    examples=({"text": "0.5*tanh(d) - 0.3*log1p(visits)"},),
)
def priority(text: str = "0", family: Literal["weighted"] = "weighted") -> Learned:
    """A priority of a transition, |δ| 8^tanh(P).

    Args:
        text: of d = δ / s, age, visits, r = reward / s, end and t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("priority", text, family)


@operation(
    "actor_formula",
    slot="actor_loss",
    reads=_reads("actor_loss"),
    guarantees=_guarantees("actor_loss"),
    examples=({"text": "0.1*a2 - q"},),
)
def actor_loss(text: str = "-q", family: Literal["free"] = "free") -> Learned:
    """A loss of a deterministic actor.

    Args:
        text: of q, the critic's value of the actor's action; a2, the mean square of the
            action's numbers; and t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("actor_loss", text, family)


@operation(
    "rescale_formula",
    slot="rescale",
    reads=_reads("rescale"),
    guarantees=_guarantees("rescale"),
    examples=({"text": "0.5*tanh(h) - 0.1"},),
)
def rescale(text: str = "0", family: Literal["increasing"] = "increasing") -> Learned:
    """A rescaling of returns, ∫ 8^tanh(P) from 0 to h₀(x), h₀ the signed root.

    The integral is a sum over cells of |h₀| with the edges 0, ¼, ½, 1, 2 ... 16.

    Args:
        text: of h = h₀ and t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("rescale", text, family)


@operation(
    "q_formula",
    slot="q_transform",
    reads=_reads("q_transform"),
    guarantees=_guarantees("q_transform"),
    examples=({"text": "0.5*q - 0.2"},),
)
def q_transform(
    text: str = "0", family: Literal["increasing"] = "increasing"
) -> Learned:
    """An increasing map of [0, 1] onto itself, with slopes in proportion to 8^tanh(P).

    It is linear on 16 equal pieces.

    Args:
        text: of q and t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("q_transform", text, family)


@operation(
    "number_formula",
    slot="number",
    reads=_reads("number"),
    examples=({"text": "0.001*(1 - t)"},),
)
def number(text: str = "0.001", family: Literal["free"] = "free") -> Learned:
    """A number that follows a formula of the agent's progress.

    Args:
        text: of t.

    Raises:
        ConfigError: the text is no formula, or there is no such family.
    """
    return _formula("number", text, family)


_BUILDERS: Mapping[str, Callable[..., Learned]] = {
    "td_loss": td_loss,
    "value_loss": value_loss,
    "drift": drift,
    "policy_loss": policy_loss,
    "priority": priority,
    "actor_loss": actor_loss,
    "rescale": rescale,
    "q_transform": q_transform,
    "number": number,
}


def _with_constants(slot: str, op: Mapping[str, Any], params: Any) -> language.Formula:
    """The formula of an entry of `Space.spec`, with its constants as they are now."""
    formula = _parsed(slot, op["text"])
    numbers = map(float, np.asarray(params["constants"])[: len(formula.constants)])
    return formula._replace(constants=tuple(numbers))


def shown(slot: str, op: Mapping[str, Any], params: Any) -> str:
    """A function as text, of `weighted` such as `0.5*8**tanh(d*y)*d**2`.

    Args:
        op: its settings, an entry of `Space.spec`.
        params: its constants.
    """
    family = _family(slot, op["family"])
    *named, value = language.text(_with_constants(slot, op, params)).split("; ")
    if family.shown is None:
        return "; ".join([*named, value])
    inside = value if "tanh(P)" in family.shown else f"({value})"
    return "; ".join([*named, family.shown.replace("P", inside)])


def latex(slot: str, op: Mapping[str, Any], params: Any) -> str:
    """The formula P of a function as LaTeX; arguments as of `shown`."""
    symbols = {name: leaf.symbol for name, leaf in KINDS[slot].leaves.items()}
    return language.latex(_with_constants(slot, op, params), symbols)


def fixed(slot: str, source: str) -> Partial:
    """A formula as the value of a slot.

    Args:
        slot: one of `SLOTS`; `number` for every slot that holds a number.
        source: the text, after the name of a family and a colon if it is not the
            builder's default: `0.5*d**2 + 0.1*q`, `weighted: gate(d*y, -1)`.

    Raises:
        ConfigError: the text is no formula, or the slot takes none.

    >>> loss = fixed("td_loss", "0.5*d**2")
    >>> float(loss(2.0, 1.0, 3.0, Context(return_std=4.0)))
    2.0
    """
    if slot not in _BUILDERS:
        raise ConfigError(f"slot {slot!r} takes no formula; {', '.join(SLOTS)} do")
    family, colon, text = source.partition(":")
    named = {"family": family.strip()} if colon else {}
    made = _BUILDERS[slot](text if colon else source, **named)
    return made.bind(made.init(jax.random.key(0)))


# --- programs -------------------------------------------------------------------------


def expression(
    slot: str,
    *,
    family: str | None = None,
    length: int = 12,
    start: str | None = None,
) -> Learned:
    """Programs that stand for formulas of a slot, to evolve.

    Params are `length` instructions and their constants; see `language`. One program of
    XLA carries out all of them, in forward mode: it computes value and slope together,
    and a whole training takes about as long as with the square. The best member is kept
    as its formula.

    Args:
        slot: one of `SLOTS`; `number` for every slot that holds a number.
        family: what the formula stands for, see the module; None: `weighted` for a
            loss, `ppo_clip` for a drift.
        length: L in [1, 16], instructions, of which the last is the value.
        start: text of the formula at the start; None: the hand-made function, which a
            number does not have.

    Raises:
        ConfigError: a setting is wrong, or the text is no formula.
    """
    if slot not in KINDS:
        raise ConfigError(f"slot={slot!r}: expected one of {', '.join(KINDS)}")
    if slot == "number" and start is None:
        raise ConfigError("expression('number'): give the text of its start")
    kind = KINDS[slot]
    family = next(iter(kind.families)) if family is None else family
    chosen = _family(slot, family)
    length = whole(1, MAX_LENGTH, length=length)
    usual = chosen.start
    formula = _parsed(slot, usual if start is None else start)
    leaves, num_leaves = tuple(kind.leaves), len(kind.leaves)
    build = functools.partial(_BUILDERS[slot], family=family)

    def init(key):
        return language.as_arrays(formula, key, length, SPARE)

    size = len(formula.constants) + len(SPARE)

    def read(text):
        given = _parsed(slot, text)
        spare = size - len(given.constants)
        if spare < 0:
            raise ConfigError(
                f"a formula of {len(given.constants)} constants; programs here have "
                f"{size}"
            )
        key = jax.random.key(0)
        return language.as_arrays(given, key, length, (*SPARE, *SPARE)[:spare])

    def plain(params, inputs, context):
        places = chosen.places(inputs)
        told = [jnp.asarray(leaf.of(places, context)) for leaf in kind.leaves.values()]
        shape = jnp.broadcast_shapes(_shape(places), *map(jnp.shape, told))
        told = [jnp.broadcast_to(x, shape) for x in told]
        p = language.interpret(params, jnp.stack(told))
        return chosen.wrap(p, inputs, context)

    def apply(params, inputs, context):
        given = kind.elementwise(inputs)
        return _forward(lambda *x: plain(params, x, context), given, kind.moves)

    def bound(params):
        return lambda *given: plain(params, kind.elementwise(given[:-1]), given[-1])

    def settled(params):
        found = language.of_arrays(jax.device_get(params), leaves)
        kept = build(language.text(found))
        return kept, kept.init(jax.random.key(0))

    programs = LearnedGenome(
        lambda key, params: language.mutate(key, params, num_leaves),
        lambda params: behaviour(slot, bound(params)),
        lambda params: language.live(params, num_leaves).sum(),
        settled,
        read,
    )
    spec = build(usual if start is None else start).spec
    spec = {**spec, "label": f"programs of {length} operations"}
    hand_made = start is None and family not in ("dpo", "zero")
    return Learned(init, _taking_inputs(slot, apply), spec, hand_made, programs)


def behaviour(slot: str, function: Callable) -> jax.Array:
    """Numbers by which functions of a slot are told apart, [64 or more].

    Slopes along what the agent moves, at 64 fixed points, or values of a function that
    has no slopes. Where a factor is only another step size they are divided by their
    mean size. All are 0 of a function from which nothing is learned.

    Args:
        slot: of those that take formulas.
        function: a value of the slot, elementwise.
    """
    found = jnp.ravel(at_points(slot, function)[-1])
    size = jnp.abs(found).mean()
    scale = size if KINDS[slot].scale_free else 1.0
    return jnp.where(size > LEAST_SLOPE, jnp.round(found / scale, 3), 0.0)


def at_points(slot: str, function: Callable) -> tuple[jax.Array, ...]:
    """Values [64] at fixed points, and slopes [moves, 64] if the agent moves any."""
    kind, (inputs, context) = KINDS[slot], _points(slot)
    if not kind.moves:

        def one(progress, *x):
            return function(*x, context._replace(progress=progress))

        return (jax.vmap(one)(context.progress, *inputs),)
    return _slopes(lambda *x: function(*x, context), inputs, kind.moves)


Moves = Mapping[int, Mapping[int, float]]


def _slopes(
    of: Callable, inputs: Sequence[jax.Array], moves: Moves
) -> tuple[jax.Array, jax.Array]:
    """`of(*inputs)` [...] and its derivatives along `moves` [len(moves), ...].

    Forward mode needs nothing of each instruction later, so reverse mode through a
    scan, which is slow, is spared. All is elementwise.
    """
    if not moves:
        return of(*inputs), jnp.zeros(0)

    def along(rates):
        tangents = [rates[i] * jnp.ones_like(x) for i, x in enumerate(inputs)]
        return jax.jvp(of, tuple(inputs), tuple(tangents))

    rates = np.zeros((len(moves), len(inputs)), np.float32)
    for row, (i, others) in zip(rates, moves.items(), strict=True):
        for j, rate in {i: 1.0, **others}.items():
            row[j] = rate
    if len(moves) == 1:
        value, slope = along(rates[0])
        return value, slope[None]
    return jax.vmap(along, out_axes=(None, 0))(rates)


def _forward(of: Callable, inputs: Sequence[Any], moves: Moves) -> jax.Array:
    """`of(*inputs)`, differentiable in the inputs that the agent moves."""
    given = [jnp.asarray(x, jnp.result_type(float)) for x in inputs]
    held = [jax.lax.stop_gradient(x) for x in given]
    value, slopes = jax.lax.stop_gradient(_slopes(of, held, moves))
    for i, slope in zip(moves, slopes, strict=True):
        value = value + slope * (given[i] - held[i])
    return value


@functools.cache
def _drawn_points(slot: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    points = [rng.normal(size=NUM_POINTS) * 1.5 for _ in range(num_inputs(slot))]
    if slot == "td_loss":
        points[0] = points[2] - points[1]
    elif slot == "drift":
        points[0], points[2] = 0.5 * points[0], np.full(NUM_POINTS, 0.2)
    elif slot == "priority":
        points[1:3] = [np.abs(x) for x in points[1:3]]
        points[4] = (points[4] > 1).astype(float)
    elif slot == "actor_loss":
        points[1] = points[1][:, None]
    elif slot == "q_transform":
        points = [rng.uniform(size=NUM_POINTS)]
    return (*points, rng.uniform(size=NUM_POINTS))


def _points(slot: str) -> tuple[tuple[jax.Array, ...], Context]:
    """Inputs [64] at which members are told apart, and their context."""
    *inputs, progress = (jnp.asarray(x, jnp.float32) for x in _drawn_points(slot))
    return tuple(inputs), Context(progress=progress, return_std=1.0)
