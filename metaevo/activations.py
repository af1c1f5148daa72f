"""Activation functions: values of the `activation` slot, `(x) -> [...]`, elementwise.

Plain jnp, so that an artifact loads without flax.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.learned.functions import Learned, name_of, positive, whole
from metaevo.learned.operations import operation

__all__ = ["piecewise", "relu", "tanh"]

tanh = slots.function(jnp.tanh)
relu = slots.function(jax.nn.relu)
HAND_MADE = {"tanh": tanh, "relu": relu}


@operation(
    "piecewise",
    slot="activation",
    hand_made=HAND_MADE,
    closed_form="metaevo.analysis.curve_fits:activation",
    examples=({}, {"base": "relu", "num_knots": 3}),
)
def piecewise(
    base: slots.Slot | str = "tanh", num_knots: int = 17, limit: float = 4.0
) -> Learned:
    """σ(x) = c · (base(x) + w(x)), w piecewise linear and at first zero.

    w has `num_knots` values, its params, evenly spaced on ± `limit`, and is constant
    outside. c keeps the mean of σ² over N(0, 1) that of `base`, so that the sizes for
    which networks are initialized stay right; at the start it is 1.

    Args:
        base: a hand-made activation or its name, `tanh` or `relu`.
        num_knots: 2 to 65.
        limit: place of the outermost knots.

    Raises:
        ValueError: a setting has a wrong type, or is out of range.

    References:
        Learned piecewise-linear activations: Agostinelli et al., 2015,
        https://arxiv.org/abs/1412.6830.
    """
    name = name_of(base, HAND_MADE)
    hand_made = HAND_MADE[name]
    positive(limit=limit)
    num_knots = whole(2, 65, num_knots=num_knots)
    knots = np.linspace(-limit, limit, num_knots)
    width = 2 * limit / (num_knots - 1)
    # Nodes and weights of a mean over N(0, 1).
    nodes = np.linspace(-4.0, 4.0, 257)
    weights = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()

    def raw(params, x):
        # Hats, not an interpolation: elementwise, with neither search nor gather.
        at = jnp.clip(x, -limit, limit)
        moved = hand_made(x)
        for value, knot in zip(params, knots.tolist(), strict=True):
            moved += value * jax.nn.relu(1 - jnp.abs(at - knot) / width)
        return moved

    def apply(params, x):
        usual, now = (
            (weights * raw(p, nodes) ** 2).sum()
            for p in (jnp.zeros_like(params), params)
        )
        return jnp.sqrt(usual / jnp.maximum(now, 1e-3)) * raw(params, x)

    return Learned(lambda _: jnp.zeros(num_knots), apply, {"base": name}, True)
