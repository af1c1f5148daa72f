"""Ensembles of critics, evaluated together.

Two are those of TD3 (Fujimoto et al., 2018), more of them those of REDQ (Chen et al.,
2021, https://arxiv.org/abs/2101.05982).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import networks
from metaevo.types import Key

__all__ = ["Critics", "bounded", "of_actions", "of_observations", "random_subset"]


class Critics(NamedTuple):
    """N networks with different first parameters.

    Attributes:
        init: `key -> params`, leaves [N, ...].
        values: `(params, obs [..., *shape], action [..., A]) -> [N, ...]` with actions
            in [−1, 1], or `(params, obs [..., *shape]) -> [N, ..., A]`, the values of
            all discrete actions.
    """

    init: Callable[[Key], Any]
    values: Callable[..., jax.Array]


def of_actions(
    observation: envs.Box,
    action: envs.Box,
    features: Sequence[int],
    activation: str,
    num: int = 2,
    layer_norm: bool = False,
) -> Critics:
    """Critics over observations and continuous actions.

    Args:
        observation, action: of the environment.
        features, activation: hidden layers of each critic.
        num: N.
        layer_norm: normalize hidden layers before the activation (Ball et al., 2023,
            https://arxiv.org/abs/2302.02948).
    """
    width = math.prod(observation.shape) + action.shape[0]
    network = networks.mlp(features, 1, 1.0, activation, layer_norm=layer_norm)

    def values(params, obs, action):
        flat = obs.reshape(*action.shape[:-1], -1)
        joined = jnp.concatenate([flat, action], -1)
        return jax.vmap(network.apply, (0, None))(params, joined)[..., 0]

    return Critics(_init(network, num, (width,)), values)


def of_observations(
    observation: envs.Box,
    num_actions: int,
    features: Sequence[int],
    activation: str,
    num: int = 2,
    layer_norm: bool = False,
) -> Critics:
    """Critics with a value for each discrete action; arguments as in `of_actions`."""
    network = networks.mlp(
        features,
        num_actions,
        1.0,
        activation,
        len(observation.shape),
        layer_norm=layer_norm,
    )

    def values(params, obs):
        return jax.vmap(network.apply, (0, None))(params, obs)

    return Critics(_init(network, num, observation.shape), values)


def bounded(critics: Critics) -> Critics:
    """Critics whose values lie in (0, 1), by a sigmoid, for returns that do."""
    return critics._replace(
        values=lambda *inputs: jax.nn.sigmoid(critics.values(*inputs))
    )


def random_subset(key: Key, q: jax.Array, num: int) -> jax.Array:
    """`num` of the N critics' values, [N, ...] to [num, ...], all if there are no more.

    REDQ's target: the least of a random subset is less pessimistic than that of all.

    >>> random_subset(jax.random.key(0), jnp.arange(5.0), 2).shape
    (2,)
    """
    if num == len(q):
        return q
    return q[jax.random.permutation(key, len(q))[:num]]


def _init(
    network: networks.Network, num: int, shape: tuple[int, ...]
) -> Callable[[Key], Any]:
    def init(key):
        draw = jax.vmap(lambda key: network.init(key, jnp.zeros(shape)))
        return draw(jax.random.split(key, num))

    return init
