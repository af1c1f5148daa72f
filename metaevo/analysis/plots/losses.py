"""Portraits of losses, drifts, activations and optimizers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import activations, drifts, losses
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.portraits import (
    OURS,
    STYLES,
    THEIRS,
    Evolved,
    Portrait,
    heading,
    lines,
    moments,
    table,
    zero,
)
from metaevo.portable import properties
from metaevo.slots import Context

__all__ = [
    "activation",
    "adam",
    "directions",
    "drift",
    "policy_loss",
    "td_loss",
    "value_loss",
]

EPS = 0.2  # of a clip, without a context


# --- losses ---------------------------------------------------------------------------


def value_loss(evolved: Evolved) -> Portrait:
    """Loss and gradient against value - target."""

    def at(loss, v, context):
        # The target is 0, and PPO's clip does not act.
        return loss(v, 0.0 * v, jax.lax.stop_gradient(v), context)

    return _of_error(evolved, at, ("squared error", losses.square))


def td_loss(evolved: Evolved) -> Portrait:
    """Loss and gradient against Q - target."""

    def at(loss, v, context):
        return loss(-v, v, 0.0 * v, context)

    huber = evolved.op.get("base") == "td_huber"
    usual = ("squared error", losses.td_square)
    return _of_error(evolved, at, ("Huber", losses.td_huber) if huber else usual)


def _of_error(
    evolved: Evolved, at: Callable, hand_made: tuple[str, Callable]
) -> Portrait:
    """Loss and gradient against an error.

    Args:
        at: `(loss, error, context) -> loss of the error`.
        hand_made: label and function of the hand-made one.
    """
    op, visited = evolved.op, evolved.visited
    scaled = properties.unit(op) == "return_std"
    scale = op.get("scale", 1.0 if scaled else 10.0)
    limit = 1.5 * scale * op.get("limit", 1.0)
    units = "return_std" if scaled else "units of return"
    x = jnp.linspace(-limit, limit, 601)
    middle = len(x) // 2

    def curve(loss, context):
        values = jax.value_and_grad(lambda v: at(loss, v, context))
        value, gradient = jax.jit(jax.vmap(values))(x)
        return np.asarray(value - value[middle]), np.asarray(gradient)

    when = moments(op, clip_eps=EPS)
    ours = {name: curve(evolved.function, context) for name, context in when.items()}
    label, base = hand_made
    theirs = curve(base, Context())

    def draw(*panels):
        for i, panel in enumerate(panels):
            if visited is not None:
                panel.axvspan(
                    *np.clip(visited, -limit, limit),
                    color=figures.COLORS["start"],
                    alpha=0.15,
                    lw=0,
                    label="visited",
                )
            mine = {name: both[i] for name, both in ours.items()}
            lines(panel, np.asarray(x), mine, (label, theirs[i]))
            # The evolved curves set the scale: the square would flatten them.
            y = np.concatenate(list(mine.values()))
            margin = 0.15 * float(np.ptp(y)) + 1e-3
            panel.set(
                xlabel=f"value - target ({units})",
                ylabel=("loss, 0 at 0", "gradient")[i],
                ylim=(float(y.min()) - margin, float(y.max()) + margin),
            )
            zero(panel)

    first = next(iter(ours.values()))
    columns = {"error": x, "solution loss": first[0], "solution gradient": first[1]}
    for name, both in list(ours.items())[1:]:
        columns |= {f"{name} loss": both[0], f"{name} gradient": both[1]}
    columns |= {"hand-made loss": theirs[0], "hand-made gradient": theirs[1]}
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(**columns),
        "Both on one scale. Shaded: where value - target lay (mean ± 2 sd) while "
        "agents trained with it on held-out seeds; outside, its shape was hardly felt.",
        2,
    )


def drift(evolved: Evolved) -> Portrait:
    """Contours over r and A, and curves at A = ±1 with their gradient."""
    op, learned = evolved.op, evolved.function
    names = {"dpo_constants": "dpo"}
    name = op.get("base") or names.get(op["op"], "ppo_clip")
    base = drifts.HAND_MADE[name]
    log_ratio = jnp.linspace(-1.0, 1.0, 121)
    advantage = jnp.linspace(-3.0, 3.0, 61)
    ratio = np.exp(log_ratio)

    def surface(drift, context):
        at = jax.value_and_grad(lambda d, a: drift(d, a, EPS, context))
        over = jax.vmap(jax.vmap(at, (0, None)), (None, 0))
        value, slope = jax.jit(over)(log_ratio, advantage)
        return np.asarray(value), np.asarray(slope) / ratio

    when = moments(op)
    ours = {key: surface(learned, context) for key, context in when.items()}
    theirs = surface(base, Context())
    last, ends = list(ours)[-1], {1: 40, -1: 20}  # rows of A = 1 and A = −1
    label = {"ppo_clip": "PPO", "dpo": "DPO", "zero": "none"}[name]
    most = max(ours[last][0].max(), theirs[0].max(), 1e-3)
    levels = most * np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.6])

    def contours(panel, values, color, title):
        if values.max() > levels[0]:
            drawn = panel.contour(
                ratio, advantage, values, levels, colors=color, linewidths=1.2
            )
            panel.clabel(drawn, levels[2:], fmt="%.2g", fontsize=7.5)
        panel.axvline(1, color=figures.INK, lw=0.5)
        panel.axhline(0, color=figures.INK, lw=0.5)
        panel.set(xlabel="ratio r", ylabel="advantage A", title=title)

    def draw(*panels):
        contours(panels[0], ours[last][0], OURS, f"drift D(r, A), {last}")
        contours(panels[1], theirs[0], THEIRS, f"drift D(r, A), {label}")
        for i, panel in enumerate(panels[2:]):
            for (sign, row), width in zip(ends.items(), (1.8, 0.9), strict=True):
                at = f"A = {sign}"
                panel.plot(
                    ratio,
                    theirs[i][row],
                    color=THEIRS,
                    lw=width,
                    label=f"{label}, {at}",
                )
                for (key, both), style in zip(ours.items(), STYLES, strict=False):
                    y = both[i][row]
                    name = f"{key}, {at}"
                    panel.plot(ratio, y, color=OURS, ls=style, lw=width, label=name)
            panel.axvline(1, color=figures.INK, lw=0.5)
            panel.axhline(0, color=figures.INK, lw=0.5)
            panel.set(xlabel="ratio r", ylabel=("D", "dD/dr")[i])
            figures.legend_above(panel, 2)

    grid_a, grid_d = np.meshgrid(advantage, log_ratio, indexing="ij")
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            log_ratio=grid_d,
            advantage=grid_a,
            **{f"{key} D": both[0] for key, both in ours.items()},
            **{f"{key} dD/dr": both[1] for key, both in ours.items()},
            **{f"{label} D": theirs[0], f"{label} dD/dr": theirs[1]},
        ),
        "The policy maximizes E[r A - D(r, A)]: where dD/dr reaches A it is not pulled "
        f"any further. Thick: A = 1, thin: A = -1. A clip is of {EPS}.",
        4,
    )


def policy_loss(evolved: Evolved) -> Portrait:
    """d loss / d log π against A, beside PPO's own."""
    op, learned = evolved.op, evolved.function
    advantage = jnp.linspace(-3.0, 3.0, 241)
    ratios = (-0.3, 0.0, 0.3)

    def slope(loss, moved, context):
        def at(log_prob, a):
            return loss(log_prob, log_prob + 1.0 + moved, a, 1.0, context)

        # log π = −1: the old policy's is moved from it.
        return np.asarray(jax.jit(jax.vmap(jax.grad(at), (None, 0)))(-1.0, advantage))

    def own(moved):
        ratio = np.exp(moved)
        free = np.where(np.asarray(advantage) > 0, ratio < 1.2, ratio > 0.8)
        return -np.asarray(advantage) * ratio * free

    when = moments(op)
    ours = {key: slope(learned, 0.0, context) for key, context in when.items()}
    last = list(when.values())[-1]
    moved = {f"log r = {d:+.1f}": slope(learned, d, last) for d in ratios}
    own_now = own(0.0)

    def draw(*panels):
        total = {key: own_now + y for key, y in ours.items()}
        lines(panels[0], advantage, total, ("PPO's own", own_now))
        lines(panels[1], advantage, moved, None)
        for panel, what in zip(
            panels, ("d loss / d log π", "the term alone"), strict=True
        ):
            panel.set(xlabel="advantage A", ylabel=what)
            zero(panel)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(advantage=advantage, PPO=own_now, **ours, **moved),
        "How a sample moves the policy: below 0 its action becomes likelier. Left: the "
        "whole, PPO's own and the term, at r = 1. Right: what evolved alone, at three "
        "ratios; it starts at 0. At log π = -1 and an entropy of 1.",
        2,
    )


def activation(evolved: Evolved) -> Portrait:
    """σ and its slope, with the knots."""
    op, learned = evolved.op, evolved.function
    name = op.get("base", "tanh")
    base, limit = activations.HAND_MADE[name], op.get("limit", 4.0)
    x = jnp.linspace(-1.25 * limit, 1.25 * limit, 501)

    def curve(function):
        return [
            np.asarray(f(x))
            for f in (function, jax.vmap(jax.grad(lambda x: function(x))))
        ]

    ours, theirs = curve(learned), curve(base)
    knots = np.linspace(-limit, limit, op["num_knots"]) if "num_knots" in op else None

    def draw(*panels):
        for i, panel in enumerate(panels):
            lines(panel, np.asarray(x), {"evolved": ours[i]}, (name, theirs[i]))
            panel.set(xlabel="x", ylabel=("activation", "slope")[i])
            zero(panel)
        if knots is not None:
            height = np.asarray(learned(jnp.asarray(knots)))
            panels[0].plot(knots, height, "o", color=OURS, ms=3.5)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            x=x,
            **{"solution": ours[0], "solution slope": ours[1]},
            **{name: theirs[0], f"{name} slope": theirs[1]},
        ),
        "Dots are its knots. Outputs of a layer are mostly within ±2.",
        2,
    )


# --- optimizers -----------------------------------------------------------------------


def adam(evolved: Evolved) -> Portrait:
    """The six numbers of `adam_numbers` over a lifetime."""
    op, params = evolved.op, evolved.params
    progress = np.linspace(0.0, 1.0, 51)
    x = {
        name: np.broadcast_to(np.float64(v), 2)[0] * (1 - progress)
        + np.broadcast_to(np.float64(v), 2)[1] * progress
        for name, v in params.items()
    }
    zero = np.zeros_like(progress)

    def numbers(x):
        return {
            "gain": np.exp(x["gain"]),
            "beta1": np.clip(1 - 0.1 * np.exp(x["beta1"]), 0, 0.9999),
            "beta2": np.clip(1 - 0.001 * np.exp(x["beta2"]), 0, 0.999999),
            "eps": op["eps"] * np.exp(x["eps"]),
            "decay": 0.1 * x["decay"],
            "clip": 10 * np.exp(x["clip"]),
        }

    ours, theirs = numbers(x), numbers(dict.fromkeys(x, zero))

    def draw(*panels):
        for (name, y), panel in zip(ours.items(), panels, strict=True):
            lines(panel, progress, {"evolved": y}, ("Adam", theirs[name]))
            panel.set(xlabel="share of the lifetime", ylabel=name)
            panel.ticklabel_format(axis="y", useOffset=False)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            progress=progress,
            **ours,
            **{f"Adam {name}": y for name, y in theirs.items()},
        ),
        "The step's gain, both decays, the smallest divisor, the decay of weights and "
        "the clip of each number. Times the learning rate.",
        6,
    )


def directions(evolved: Evolved) -> Portrait:
    """Directions of numbers whose gradients, of all sizes, do not change."""
    op, optimizer = evolved.op, evolved.function
    size = jnp.logspace(-6, 2, 65)
    gradient = jnp.concatenate([size, -size])
    agent = jnp.zeros_like(gradient)
    noise = {} if not op.get("noise") else {"noise": agent}
    context = Context(progress=0.5)
    update = jax.jit(
        lambda state: optimizer.update(gradient, state, agent, context, **noise)
    )
    state, ours = optimizer.init(agent), {}
    for i in range(1, 101):
        direction, state = update(state)
        if i in (1, 10, 100):
            ours[f"after {i}"] = np.asarray(direction)
    half = len(size)
    adam = np.asarray(size / (size + op.get("eps", 1e-5)))

    def draw(*panels):
        for sign, panel in zip((1, -1), panels, strict=True):
            part = slice(0, half) if sign > 0 else slice(half, None)
            mine = {name: y[part] for name, y in ours.items()}
            lines(panel, np.asarray(size), mine, ("Adam", sign * adam))
            panel.set(
                xscale="log",
                xlabel=f"size of a {'positive' if sign > 0 else 'negative'} gradient",
                ylabel="direction",
            )
            panel.axhline(0, color=figures.INK, lw=0.5)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(gradient=gradient, **ours, Adam=np.concatenate([adam, -adam])),
        "The direction of each number of one array, whose gradients of many sizes stay "
        "the same, after 1, 10 and 100 updates; without noise, in the middle of a "
        "lifetime. It is multiplied by the learning rate and subtracted.",
        2,
    )
