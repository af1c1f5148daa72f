"""Formulas in slots: losses, drifts and priorities as lines of text, or as programs.

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

Plain jnp, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import drifts
from metaevo.errors import ConfigError
from metaevo.learned import functions, language
from metaevo.learned.functions import Learned, LearnedGenome, whole
from metaevo.learned.language import MAX_TEXT
from metaevo.learned.operations import operation
from metaevo.slots import SIGNATURES, Context

__all__ = [
    "LARGEST_WEIGHT",
    "MAX_LENGTH",
    "MAX_TEXT",
    "SLOTS",
    "at_points",
    "behaviour",
    "drift",
    "expression",
    "families",
    "fixed",
    "latex",
    "moved_inputs",
    "num_inputs",
    "policy_loss",
    "priority",
    "shown",
    "td_loss",
    "value_loss",
]

LARGEST_WEIGHT = 8.0
MAX_LENGTH = 16
LEAST_SLOPE = 1e-6  # mean size below which nothing is learned
NUM_POINTS = 64  # at which behaviour is looked at
SPARE = (1.0, 0.1, 0.5)  # constants that a program starts with, besides its own
_HALF_WIDTH = 0.2  # |log r| at which κ is a half


class Leaf(NamedTuple):
    """A name in formulas.

    Attributes:
        of: `(inputs of the slot, context) -> [...]`.
        symbol: LaTeX.
        reads: what it reads of the context.
    """

    of: Callable[[Sequence[jax.Array], Context | None], Any]
    symbol: str
    reads: tuple[str, ...] = ()


class Family(NamedTuple):
    """Meaning of a formula in a slot.

    Attributes:
        wrap: `(P [...], inputs, context) -> [...]`.
        start: P of the hand-made function, as text.
        shown: the function as text, with P in it; None: P is the function.
        guarantees: as of `operations.Operation`.
        reads: what `wrap` reads of the context.
    """

    wrap: Callable[[jax.Array, Sequence[jax.Array], Context | None], jax.Array]
    start: str
    shown: str | None = None
    guarantees: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


class Kind(NamedTuple):
    """A kind of slot that takes formulas.

    Attributes:
        leaves: by name.
        families: by name; the first is the default of `expression`.
        moves: what the agent moves: an input, and by how much other inputs move with
            it. The function is differentiated along these. Empty: members are told
            apart by values.
        scale_free: True if members that differ by a factor are the same member, with
            another step size.
    """

    leaves: Mapping[str, Leaf]
    families: Mapping[str, Family]
    moves: Mapping[int, Mapping[int, float]]
    scale_free: bool = True


def _input(i: int) -> Callable:
    return lambda inputs, context: jnp.asarray(inputs[i], jnp.result_type(float))


def _in_std(i: int) -> Callable:
    return lambda inputs, context: inputs[i] / functions.return_std(context)


_STD = ("return_std",)
_T = Leaf(lambda inputs, context: functions.progress(context), "t", ("progress",))


def _free(p, inputs, context):
    del inputs
    return functions.return_std(context) ** 2 * p


def _weight(p):
    return jnp.exp(math.log(LARGEST_WEIGHT) * jnp.tanh(p))


def _weighted(error: Callable) -> Callable:
    def wrap(p, inputs, context):
        del context
        return 0.5 * _weight(p) * error(inputs) ** 2

    return wrap


def _drift(base: Callable) -> Callable:
    def wrap(p, inputs, context):
        ratio = jnp.clip(inputs[0], -drifts.FARTHEST, drifts.FARTHEST) / _HALF_WIDTH
        kappa = ratio**2 / (1 + ratio**2)
        return jax.nn.relu(base(*inputs, context) + kappa * p)

    return wrap


def _itself(p, inputs, context):
    del inputs, context
    return p


_LOSS = ("nonnegative", "coercive", "scale-equivariant")
_KINDS: Mapping[str, Kind] = {
    "td_loss": Kind(
        {
            "d": Leaf(_in_std(0), r"\delta", _STD),
            "q": Leaf(_in_std(1), "Q", _STD),
            "y": Leaf(_in_std(2), "y", _STD),
            "t": _T,
        },
        {
            "weighted": Family(
                _weighted(lambda inputs: inputs[0]),
                "0",
                "0.5*8**tanh(P)*d**2",
                _LOSS,
            ),
            "free": Family(_free, "0.5*d**2", None, ("scale-equivariant",), _STD),
        },
        {1: {0: -1.0}},  # δ = target − Q
    ),
    "value_loss": Kind(
        {
            "e": Leaf(
                lambda x, context: (x[0] - x[1]) / functions.return_std(context),
                "e",
                _STD,
            ),
            "v": Leaf(_in_std(0), "v", _STD),
            "g": Leaf(_in_std(1), "g", _STD),
            "o": Leaf(_in_std(2), r"v_\text{old}", _STD),
            "t": _T,
        },
        {
            "weighted": Family(
                _weighted(lambda inputs: inputs[0] - inputs[1]),
                "0",
                "0.5*8**tanh(P)*e**2",
                _LOSS,
            ),
            "free": Family(_free, "0.5*e**2", None, ("scale-equivariant",), _STD),
        },
        {0: {}},
    ),
    "drift": Kind(
        {
            "u": Leaf(_input(0), r"\log r"),
            "A": Leaf(_input(1), "A"),
            "eps": Leaf(_input(2), r"\epsilon"),
            "t": _T,
        },
        {
            name: Family(
                _drift(base), "0", f"relu({name} + u**2/(u**2 + 0.04)*P)", ("drift",)
            )
            for name, base in drifts.HAND_MADE.items()
        },
        {0: {}},
        scale_free=False,
    ),
    "policy_loss": Kind(
        {
            "logp": Leaf(_input(0), r"\log \pi"),
            "u": Leaf(_input(1), r"\log r"),
            "A": Leaf(_input(2), "A"),
            "H": Leaf(_input(3), "H"),
            "t": _T,
        },
        {"free": Family(_itself, "0")},
        {0: {}, 1: {}, 3: {}},
        scale_free=False,
    ),
    "priority": Kind(
        {
            "d": Leaf(_in_std(0), r"\delta", _STD),
            "age": Leaf(_input(1), r"\text{age}"),
            "visits": Leaf(_input(2), r"\text{visits}"),
            "r": Leaf(_in_std(3), "r", _STD),
            "end": Leaf(_input(4), r"\text{end}"),
            "t": _T,
        },
        {
            "weighted": Family(
                lambda p, inputs, context: jnp.abs(inputs[0]) * _weight(p),
                "0",
                "abs(d)*8**tanh(P)",
            )
        },
        {},
    ),
}
SLOTS = tuple(_KINDS)


def _family(slot: str, family: str) -> Family:
    families = _KINDS[slot].families
    if family not in families:
        raise ConfigError(f"family={family!r}: expected one of {', '.join(families)}")
    return families[family]


def families(slot: str) -> tuple[str, ...]:
    """Names of the families of a slot that takes formulas."""
    return tuple(_KINDS[slot].families)


def num_inputs(slot: str) -> int:
    """Number of a slot's inputs, without the context."""
    return len(SIGNATURES[slot])


def moved_inputs(slot: str) -> tuple[int, ...]:
    """Inputs by which the agent learns, of a slot that takes formulas."""
    return tuple(_KINDS[slot].moves)


def _shape(inputs: Sequence[Any]) -> tuple[int, ...]:
    return jnp.broadcast_shapes(*map(jnp.shape, inputs))


# --- one formula ----------------------------------------------------------------------


@functools.cache
def _parsed(slot: str, text: str) -> language.Formula:
    if not isinstance(text, str):
        raise ConfigError(f"text={text!r}: expected a formula as text")
    return language.parse(text, tuple(_KINDS[slot].leaves))


def _reads(slot: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Return a function of an operation's settings: the scalars that it reads."""

    def reads(op):
        kind = _KINDS[slot]
        found = set(_family(slot, op["family"]).reads)
        for i in language.used_leaves(_parsed(slot, op["text"])):
            found |= set([*kind.leaves.values()][i].reads)
        return tuple(x for x in (*_STD, "progress") if x in found)

    return reads


def _formula(slot: str, text: str, family: str) -> Learned:
    """The formula, in a family, with its constants as params {"constants": [C]}."""
    kind, chosen = _KINDS[slot], _family(slot, family)
    formula = _parsed(slot, text)
    used = language.used_leaves(formula)
    constants = formula.constants or (0.0,)

    def apply(params, inputs, context):
        leaves = [
            jnp.asarray(leaf.of(inputs, context) if i in used else 0.0)
            for i, leaf in enumerate(kind.leaves.values())
        ]
        p = language.run(formula, params["constants"], leaves)
        return chosen.wrap(jnp.broadcast_to(p, _shape(inputs)), inputs, context)

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


_BUILDERS: Mapping[str, Callable[..., Learned]] = {
    "td_loss": td_loss,
    "value_loss": value_loss,
    "drift": drift,
    "policy_loss": policy_loss,
    "priority": priority,
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
    symbols = {name: leaf.symbol for name, leaf in _KINDS[slot].leaves.items()}
    return language.latex(_with_constants(slot, op, params), symbols)


def fixed(slot: str, source: str) -> Partial:
    """A formula as the value of a slot.

    Args:
        slot: `td_loss`, `value_loss`, `drift`, `policy_loss` or `priority`.
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
        slot: `td_loss`, `value_loss`, `drift`, `policy_loss` or `priority`.
        family: what the formula stands for, see the module; None: `weighted` for a
            loss, `ppo_clip` for a drift.
        length: L in [1, 16], instructions, of which the last is the value.
        start: text of the formula at the start; None: the hand-made function.

    Raises:
        ConfigError: a setting is wrong, or the text is no formula.
    """
    if slot not in _KINDS:
        raise ConfigError(f"slot={slot!r}: expected one of {', '.join(_KINDS)}")
    kind = _KINDS[slot]
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
        shape = _shape(inputs)
        told = [
            jnp.broadcast_to(leaf.of(inputs, context), shape)
            for leaf in kind.leaves.values()
        ]
        p = language.interpret(params, jnp.stack(told))
        return chosen.wrap(p, inputs, context)

    def apply(params, inputs, context):
        return _forward(lambda *x: plain(params, x, context), inputs, kind.moves)

    def bound(params):
        return lambda *given: plain(params, given[:-1], given[-1])

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
    scale = size if _KINDS[slot].scale_free else 1.0
    return jnp.where(size > LEAST_SLOPE, jnp.round(found / scale, 3), 0.0)


def at_points(slot: str, function: Callable) -> tuple[jax.Array, ...]:
    """Values [64] at fixed points, and slopes [moves, 64] if the agent moves any."""
    kind, (inputs, context) = _KINDS[slot], _points(slot)
    values, slopes = _slopes(lambda *x: function(*x, context), inputs, kind.moves)
    return (values, slopes) if kind.moves else (values,)


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
    return (*points, rng.uniform(size=NUM_POINTS))


def _points(slot: str) -> tuple[tuple[jax.Array, ...], Context]:
    """Inputs [64] at which members are told apart, and their context."""
    *inputs, progress = (jnp.asarray(x, jnp.float32) for x in _drawn_points(slot))
    return tuple(inputs), Context(progress=progress, return_std=1.0)
