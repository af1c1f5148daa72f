"""The slots that take formulas: names of their inputs, and families of functions.

Formulas are `metaevo.learned.language`'s; `metaevo.formulas` puts them into slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.learned import functions, rescalings
from metaevo.slots import Context

__all__ = ["KINDS", "LARGEST_WEIGHT", "Family", "Kind", "Leaf", "drift"]

LARGEST_WEIGHT = 8.0
_HALF_WIDTH = 0.2  # |log r| at which κ is a half
_Q_PIECES = 16
_CELLS = 8  # of a rescaling, on each side of 0


def _same(inputs: Sequence[Any]) -> Sequence[Any]:
    return inputs


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
        places: `inputs -> inputs`, at which P is taken; these by default. An increasing
            function is made of P at fixed places.
    """

    wrap: Callable[[jax.Array, Sequence[jax.Array], Context | None], jax.Array]
    start: str
    shown: str | None = None
    guarantees: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    places: Callable[[Sequence[Any]], Sequence[Any]] = _same


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
        elementwise: `inputs of the slot -> inputs` that all have the output's shape.
    """

    leaves: Mapping[str, Leaf]
    families: Mapping[str, Family]
    moves: Mapping[int, Mapping[int, float]]
    scale_free: bool = True
    elementwise: Callable[[Sequence[Any]], Sequence[Any]] = _same


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


def _itself(p, inputs, context):
    del inputs, context
    return p


def _squared_action(inputs):
    q, action = inputs
    action = jnp.atleast_1d(action)  # A scalar stands for all elements.
    return q, (action**2).mean(-1)


_EDGES, _WIDTHS = rescalings.cells(_CELLS)
_MIDDLES = _EDGES + np.append(_WIDTHS[:-1], _WIDTHS[-2]) / 2
_PLACES = np.concatenate([-_MIDDLES, _MIDDLES])


def _rising(p, inputs, context):
    y = rescalings.signed_root(jnp.asarray(inputs[0], jnp.result_type(float)), context)
    return rescalings.piecewise(y, _weight(p[:_CELLS]), _weight(p[_CELLS:]))


def _onto_unit(p, inputs, context):
    del context
    starts = jnp.arange(_Q_PIECES, dtype=jnp.float32)
    q = jnp.asarray(inputs[0], jnp.result_type(float))
    part = jnp.clip(_Q_PIECES * q[..., None] - starts, 0.0, 1.0)
    weight = _weight(p)
    return part @ (weight / weight.sum())


_LOSS = ("nonnegative", "coercive", "scale-equivariant")
KINDS: Mapping[str, Kind] = {
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
    "actor_loss": Kind(
        {
            "q": Leaf(_input(0), "Q"),
            "a2": Leaf(_input(1), r"\overline{a^2}"),
            "t": _T,
        },
        {"free": Family(_itself, "-q")},
        {0: {}, 1: {}},
        elementwise=_squared_action,
    ),
    "rescale": Kind(
        {"h": Leaf(_input(0), "h_0"), "t": _T},
        {
            "increasing": Family(
                _rising,
                "0",
                "integral(8**tanh(P), 0, h0(x))",
                ("order-preserving",),
                places=lambda inputs: (jnp.asarray(_PLACES, jnp.float32),),
            )
        },
        {},
        scale_free=False,
    ),
    "q_transform": Kind(
        {"q": Leaf(_input(0), "q"), "t": _T},
        {
            "increasing": Family(
                _onto_unit,
                "0",
                "integral(8**tanh(P), 0, q)/integral(8**tanh(P), 0, 1)",
                ("increasing",),
                places=lambda inputs: ((jnp.arange(_Q_PIECES) + 0.5) / _Q_PIECES,),
            )
        },
        {},
        scale_free=False,
    ),
    "number": Kind(
        {"t": _T},
        {"free": Family(_itself, "0.001")},
        {},
        scale_free=False,
    ),
}


def drift(bases: Mapping[str, Callable], farthest: float) -> Kind:
    """A slot's drifts, ReLU(base(r, A) + κ P), a family for each base.

    Args:
        bases: drifts by name.
        farthest: |log r| as κ sees it.
    """

    def on(base):
        def wrap(p, inputs, context):
            ratio = jnp.clip(inputs[0], -farthest, farthest) / _HALF_WIDTH
            kappa = ratio**2 / (1 + ratio**2)
            return jax.nn.relu(base(*inputs, context) + kappa * p)

        return wrap

    return Kind(
        {
            "u": Leaf(_input(0), r"\log r"),
            "A": Leaf(_input(1), "A"),
            "eps": Leaf(_input(2), r"\epsilon"),
            "t": _T,
        },
        {
            name: Family(
                on(base), "0", f"relu({name} + u**2/(u**2 + 0.04)*P)", ("drift",)
            )
            for name, base in bases.items()
        },
        {0: {}},
        scale_free=False,
    )
