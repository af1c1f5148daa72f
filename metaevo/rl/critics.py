"""Critics of continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import networks
from metaevo.types import Key

__all__ = ["Critics", "twin"]


class Critics(NamedTuple):
    """Several networks over observations and actions, evaluated together.

    Attributes:
        init: `key -> params`, leaves [number of critics, ...].
        values: `(params, obs [..., *shape], action [..., A]) -> [critics, ...]`;
            actions in [−1, 1].
    """

    init: Callable[[Key], Any]
    values: Callable[[Any, jax.Array, jax.Array], jax.Array]


def twin(
    observation: envs.Box,
    action: envs.Box,
    features: Sequence[int],
    activation: str,
) -> Critics:
    """Two critics with different first parameters (Fujimoto et al., 2018).

    Args:
        observation, action: of the environment.
        features, activation: hidden layers of each critic.
    """
    width = math.prod(observation.shape) + action.shape[0]
    network = networks.mlp(features, 1, 1.0, activation)

    def init(key):
        draw = jax.vmap(lambda key: network.init(key, jnp.zeros(width)))
        return draw(jax.random.split(key))

    def values(params, obs, action):
        flat = obs.reshape(*action.shape[:-1], -1)
        joined = jnp.concatenate([flat, action], -1)
        return jax.vmap(network.apply, (0, None))(params, joined)[..., 0]

    return Critics(init, values)
