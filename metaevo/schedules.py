"""Schedules: values of number slots that change over a lifetime."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import slots
from metaevo.errors import ConfigError
from metaevo.learned import transforms
from metaevo.learned.functions import Learned, layers, network, positive, whole
from metaevo.learned.operations import operation
from metaevo.slots import Context, Slot
from metaevo.types import Key, Params

__all__ = [
    "Moving",
    "around",
    "basis",
    "by_move",
    "feedback",
    "from_plain",
    "knots",
    "linear",
    "plain",
    "steps",
]


def _linear(start, end, fraction, context: Context):
    done = jnp.minimum(context.progress / fraction, 1.0)
    return start + (end - start) * done


def linear(start: float, end: float, fraction: float = 1.0) -> Partial:
    """From `start` to `end` over the first `fraction` of a lifetime, then constant.

    >>> float(linear(1.0, 0.0, 0.5)(Context(progress=0.25)))
    0.5
    """
    return Partial(_linear, start, end, fraction)


def _by_move(first, then, moves, context: Context):
    return jnp.where(context.stats["move"] < moves, first, then)


def by_move(first: float = 1.0, then: float = 0.1, moves: int = 30) -> Partial:
    """`first` in the first `moves` moves of an episode, then `then`.

    A value of AlphaZero's `temperature`, whose context tells the move; the paper draws
    30 moves by visits and takes the most visited afterwards (Silver et al., 2018).

    >>> schedule = by_move(1.0, 0.25, moves=2)
    >>> [float(schedule(Context(stats={"move": i}))) for i in range(3)]
    [1.0, 1.0, 0.25]
    """
    return Partial(_by_move, first, then, moves)


def _steps(values, context: Context):
    n = len(values)
    now = jnp.clip(jnp.floor(context.progress * n), 0, n - 1)
    return jnp.where(np.arange(n, dtype=np.float32) == now, values, 0.0).sum()


@operation(
    "steps",
    slot="number",
    closed_form="metaevo.analysis.curve_fits:schedule",
    reads=lambda op: ("progress",),
    examples=({"num_steps": 5},),
)
def steps(num_steps: int) -> Learned:
    """A number that is constant on `num_steps` equal parts of a lifetime.

    Its params are the values [num_steps].
    """
    if num_steps < 1:
        raise ConfigError(f"num_steps={num_steps} must be at least 1")
    return Learned(lambda _: jnp.zeros(num_steps), _steps)


# --- away from a default --------------------------------------------------------------

DEGREES = {"linear": 1, "cubic": 3}


def basis(progress: jax.Array | float, num_knots: int, degree: int) -> jax.Array:
    """The B-splines of a degree on [0, 1], with clamped ends: [num_knots], sum 1.

    Degree 1 interpolates between values at equally spaced knots. The recursion is that
    of de Boor (1978, A Practical Guide to Splines, chapter IX).

    Args:
        progress: scalar, clipped to [0, 1].
        num_knots: at least degree + 1.
    """
    inner = np.linspace(0.0, 1.0, num_knots - degree + 1)
    t = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    x = jnp.clip(progress, 0.0, 1.0)
    # Degree 0: one in the interval that holds x; the last interval is closed.
    interval = degree + jnp.clip((jnp.float32(inner) <= x).sum() - 1, 0, len(inner) - 2)
    b = jnp.where(jnp.arange(len(t) - 1) == interval, 1.0, 0.0)
    for d in range(1, degree + 1):
        width = t[d:] - t[:-d]
        # Where knots coincide the B-spline of lower degree is zero.
        slope = jnp.float32(np.divide(1.0, width, where=width > 0, out=width * 0.0))
        rising = (x - jnp.float32(t[:-d])) * slope
        b = rising[:-1] * b[:-1] + (jnp.where(width > 0, 1.0, 0.0) - rising)[1:] * b[1:]
    return b


class Moving(NamedTuple):
    """The way a number moves away from its default.

    Attributes:
        init: `key -> params`; with these the number stays at its default.
        at: `(params, default, context) -> number`; the default is a number or a
            schedule.
        spec: plain data for `metaevo.storage.artifacts`; its `default` is still None.
    """

    init: Callable[[Key], Params]
    at: Callable[[Params, Slot, Context], jax.Array]
    spec: Mapping[str, Any]


def knots(kind: str, num_knots: int, transform: str, scale: float) -> Moving:
    """number(τ) = T(T⁻¹(default) + scale · Σₖ xₖ Bₖ(τ)), params x [num_knots].

    Args:
        kind: `linear` or `cubic`, the B-splines B.
        num_knots: from 2, or 4 if cubic, to 1,000.
        transform: name of the scale T on which it moves; see
            `metaevo.learned.transforms`.
        scale: how far a knot of 1 moves it there.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.
    """
    if kind not in DEGREES:
        raise ConfigError(f"kind={kind!r}: one of {', '.join(DEGREES)}")
    degree = DEGREES[kind]
    num_knots = whole(degree + 1, 1000, num_knots=num_knots)
    scale_of = transforms.named(transform, scale)

    def at(params, default, context):
        y = scale * (basis(context.progress, num_knots, degree) @ params)
        return scale_of.moved(slots.value(default, context), y)

    spec = {"op": "knots", "kind": kind, "num_knots": num_knots}
    spec |= {"transform": transform, "scale": scale, "default": None}
    return Moving(lambda _: jnp.zeros(num_knots), at, spec)


def feedback(
    stats: Mapping[str, float], features: Sequence[int], transform: str, scale: float
) -> Moving:
    """number = T(T⁻¹(default) + scale · n(stats / units)), n starting at zero.

    n is a small tanh network. Its inputs are clipped to ±10 units.

    Args:
        stats: names in `context.stats` -> units, their typical sizes.
        features: hidden layer sizes.
        transform, scale: as in `knots`.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value. `at` raises
            ConfigError if the context lacks one of `stats`.
    """
    if not isinstance(stats, Mapping) or not stats:
        raise ConfigError(f"stats={stats!r}: expected names and units")
    positive(**stats)
    net = network(len(stats), features)
    scale_of = transforms.named(transform, scale)

    def at(params, default, context):
        if missing := stats.keys() - context.stats.keys():
            raise ConfigError(
                f"feedback: context.stats has no {min(missing)!r}, but "
                f"{', '.join(sorted(context.stats)) or 'nothing'}"
            )
        seen = [
            jnp.asarray(context.stats[name], jnp.result_type(float)) / stats[name]
            for name in sorted(stats)
        ]
        x = jnp.clip(jnp.stack(seen), -10.0, 10.0)
        y = scale * net.apply(params, x)[0]
        return scale_of.moved(slots.value(default, context), y)

    spec = {"op": "feedback", "stats": dict(stats), "features": list(layers(features))}
    spec |= {"transform": transform, "scale": scale, "default": None}
    return Moving(net.init, at, spec)


def around(moving: Callable[..., Moving]) -> Callable[..., Learned]:
    """`moving(**settings)` away from the default of an artifact, `default=...`."""

    @functools.wraps(moving)
    def learned(*, default: Any, **settings: Any) -> Learned:
        start = from_plain(default)
        made = moving(**settings)

        def apply(params, context):
            return made.at(params, start, context)

        return Learned(made.init, apply, {**made.spec, "default": default}, True)

    # The settings, as the registry reads them.
    signature = inspect.signature(moving)
    default = inspect.Parameter("default", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), default]
    learned.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return learned


_EXAMPLE = {"transform": "log", "scale": 0.5, "default": 0.01}
_BENT = {"start": 0.9, "end": 0.1, "fraction": 0.7}

bent_by_knots = operation(
    "knots",
    slot="number",
    closed_form="metaevo.analysis.curve_fits:schedule",
    reads=lambda op: ("progress",),
    examples=(
        {"kind": "linear", "num_knots": 5, **_EXAMPLE},
        {"kind": "cubic", "num_knots": 6, **_EXAMPLE}
        | {"transform": "one_minus_log", "default": 0.99},
        {"kind": "linear", "num_knots": 2, **_EXAMPLE}
        | {"transform": "logit", "default": _BENT},
    ),
)(around(knots))
"""`knots` away from a default, as an artifact holds it."""


def _read_by_feedback(op: Mapping[str, Any]) -> tuple[str, ...]:
    moves = ("progress",) if isinstance(op["default"], dict) else ()
    return (*sorted(op["stats"]), *moves)


bent_by_feedback = operation(
    "feedback",
    slot="number",
    reads=_read_by_feedback,
    examples=(
        {"stats": {"kl": 0.01, "entropy": 1.0}, "features": [8], **_EXAMPLE},
        {"stats": {"kl": 0.01}, "features": [8], **_EXAMPLE}
        | {"transform": "linear", "default": _BENT},
    ),
)(around(feedback))
"""`feedback` away from a default, as an artifact holds it."""


def plain(slot: Slot) -> Any:
    """A number slot's default as plain data, for an artifact: a number, or a dict.

    >>> plain(0.5)
    0.5
    >>> plain(linear(1.0, 0.0))
    {'start': 1.0, 'end': 0.0, 'fraction': 1.0}

    Raises:
        ConfigError: the default is a schedule other than `linear`.
    """
    if not callable(slot):
        return float(slot)
    if getattr(slot, "func", None) is not _linear:
        raise ConfigError(
            "the default is a schedule that an artifact cannot hold; set a number or "
            "schedules.linear(...)"
        )
    start, end, fraction = (float(x) for x in slot.args)
    return {"start": start, "end": end, "fraction": fraction}


def from_plain(default: Any) -> Slot:
    """The inverse of `plain`.

    Raises:
        ValueError, TypeError: the data is not of the form that `plain` gives.
    """
    numbers = default if isinstance(default, dict) else {"default": default}
    for name, x in numbers.items():
        if not isinstance(x, int | float) or not math.isfinite(x):
            raise ConfigError(f"{name}={x!r} is not a finite number")
    return linear(**default) if isinstance(default, dict) else default
