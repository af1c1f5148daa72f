"""Schedules: values of number slots that change over a lifetime."""

from __future__ import annotations

import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo.slots import Context

__all__ = ["linear"]


def _linear(start, end, fraction, context: Context):
    done = jnp.minimum(context.progress / fraction, 1.0)
    return start + (end - start) * done


def linear(start: float, end: float, fraction: float = 1.0) -> Partial:
    """From `start` to `end` over the first `fraction` of a lifetime, then constant."""
    return Partial(_linear, start, end, fraction)
