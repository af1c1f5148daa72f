"""Action values and what is tried: values of the slots `exploration` and `q_transform`.

`exploration`: `(q, epsilon, context) -> probabilities`, from action values [..., A] to
a distribution over actions [..., A]. Noise on continuous actions is in
`metaevo.rl.noise`.

`q_transform`: `(q, context) -> q`, increasing, from [0, 1] to [0, 1]. A tree search
scales values of actions to that range before, and weighs them against the policy and
its visits afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import schedules, slots
from metaevo.learned import transforms
from metaevo.learned.functions import Learned, whole
from metaevo.learned.operations import operation
from metaevo.learned.portraits import LIFETIME, Axis, Curve, Portrait

__all__ = ["epsilon_greedy", "graded", "monotone", "unchanged"]


@slots.function
def epsilon_greedy(q, epsilon, context=None):
    """The best action (the first of equals), but a uniform one with probability ε."""
    del context
    num_actions = q.shape[-1]
    greedy = jax.nn.one_hot(jnp.argmax(q, -1), num_actions)
    return (1 - epsilon) * greedy + epsilon / num_actions


def _portrait(op: Mapping[str, Any]) -> Portrait:
    shares, moments = (0.05, 0.2, 0.5), (0.0, 0.5, 1.0)
    num = 6

    def tried(explore, epsilon, progress, context):
        ranks = jnp.linspace(1.0, 0.0, num)
        return explore(ranks, epsilon, context._replace(progress=progress))

    def other(explore, progress, context):
        def at(t):
            return [1 - tried(explore, share, t, context)[0] for share in shares]

        return jnp.stack(jax.vmap(at)(progress), -1)

    def each(explore, action, context):
        return jnp.stack([tried(explore, 0.2, t, context) for t in moments], -1)

    action = Axis("action, from the best to the worst", 0, num - 1, num=num)
    names = [f"τ = {t}" for t in moments]
    return Portrait(
        (
            Curve(LIFETIME, "not the best", other, [f"ε = {x}" for x in shares]),
            Curve(action, "probability at ε = 0.2", each, names),
        ),
        "Left: how often it tries another action than the best. Right: what it tries "
        "at three shares τ of the lifetime. For six actions whose values are evenly "
        "spaced; the hand-made one is ε-greedy.",
    )


@operation(
    "graded",
    slot="exploration",
    hand_made=epsilon_greedy,
    portrait=_portrait,
    shapes=lambda op: {"q": ("n", "a"), "epsilon": ()},
    reads=lambda op: ("progress",),
)
def graded(num_knots: int = 3) -> Learned:
    """ε-greedy with a learned share of exploration and learned preferences.

    (1 − ε') greedy + ε' softmax(β z),  z = (q − max q) / (max q − min q) in [−1, 0]

    The log-odds of ε' are those of ε plus s. s and β are piecewise linear in the
    progress, with knots that start at zero: then ε' = ε and the softmax is uniform,
    which is ε-greedy. β > 0 tries better actions more often, β < 0 worse ones. An ε of
    0 or 1 stays at 0 or 1.

    Params are {"share": s [num_knots], "preference": β [num_knots]}.

    Args:
        num_knots: equally spaced in a lifetime, at least 2.

    Raises:
        ValueError, TypeError: a setting is not of its kind.
    """
    num_knots = whole(2, 1000, num_knots=num_knots)
    odds = transforms.logit()

    def init(_):
        return {"share": jnp.zeros(num_knots), "preference": jnp.zeros(num_knots)}

    def apply(params, q, epsilon, context):
        basis = schedules.basis(context.progress, num_knots, 1)
        epsilon = odds.moved(epsilon, basis @ params["share"])
        top = q.max(-1, keepdims=True)
        # Halves: the difference of two float32 numbers may be none.
        spread = top / 2 - q.min(-1, keepdims=True) / 2
        z = (q / 2 - top / 2) / jnp.maximum(spread, 1e-30)
        x = jnp.clip(basis @ params["preference"], -1e3, 1e3) * z
        weight = jnp.exp(x - x.max(-1, keepdims=True))
        greedy = jax.nn.one_hot(jnp.argmax(q, -1), q.shape[-1])
        # The order of epsilon_greedy's operations, for its very bits.
        rest = epsilon * weight / weight.sum(-1, keepdims=True)
        return (1 - epsilon) * greedy + rest

    return Learned(init, apply, starts_hand_made=True)


# --- tree search ----------------------------------------------------------------------


@slots.function
def unchanged(q, context=None):
    """The value itself, in the slot `q_transform`."""
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

    f(q) = Σₖ wₖ clip(K q − k, 0, 1),  w = softmax(0, z),  k = 0 ... K − 1

    wₖ is what f gains between k/K and (k + 1)/K. z starts at zero: then f(q) = q, up to
    rounding. Values beyond [0, 1] count as its ends.

    Params are {"gain": z [K − 1]}: of all pieces but the first.

    Args:
        num_pieces: K, at least 2.

    Raises:
        ValueError, TypeError: a setting is not of its kind.
    """
    num_pieces = whole(2, 1000, num_pieces=num_pieces)

    def init(_):
        return {"gain": jnp.zeros(num_pieces - 1)}

    def apply(params, q, context=None):
        del context
        starts = jnp.arange(num_pieces, dtype=jnp.float32)
        part = jnp.clip(num_pieces * q[..., None] - starts, 0.0, 1.0)
        gain = jnp.concatenate([jnp.zeros(1), params["gain"]])
        return part @ jax.nn.softmax(gain)

    return Learned(init, apply, starts_hand_made=True)
