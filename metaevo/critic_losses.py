"""Learned losses of critics that keep their guarantees whatever their parameters.

Values of the slots `value_loss` and `td_loss`, elementwise. Both families weigh the
squared error by a bounded, positive function of the standardized error, and measure
errors in `context.return_std`, the standard deviation s of the value targets. With e
the critic's value less its target, every member f(e, s)

    is nonnegative       f >= 0, and 0 at its only global minimum,
    is coercive          e² / (2 W) <= f <= W e² / 2, up to a bounded shift of e,
    scales as e² does    f(c e, c s) = c² f(e, s) for c > 0,
    starts as e² / 2     exactly.

So no critic runs away from fixed targets, and a member that was found at one scale of
rewards works at another. Plain jnp, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError
from metaevo.learned import functions
from metaevo.learned.functions import Learned, above_one, positive
from metaevo.learned.operations import operation
from metaevo.slots import Context
from metaevo.types import Key, Params

__all__ = ["td_weighted_square", "weighted_square"]

NUM_CELLS = 16
"""Cells on each side of the minimum in which a convex member's curvature is constant.
"""


class _OfError(NamedTuple):
    """A loss of an error.

    Attributes:
        init: `key -> params`.
        apply: `(params, error [...], target [...], context) -> [...]`.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, jax.Array, jax.Array, Context | None], jax.Array]


def _guarantees(op: Mapping[str, Any]) -> tuple[str, ...]:
    always = ("nonnegative", "coercive", "scale-equivariant")
    return (*always, "convex") if op["convex"] else always


def _facts(op: Mapping[str, Any], params: Params) -> dict[str, float]:
    """The minimum in standard deviations, and the range of f / (½ e²) about it."""
    bias = op["max_bias"] * math.tanh(float(params.get("bias", 0.0)))
    return {
        "minimum": bias,
        "least_weight": 1 / op["max_weight"],
        "largest_weight": op["max_weight"],
    }


@operation(
    "weighted_square",
    slot="value_loss",
    hand_made="metaevo.losses:square",
    closed_form="metaevo.analysis.curve_fits:value_loss",
    reads=lambda op: ("return_std",),
    guarantees=_guarantees,
    facts=_facts,
    examples=(
        {},
        {"convex": True, "features": (8,)},
        {"max_bias": 0.0, "signed": True},
    ),
)
def weighted_square(
    features: Sequence[int] = (16,),
    convex: bool = False,
    max_weight: float = 8.0,
    max_bias: float = 1.0,
    limit: float = 3.0,
    temporal: bool = False,
    signed: bool = False,
) -> Learned:
    """A value loss ½ w(e / s) e², e = v − g − s b, that starts at the squared error.

    s is `context.return_std`, held constant; b = `max_bias` tanh β; and
    w(x) = W ** tanh(n(L tanh(x / L))) with W = `max_weight` and L = `limit`. n is a
    small tanh network that starts at zero, and so does β. A member may have local
    minima, at most about L standard deviations from the target.

    A convex member has w as its curvature instead: ∂²f/∂v² = w in each of
    2 · `NUM_CELLS` cells of x within ±L, and the outermost one's beyond. It is a sum of
    truncated squares, and its slope is monotone.

    Args:
        features: hidden layer sizes of n.
        convex: True for the convex members.
        max_weight: W > 1; the squared error is weighed by 1 / W to W.
        max_bias: the minimum lies within ± `max_bias` standard deviations of the
            target; 0 keeps it at the target.
        limit: L, in standard deviations; w is nearly constant beyond.
        temporal: True if n also sees `context.progress`.
        signed: True if n sees y = x sign(g) in place of x, negative where the value is
            to move away from zero, and sign(y) and |g| / (s + |g|). Without a bias
            f(−e, −g) = f(e, g): rewards are weighed as costs are. Not for convex
            members.

    Raises:
        ValueError: a setting has a wrong type, or is out of its range. The function
            raises it where `context.return_std` is missing.
    """
    loss = _weighted(features, convex, max_weight, max_bias, limit, temporal, signed)

    def apply(params, value, target, old_value, context: Context | None = None):
        del old_value
        return loss.apply(params, value - target, target, context)

    return Learned(loss.init, apply, starts_hand_made=True)


@operation(
    "td_weighted_square",
    slot="td_loss",
    hand_made="metaevo.losses:td_square",
    closed_form="metaevo.analysis.curve_fits:td_loss",
    reads=lambda op: ("return_std",),
    guarantees=_guarantees,
    facts=_facts,
    examples=(
        {},
        {"convex": True, "features": (8,)},
        {"features": (8,), "signed": True},
    ),
)
def td_weighted_square(
    features: Sequence[int] = (16,),
    convex: bool = False,
    max_weight: float = 8.0,
    max_bias: float = 1.0,
    limit: float = 3.0,
    temporal: bool = False,
    signed: bool = False,
) -> Learned:
    """A loss of a temporal difference, `weighted_square` of e = Q − target − s b.

    DQNReg, δ² + 0.1 Q (Co-Reyes et al., 2021, https://arxiv.org/abs/2101.03958), has
    the gradient of a member up to a factor, that with a constant w and s b = −0.05.

    Args:
        features, convex, max_weight, max_bias, limit, temporal, signed: as in
            `weighted_square`. `losses.td_reluctant` is a signed member up to a factor,
            whose weight reads sign(y) alone.

    Raises:
        ValueError: as `weighted_square`.
    """
    loss = _weighted(features, convex, max_weight, max_bias, limit, temporal, signed)

    def apply(params, td_error, q, target, context: Context | None = None):
        del q
        return loss.apply(params, -td_error, target, context)

    return Learned(loss.init, apply, starts_hand_made=True)


def _weighted(
    features: Sequence[int],
    convex: bool,
    max_weight: float,
    max_bias: float,
    limit: float,
    temporal: bool,
    signed: bool,
) -> _OfError:
    """The loss that both operations share; see `weighted_square`."""
    positive(limit=limit)
    above_one(max_weight=max_weight)
    if not isinstance(max_bias, int | float) or not 0 <= max_bias < math.inf:
        raise ConfigError(f"max_bias={max_bias!r}: expected a finite number >= 0")
    if convex and signed:
        raise ConfigError("signed=True: convex members see the error alone")
    network = functions.network(1 + bool(temporal) + 2 * bool(signed), features)
    edges = limit * np.arange(NUM_CELLS) / NUM_CELLS
    centers = edges + 0.5 * limit / NUM_CELLS

    def init(key):
        params = {"network": network.init(key)}
        return params | ({"bias": jnp.zeros(())} if max_bias else {})

    def weight(params, seen, context):
        y = network.apply(params["network"], functions.inputs(seen, temporal, context))
        return jnp.exp(math.log(max_weight) * jnp.tanh(y.squeeze(-1)))

    def of_weight(params, error, target, std, context):
        x = limit * jnp.tanh(error / (limit * std))
        seen = [x]
        if signed:
            away, size = x * jnp.sign(target), jnp.abs(target)
            seen = [away, jnp.sign(away), size / (std + size)]
        return 0.5 * error**2 * weight(params, seen, context)

    def of_curvature(params, error, target, std, context):
        del target
        # Where the curvature changes by c, ½ c max(|e| − edge, 0)² is added.
        x = jnp.asarray(np.stack([centers, -centers]), error.dtype)
        curvature = weight(params, [x], context)
        before = jnp.concatenate([jnp.ones_like(curvature[:, :1]), curvature], 1)
        above, below = curvature - before[:, :-1]
        cells = (1,) * error.ndim + (NUM_CELLS,)
        sides = jnp.where(
            jnp.expand_dims(error, -1) >= 0, above.reshape(cells), below.reshape(cells)
        )
        starts = std * jnp.asarray(edges.reshape(cells), error.dtype)
        beyond = jax.nn.relu(jnp.expand_dims(jnp.abs(error), -1) - starts)
        return 0.5 * error**2 + 0.5 * (sides * beyond**2).sum(-1)

    loss = of_curvature if convex else of_weight

    def apply(params, error, target, context):
        if temporal:
            functions.progress(context)  # without a context its error is the first
        std = functions.return_std(context)
        error = jnp.asarray(error, jnp.result_type(float))
        if max_bias:
            error = error - std * max_bias * jnp.tanh(params["bias"])
        return loss(params, error, jax.lax.stop_gradient(target), std, context)

    return _OfError(init, apply)
