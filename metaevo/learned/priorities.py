"""Priorities in a replay buffer: values of the slot `priority`.

`(td_error, age, visits, reward, terminated, context) -> p [...]`, elementwise, p >= 0.
A transition of n steps is sampled in proportion to p^α.

* `td_error` is target − q.
* `age` is the number of steps since the transition was complete, in shares of the
  buffer's capacity; 0 for a new one.
* `visits` counts how often it was sampled before; 0 for a new one.
* `reward` is the discounted sum of its n rewards, those that the agent learns from.
* `terminated` tells whether it ends in a terminal state.
* `context.return_std` is the deviation of a minibatch's targets, for new transitions of
  the last minibatch's.

An actor gives new transitions their first priority, a learner gives another after each
visit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from metaevo import slots
from metaevo.learned import functions
from metaevo.learned.functions import Learned, above_one, softsign
from metaevo.learned.operations import operation
from metaevo.slots import Context

__all__ = ["absolute", "network"]


@slots.function
def absolute(td_error, age, visits, reward, terminated, context=None):
    """|δ|, δ = target − Q (Schaul et al., 2016)."""
    del age, visits, reward, terminated, context
    return jnp.abs(td_error)


@operation(
    "priority_network",
    slot="priority",
    hand_made=absolute,
    reads=lambda op: ("return_std",),
    guarantees=lambda op: ("proportional",),
)
def network(
    features: Sequence[int] = (16,), largest: float = 8.0, temporal: bool = False
) -> Learned:
    """A priority p = |δ| e^(L tanh(y / L)), L = log `largest`, that starts as |δ|.

    y = n(x) − n(0): a factor that all have in common would change no probability.

    x = (δ / s, |δ| / s, R / s, age, visits / 4, terminated), each u but the last as
    u / (1 + |u|). s = `context.return_std`. n is a
    small tanh network that starts at zero. So p grows with the scale of rewards, and
    probabilities do not depend on it.

    Args:
        features: hidden layer sizes.
        largest: > 1; p lies between |δ| / largest and |δ| · largest.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type or value. The function raises it where
            `context.return_std` is missing.
    """
    above_one(largest=largest)
    limit = math.log(largest)
    n = functions.network(6 + bool(temporal), features)

    def apply(
        params, td_error, age, visits, reward, terminated,
        context: Context | None = None,
    ):  # fmt: skip
        if temporal:
            functions.progress(context)  # without a context its error is the first
        std = functions.return_std(context)
        size = jnp.abs(td_error)
        x = [
            softsign(td_error / std),
            softsign(size / std),
            softsign(reward / std),
            softsign(age),
            softsign(visits, 4.0),
            jnp.asarray(terminated, size.dtype),
        ]
        seen = functions.inputs(x, temporal, context)
        nothing = jnp.zeros(seen.shape[-1:], seen.dtype)
        y = (n.apply(params, seen) - n.apply(params, nothing)).squeeze(-1)
        return size * jnp.exp(limit * jnp.tanh(y / limit))

    return Learned(n.init, apply, starts_hand_made=True)
