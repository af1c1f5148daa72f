"""Steps of a mean along an estimated gradient, by an optimizer of optax.

A state has the fields `mean` [D], `optimizer`, `generation` and `update_norm`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def deviation(state: Any, sigma: float, decay: float) -> jax.Array:
    """Return the deviation of the noise: sigma times `decay` per generation."""
    return sigma * jnp.float32(decay) ** state.generation.astype(jnp.float32)


def ascend(
    state: Any, gradient: jax.Array, optimizer: optax.GradientTransformation
) -> Any:
    """Return the state of the next generation, after a step along `gradient` [D]."""
    updates, after = optimizer.update(-gradient, state.optimizer, state.mean)
    return state._replace(
        mean=jnp.asarray(optax.apply_updates(state.mean, updates)),
        optimizer=after,
        generation=state.generation + 1,
        update_norm=jnp.linalg.norm(updates),
    )


def metrics(state: Any, sigma: jax.Array) -> dict[str, jax.Array]:
    """Return the metrics of a strategy with such a state."""
    return {
        "sigma": sigma,
        "mean_norm": jnp.linalg.norm(state.mean),
        "update_norm": state.update_norm,
    }
