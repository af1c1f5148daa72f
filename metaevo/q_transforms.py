"""What a tree search does with values of moves: the `q_transform` slot.

`(q, context) -> q`, increasing, from [0, 1] to [0, 1]. A search scales values to that
range before, and weighs them against the policy and its visits afterwards.
"""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.learned.functions import Learned
from metaevo.learned.operations import operation

__all__ = ["monotone", "unchanged"]


@slots.function
def unchanged(q, context=None):
    """The value itself."""
    del context
    return q


@operation(
    "monotone_q",
    slot="q_transform",
    hand_made=unchanged,
    guarantees=lambda op: ("increasing",),
)
def monotone(num_pieces: int = 8) -> Learned:
    """An increasing, piecewise linear map of [0, 1] onto itself.

    f(q) = Σₖ wₖ clip(K q − k, 0, 1),  w = softmax(z),  k = 0 ... K − 1

    wₖ is what f gains between k/K and (k + 1)/K. z starts at zero: then f(q) = q, up to
    rounding. Values beyond [0, 1] count as its ends.

    Params are {"gain": z [K]}.

    Args:
        num_pieces: K, at least 2.

    Raises:
        ValueError, TypeError: a setting is not of its kind.
    """
    num_pieces = operator.index(num_pieces)
    if not 2 <= num_pieces <= 1000:
        raise ValueError(f"num_pieces={num_pieces} must be in [2, 1000]")

    def init(key):
        del key
        return {"gain": jnp.zeros(num_pieces)}

    def apply(params, q, context=None):
        del context
        starts = jnp.arange(num_pieces, dtype=jnp.float32)
        part = jnp.clip(num_pieces * q[..., None] - starts, 0.0, 1.0)
        return part @ jax.nn.softmax(params["gain"])

    return Learned(init, apply, {"op": "monotone_q", "num_pieces": num_pieces}, True)
