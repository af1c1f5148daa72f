"""Messages that an agent sees beside its observation: values of the slot `message`.

`(obs, context) -> [..., size]`, or a scalar for `size` equal numbers; `obs` [..., n] is
the environment's observation, flattened. A message is cheap talk: it is a function of
what the agent sees anyway and changes neither transitions nor rewards.

Adversarial Cheap Talk, Lu et al., 2023, https://arxiv.org/abs/2211.11030.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import rewards, slots
from metaevo.learned import functions
from metaevo.learned.functions import Learned, layers, positive, whole
from metaevo.learned.operations import operation
from metaevo.learned.portraits import Portrait, Strongest

__all__ = ["TEST_TIME", "TRAIN_TIME", "network", "silent"]

TRAIN_TIME, TEST_TIME = 2 * math.pi, math.pi
"""Bounds of messages of Lu et al.: to an agent that trains, to one that is frozen."""


@slots.function
def silent(obs, context=None):
    """The message of zeros, whatever is observed."""
    del obs, context
    return jnp.zeros(())


def _portrait(op: Mapping[str, Any]) -> Portrait:
    inputs = {str(i): unit for i, unit in enumerate(op["units"])}
    return Portrait(
        (Strongest("component", inputs, "message", lambda f, x, now: f(x, now)),),
        "The message beside an observation: its first numbers over the two components "
        "that move it most. Last: how much it changes when one component, drawn within "
        "±1 unit, is replaced by another's.",
    )


@operation(
    "message_network",
    slot="message",
    portrait=_portrait,
    shapes=lambda op: {"obs": ("n", len(op["units"]))},
    for_env=lambda env: {"units": rewards.units(env)},
    guarantees=lambda op: ("bounded",),
    facts=lambda op, params: {"bound": op["scale"]},
    examples=({"units": [1.0, 0.5], "size": 2, "features": (8,)},),
)
def network(
    units: Sequence[float],
    size: int = 2,
    features: Sequence[int] = (32, 32),
    scale: float = TRAIN_TIME,
) -> Learned:
    """m = scale · tanh(n(o / units)), n a tanh network that starts random.

    The start is a random message, not silence: in a comparison it is the control that
    any function of the observation is.

    Args:
        units: typical sizes of the components of an observation, flattened, as
            `rewards.units` gives them. Components are clipped to ±10 units.
        size: numbers in a message, `inner.message_size` of the agent that sees it.
        features: hidden layer sizes.
        scale: bound of each number.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.

    References:
        Lu et al., 2023, https://arxiv.org/abs/2211.11030, whose network has relu.
    """
    divisor = rewards.sizes(units)
    positive(scale=scale)
    size = whole(1, 4096, size=size)
    net = functions.network(len(divisor), features, size)
    last = f"w{len(layers(features))}"

    def init(key):
        params = net.init(key)
        shape = params[last].shape
        weight = jax.random.normal(jax.random.fold_in(key, size), shape)
        return params | {last: weight / np.sqrt(shape[0])}

    def apply(params, obs, context=None):
        del context
        inputs = jnp.clip(obs / divisor, -rewards.LARGEST, rewards.LARGEST)
        return scale * jnp.tanh(net.apply(params, inputs))

    return Learned(init, apply, {"units": divisor.tolist()})
