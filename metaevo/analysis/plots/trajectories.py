"""Portraits of functions of returns and rollouts: advantages, weights, rescalings."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from metaevo import advantages
from metaevo.analysis.plots.portraits import (
    Evolved,
    Portrait,
    heading,
    lines,
    moments,
    table,
)
from metaevo.learned import rescalings

__all__ = ["advantage", "correction", "rescale"]

STEPS, END = 24, 16  # of the trajectory drawn, and where its first episode ends
NUMBERS = {"gamma": 0.95, "gae_lambda": 0.95, "leak": 0.0}
NUMBERS |= dict.fromkeys(("rho_clip", "c_clip", "pg_clip"), 1.0)


def advantage(evolved: Evolved) -> Portrait:
    """Advantages of two trajectories, beside the hand-made ones.

    Rewards of 1 at each end of an episode, and of waves at each step. Values are 0,
    and the policy that acted is the one that learns.
    """
    t = np.arange(STEPS, dtype=np.float32)
    ends = (t == END) | (t == STEPS - 1)
    trajectories = {"a reward at the end": jnp.float32(ends)}
    trajectories["rewards in waves"] = jnp.float32(np.sin(t))
    base = advantages.HAND_MADE[evolved.op["base"]]
    zeros, done = jnp.zeros(STEPS), jnp.asarray(ends)
    contexts = moments(evolved.op, **NUMBERS)
    first = next(iter(contexts.values()))
    drawn = {}
    for name, reward in trajectories.items():
        inputs = (reward, zeros, zeros, zeros, done, done)
        ours = {
            label: np.asarray(evolved.function(*inputs, context))
            for label, context in contexts.items()
        }
        drawn[name] = ours, np.asarray(base(*inputs, first))

    def draw(*panels):
        for (name, (ours, theirs)), panel in zip(drawn.items(), panels, strict=True):
            lines(panel, t, ours, (evolved.op["base"], theirs))
            panel.axvline(END + 0.5, color="0.7", lw=0.8, zorder=0)
            panel.set(xlabel=f"step, {name}", ylabel="advantage")

    columns = {"step": t}
    for name, (ours, theirs) in drawn.items():
        columns |= {f"{name}: {label}": y for label, y in ours.items()}
        columns[f"{name}: {evolved.op['base']}"] = theirs
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(**columns),
        f"Advantages of {STEPS} steps, of which step {END} ends an episode, where all "
        "values are 0 and the targets' deviation is 1.",
        len(drawn),
    )


def correction(evolved: Evolved) -> Portrait:
    """The weight of an action against the ratio of its probabilities."""
    ratio = jnp.exp(jnp.linspace(-3.0, 3.0, 121))
    contexts = moments(evolved.op)
    ours = {
        label: np.asarray(evolved.function(jnp.log(ratio), context))
        for label, context in contexts.items()
    }
    theirs = np.asarray(advantages.clipped(jnp.log(ratio)))

    def draw(panel):
        lines(panel, ratio, ours, ("clipped at 1", theirs))
        panel.set(xlabel="ratio π / μ", ylabel="weight", xscale="log")

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(ratio=ratio, **ours, clipped=theirs),
        "The weight of an action against the ratio of its probabilities, by the policy "
        "that learns and by the one that acted; both are clipped at 1.",
    )


def rescale(evolved: Evolved) -> Portrait:
    """The rescaled return against the return, near 0 and far from it."""
    near, far = np.linspace(-10.0, 10.0, 121), np.linspace(-500.0, 500.0, 121)
    drawn = []
    for x in map(jnp.float32, (near, far)):
        ours = np.asarray(evolved.function(x))
        drawn.append((x, ours, np.asarray(rescalings.signed_root(x))))

    def draw(*panels):
        for (x, ours, theirs), panel in zip(drawn, panels, strict=True):
            lines(panel, x, {"evolved": ours}, ("signed root", theirs))
            panel.set(xlabel="return", ylabel="rescaled")

    (x, ours, theirs), (far_x, far_ours, far_theirs) = drawn
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            **{"return": x, "evolved": ours, "signed_root": theirs},
            far_return=far_x,
            far_evolved=far_ours,
            far_signed_root=far_theirs,
        ),
        "Values that the network learns against returns, near 0 and far from it.",
        len(drawn),
    )
