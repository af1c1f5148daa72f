"""The portrait of operations that name no other: a curve for each input."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from metaevo.analysis.plots import losses
from metaevo.analysis.plots.portraits import (
    Evolved,
    Portrait,
    heading,
    lines,
    table,
    zero,
)
from metaevo.portable import tracing
from metaevo.slots import Optimizer

__all__ = ["curves"]

POINTS, ACTIONS = 121, 4
REST = 0.5  # of the inputs that stay


def curves(evolved: Evolved) -> Portrait:
    """Mean output against each input within ±3, the other inputs at 0.5.

    An input that is an array has all its components at the same value. Optimizers are
    drawn by `losses.directions`, numbers against the scalars that they read.
    """
    if isinstance(evolved.function, Optimizer):
        return losses.directions(evolved)
    given, seen, call = tracing.signature(evolved.op)
    x, progress = jnp.linspace(-3.0, 3.0, POINTS), jnp.linspace(0.0, 1.0, POINTS)
    sizes = {"n": POINTS, "a": ACTIONS}
    rest = {
        name: jnp.full([sizes.get(str(size), size) for size in shape], REST)
        for name, shape in given.items()
    } | dict.fromkeys(seen, REST)

    def values(inputs):
        context = tracing.context_of({name: inputs[name] for name in seen})
        arrays = [inputs[name] for name in given]
        y = call(lambda _, *args: evolved.function(*args), (), arrays, context)
        return jnp.asarray(y, jnp.float32)

    places, drawn = {}, {}
    for name in rest:
        places[name] = progress if name == "progress" else x
        shape = jnp.shape(rest[name])
        if "n" in map(str, given.get(name, ())):
            along = x.reshape(-1, *[1] * (len(shape) - 1))
            y = values(rest | {name: jnp.broadcast_to(along, shape)})
        else:
            # A scalar that all elements share.
            each = [values(rest | {name: at}) for at in places[name]]
            y = jnp.stack(each)
        drawn[name] = np.asarray(y).reshape(POINTS, -1).mean(1)

    def draw(*panels):
        for (name, y), panel in zip(drawn.items(), panels, strict=True):
            lines(panel, places[name], {"evolved": y}, None)
            panel.set(xlabel=name.replace("_", " "), ylabel=evolved.slot)
            zero(panel)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(input=x, progress_input=progress, **drawn),
        f"Its mean output against each input, the others at {REST}.",
        len(drawn),
    )
