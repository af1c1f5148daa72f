"""Schedules: values of number slots that change over a lifetime."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo.learned import Learned
from metaevo.slots import Context

__all__ = ["linear", "steps"]


def _linear(start, end, fraction, context: Context):
    done = jnp.minimum(context.progress / fraction, 1.0)
    return start + (end - start) * done


def linear(start: float, end: float, fraction: float = 1.0) -> Partial:
    """From `start` to `end` over the first `fraction` of a lifetime, then constant."""
    return Partial(_linear, start, end, fraction)


def _steps(values, context: Context):
    n = len(values)
    now = jnp.clip(jnp.floor(context.progress * n), 0, n - 1)
    return jnp.where(np.arange(n, dtype=np.float32) == now, values, 0.0).sum()


def steps(num_steps: int) -> Learned:
    """A number that is constant on `num_steps` equal parts of a lifetime.

    Its params are the values [num_steps].
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} must be at least 1")

    def init(key):
        del key
        return jnp.zeros(num_steps)

    return Learned(init, _steps, {"op": "steps", "num_steps": num_steps})
