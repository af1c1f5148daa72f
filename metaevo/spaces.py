"""Spaces: what may evolve, as replacements of slots.

`replace(value_loss=...)` puts learned functions into slots, `tune(lr=...)` evolves
numbers around their defaults, `combine` joins spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from metaevo import slots
from metaevo.losses import Learned
from metaevo.types import ConfigError, Space, keep

__all__ = [
    "Transform",
    "combine",
    "linear",
    "log",
    "logit",
    "one_minus_log",
    "replace",
    "tune",
]


def replace(**learned: Learned) -> Space:
    """Learned functions in place of hand-made ones.

    Args:
        **learned: slot name -> function with parameters, such as
            `value_loss=losses.residual_network()`.

    Returns:
        a space of params {slot: parameters of its function}.
    """

    def init(key):
        return {
            name: function.init(jax.random.fold_in(key, i))
            for i, (name, function) in enumerate(sorted(learned.items()))
        }

    def bind(params, meta):
        bound = {name: f.bind(params[name]) for name, f in learned.items()}
        return slots.replace(meta, **bound)

    return Space(
        init,
        bind,
        spec={name: dict(function.spec) for name, function in learned.items()},
        identity=all(function.identity for function in learned.values()),
    )


class Transform(NamedTuple):
    """How a number is searched: x ∈ ℝ ↦ number.

    Attributes:
        to_number: traced, of x times `scale` plus where the default lies.
        from_number: its inverse, on numpy: defaults are concrete numbers.
        scale: how far one unit of x moves in the transformed number. Choose it such
            that one sigma fits all numbers of a space.
        name: for the artefact.
    """

    to_number: Callable[[jax.Array], jax.Array]
    from_number: Callable[[np.float64], np.float64]
    scale: float
    name: str


def linear(scale: float = 1.0) -> Transform:
    """The number itself."""
    return Transform(lambda y: y, lambda n: n, scale, "linear")


def log(scale: float = 1.0) -> Transform:
    """A positive number on a log scale; scale 1 is a factor of e per unit."""
    return Transform(jnp.exp, np.log, scale, "log")


def logit(scale: float = 1.0) -> Transform:
    """A number in (0, 1) by its log-odds."""
    return Transform(jax.nn.sigmoid, special.logit, scale, "logit")


def one_minus_log(scale: float = 1.0) -> Transform:
    """A number below 1, such as a discount, by the log of its distance to 1.

    Kept in [0, 1 − 1e-6].
    """
    return Transform(
        lambda y: jnp.clip(1 - jnp.exp(y), 0.0, 1 - 1e-6),
        lambda n: np.log1p(-n),
        scale,
        "one_minus_log",
    )


def tune(**transforms: Transform) -> Space:
    """Numbers, searched around their defaults: zero is the hand-made algorithm.

    number = T(T⁻¹(default) + scale · x), x starting at 0, one per slot.

    Args:
        **transforms: slot name -> `log()`, `logit()`, `one_minus_log()`, `linear()`.

    Returns:
        a space of params {slot: scalar}.
    """

    def init(key):
        del key
        return {name: jnp.zeros(()) for name in transforms}

    def bind(params, meta):
        numbers = {}
        for name, transform in transforms.items():
            default = slots.get(meta, name)
            if callable(default) or default is None:
                raise ConfigError(f"tune({name}=...): slot {name!r} holds no number")
            with np.errstate(all="ignore"):
                start = np.float32(transform.from_number(np.float64(default)))
            if not np.isfinite(start):
                raise ConfigError(
                    f"tune({name}={transform.name}()): the default {default} is "
                    "outside that scale; set another default or use linear()"
                )
            numbers[name] = transform.to_number(start + transform.scale * params[name])
        return slots.replace(meta, **numbers)

    return Space(
        init,
        bind,
        spec={
            name: {"op": "number", "transform": t.name, "scale": t.scale}
            for name, t in transforms.items()
        },
        identity=True,
    )


def combine(*spaces: Space) -> Space:
    """Several spaces as one; params are the union of theirs.

    Raises:
        ConfigError: two spaces replace the same slot.
    """
    spec: dict = {}
    for space in spaces:
        if twice := spec.keys() & space.spec.keys():
            raise ConfigError(f"combine: slot {min(twice)!r} is in two spaces")
        spec |= space.spec

    def init(key):
        params = {}
        for i, space in enumerate(spaces):
            params |= space.init(jax.random.fold_in(key, i))
        return params

    def part(space, params):
        return {name: params[name] for name in space.spec}

    def bind(params, meta):
        for space in spaces:
            meta = space.bind(part(space, params), meta)
        return meta

    def inherit(params, state):
        for space in spaces:
            params = params | space.inherit(part(space, params), state)
        return params

    lamarckian = any(space.inherit is not keep for space in spaces)
    return Space(
        init,
        bind,
        inherit if lamarckian else keep,
        spec,
        all(space.identity for space in spaces),
    )


def size(space: Space) -> int:
    """Number of evolved numbers."""
    shapes = jax.eval_shape(space.init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
