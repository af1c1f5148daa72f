"""Portraits of learned functions as data: panels, axes and captions.

`metaevo.analysis.plots` draws it. `KINDS` has an entry for each kind of slot whose
functions are alike; `Operation.portrait` holds that of a function that is not. A
function of any other kind is drawn against each of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.learned import operations

__all__ = [
    "KINDS",
    "LIFETIME",
    "Axis",
    "Contour",
    "Curve",
    "Inputs",
    "Portrait",
    "Strongest",
    "slope",
]

Settings = Mapping[str, Any]


class Axis(NamedTuple):
    """An axis of a panel.

    Attributes:
        label: its name and unit.
        low: its first point.
        high: its last point.
        log: True for a logarithmic one.
        mark: where a thin line crosses it.
        num: number of points.
    """

    label: str
    low: float
    high: float
    log: bool = False
    mark: float = 0.0
    num: int = 121


LIFETIME = Axis("share of the lifetime", 0.0, 1.0)


class Curve(NamedTuple):
    """A panel of curves over one number, of the evolved and of the hand-made function.

    Attributes:
        x: the number.
        label: what is drawn.
        of: `(function, x [n], context) -> [n]`, or [n, k] for k names.
        names: of several curves.
        range: ends of the panel; None for those of the curves.
    """

    x: Axis
    label: str
    of: Callable
    names: Sequence[str] = ()
    range: tuple[float, float] | None = None


class Contour(NamedTuple):
    """Two panels of contours over two numbers, evolved and hand-made.

    Attributes:
        x, y: the numbers.
        label: what is drawn.
        of: `(function, x [n], y [n], context) -> [n]`.
    """

    x: Axis
    y: Axis
    label: str
    of: Callable


class Strongest(NamedTuple):
    """Contours over the two inputs that change most, and bars of what each changes.

    Attributes:
        what: an input in one word, such as component.
        inputs: name -> size. Each is drawn evenly within ± its size.
        label: what changes.
        of: `(function, inputs [n, k], context) -> [n]`, or [n, m] for m outputs, of
            which the first three have a panel.
    """

    what: str
    inputs: Mapping[str, float]
    label: str
    of: Callable


class Inputs(NamedTuple):
    """A panel of the mean output against each input and each number that is read.

    Attributes:
        ranges: name -> (low, usual, high); an input stays at `usual` while another
            varies. Those without one are -3, 0.5 and 3.
    """

    ranges: Mapping[str, tuple[float, float, float]] = {}


class Portrait(NamedTuple):
    """Contents of a portrait.

    Attributes:
        panels: in order.
        caption: sentences.
        hand_made: reference `"module:name"` to the function to compare with, of one
            that does not start as a hand-made one; None for none.
    """

    panels: Sequence[Curve | Contour | Strongest | Inputs]
    caption: str
    hand_made: str | None = None


def slope(of: Callable) -> Callable:
    """The slope in x of a `Curve.of` that is elementwise."""

    def slopes(function, x, context):
        at = jax.jacrev(lambda x: of(function, x[None], context)[0])
        return jax.vmap(at)(x)

    return slopes


# --- kinds of slots -------------------------------------------------------------------


def _of_error(op: Settings, at: Callable, hand_made: str) -> Portrait:
    """Loss and gradient against an error.

    Args:
        at: `(loss, value - target, context) -> loss`.
        hand_made: reference to the usual loss.
    """
    guarantees = operations.get(op["op"]).guarantees(op)
    scaled = "scale-equivariant" in guarantees
    limit = 1.5 * op.get("scale", 1.0 if scaled else 10.0) * op.get("limit", 1.0)
    unit = "return_std" if scaled else "units of return"
    error = Axis(f"value - target ({unit})", -limit, limit, num=601)

    def from_zero(loss, x, context):
        return at(loss, x, context) - at(loss, jnp.zeros(1), context)

    return Portrait(
        (Curve(error, "loss, 0 at 0", from_zero), Curve(error, "gradient", slope(at))),
        "Both on one scale. Shaded: where value - target lay (mean ± 2 sd) while "
        "agents trained with it on held-out seeds; outside, its shape was hardly felt.",
        hand_made,
    )


def _value_loss(op: Settings) -> Portrait:
    def at(loss, x, context):
        # The target is 0, and PPO's clip does not act.
        return loss(x, 0 * x, jax.lax.stop_gradient(x), context)

    return _of_error(op, at, "metaevo.losses:square")


def _td_loss(op: Settings) -> Portrait:
    def at(loss, x, context):
        return loss(-x, x, 0 * x, context)

    return _of_error(op, at, "metaevo.losses:td_square")


CLIP = 0.2


def _drift(op: Settings) -> Portrait:
    ratio = Axis("ratio r", math.exp(-1), math.exp(1), mark=1.0)

    def over_both(drift, r, advantage, context):
        return drift(jnp.log(r), advantage, CLIP, context)

    def panels(a: int) -> tuple[Curve, Curve]:
        def of(drift, r, context):
            return over_both(drift, r, jnp.full_like(r, a), context)

        at = f"at A = {a}"
        return Curve(ratio, f"D {at}", of), Curve(ratio, f"dD/dr {at}", slope(of))

    advantage = Axis("advantage A", -3, 3, num=61)
    both = Contour(ratio, advantage, "D(r, A)", over_both)
    return Portrait(
        (both, *panels(1), *panels(-1)),
        "The policy maximizes E[r A - D(r, A)]: where dD/dr reaches A it is not pulled "
        f"any further. A clip is of {CLIP}.",
        "metaevo.drifts:ppo_clip",
    )


def _policy_loss(op: Settings) -> Portrait:
    advantage = Axis("advantage A", -3.0, 3.0)
    moves = -0.3, 0.0, 0.3

    def pull(loss, a, context, moved=0.0):
        def total(log_prob):  # the old policy's is moved from -1
            return loss(log_prob, log_prob + 1 + moved, a, 0 * a + 1, context).sum()

        return jax.grad(total)(jnp.full_like(a, -1.0))

    def whole(loss, a, context):
        return pull(loss, a, context) - a

    def alone(loss, a, context):
        return jnp.stack([pull(loss, a, context, moved) for moved in moves], -1)

    return Portrait(
        (
            Curve(advantage, "d loss / d log π", whole),
            Curve(advantage, "the term alone", alone, [f"log r = {d}" for d in moves]),
        ),
        "How a sample moves the policy: below 0 its action becomes likelier. Left: the "
        "whole, PPO's own and the term, at r = 1. Right: what evolved alone, at three "
        "ratios; it starts at 0. At log π = -1 and an entropy of 1.",
    )


def _activation(op: Settings) -> Portrait:
    limit = 1.25 * op.get("limit", 4.0)
    x = Axis("x", -limit, limit, num=501)

    def at(function, x, context):
        return function(x)

    return Portrait(
        (Curve(x, "activation", at), Curve(x, "slope", slope(at))),
        "Outputs of a layer are mostly within ±2.",
        "jax.numpy:tanh",
    )


def _advantage(op: Settings) -> Portrait:
    num, end = 24, 16
    step = Axis("step", 0, num - 1, mark=end + 0.5, num=num)

    def panel(label: str, rewards: Callable) -> Curve:
        def of(advantage, t, context):
            ends = (t == end) | (t == num - 1)
            zeros = jnp.zeros(num)
            return advantage(rewards(t, ends), zeros, zeros, zeros, ends, ends, context)

        return Curve(step, f"advantage, {label}", of)

    return Portrait(
        (
            panel("rewards of 1 at ends", lambda t, ends: jnp.float32(ends)),
            panel("rewards in waves", lambda t, ends: jnp.sin(t)),
        ),
        f"Advantages of {num} steps, of which step {end} ends an episode, where all "
        "values are 0 and the targets' deviation is 1.",
    )


def _correction(op: Settings) -> Portrait:
    ratio = Axis("ratio π / μ", math.exp(-3), math.exp(3), log=True, mark=1.0)
    return Portrait(
        (Curve(ratio, "weight", lambda f, r, context: f(jnp.log(r), context)),),
        "The weight of an action against the ratio of its probabilities, by the policy "
        "that learns and by the one that acted; both are clipped at 1.",
    )


def _rescale(op: Settings) -> Portrait:
    axes = Axis("return", -10, 10), Axis("return, far from 0", -500, 500)
    return Portrait(
        [Curve(x, "rescaled", lambda f, x, context: f(x, context)) for x in axes],
        "Values that the network learns against returns, near 0 and far from it.",
    )


def _optimizer(op: Settings) -> Portrait:
    after = 1, 10, 100
    size = Axis("size of a {} gradient", 1e-6, 1e2, log=True, num=65)

    def panel(sign: int, name: str) -> Curve:
        def of(optimizer, x, context):
            gradient = jnp.concatenate([sign * x, -sign * x])
            agent = jnp.zeros_like(gradient)
            more = {"noise": agent} if op.get("noise") else {}

            def step(state, _):
                direction, state = optimizer.update(
                    gradient, state, agent, context, **more
                )
                return state, direction[: len(x)]

            start = optimizer.init(agent)
            directions = jax.lax.scan(step, start, length=max(after))[1]
            return directions[jnp.array(after) - 1].T

        axis = size._replace(label=size.label.format(name))
        return Curve(axis, "direction", of, [f"after {i}" for i in after])

    return Portrait(
        (panel(1, "positive"), panel(-1, "negative")),
        "The direction of each number of one array, whose gradients of many sizes stay "
        "the same, after 1, 10 and 100 updates; without noise. It is multiplied by the "
        "learning rate and subtracted.",
    )


_UNITS = {
    "age": (0.0, 0.5, 1.0),
    "visits": (0.0, 1.0, 10.0),
    "terminated": (0.0, 0.0, 1.0),
    "return_std": (0.1, 1.0, 3.0),
}


def _priority(op: Settings) -> Portrait:
    return Portrait(
        (Inputs({"td_error": (-3.0, 1.0, 3.0)} | _UNITS),),
        "The priority of a transition against each input. The others are 0.5 and at "
        "usual values: an error, a visit and a deviation of 1.",
    )


def _actor_loss(op: Settings) -> Portrait:
    axis = Axis("value", -3, 3)

    def at(size):
        return lambda f, q, context: f(q, jnp.full((len(q), 1), size), context)

    panels = [Curve(axis, f"loss, actions of size {x:g}", at(x)) for x in (0.0, 1.0)]
    return Portrait(
        panels, "The loss of an actor against the critic's value of its action."
    )


def _q_transform(op: Settings) -> Portrait:
    unit = {"q": (0.0, 0.5, 1.0)}
    return Portrait((Inputs(unit),), "What a value in [0, 1] counts as in the search.")


def _number(op: Settings) -> Portrait:
    stats = {x: (0.0, unit, 3 * unit) for x, unit in op.get("stats", {}).items()}
    return Portrait(
        (Inputs({"progress": (0.0, 0.5, 1.0)} | stats),),
        "What the number is at each moment of an agent's life, before any decay that "
        "the algorithm's own settings add. One that follows training is drawn against "
        "each statistic up to three of its units, the others at one unit.",
    )


KINDS: Mapping[str, Callable[[Settings], Portrait]] = {
    "value_loss": _value_loss,
    "td_loss": _td_loss,
    "drift": _drift,
    "policy_loss": _policy_loss,
    "activation": _activation,
    "advantage": _advantage,
    "correction": _correction,
    "rescale": _rescale,
    "optimizer": _optimizer,
    "priority": _priority,
    "actor_loss": _actor_loss,
    "q_transform": _q_transform,
    "number": _number,
}
"""Kind of slot -> `op -> ` the portrait of functions of that kind."""
