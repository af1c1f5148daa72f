"""Policy heads: from a network's outputs to a distribution over actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import distributions
from metaevo.types import Key

__all__ = ["Head", "of"]


class Head(NamedTuple):
    """A policy head.

    Attributes:
        num_outputs: outputs that the network must have.
        init: `() -> parameters` of the head's own, {} if it has none.
        distribution: `(parameters, outputs [..., num_outputs], mask) -> distribution`;
            ignores other entries of `parameters`. `mask` [..., A] has the legal
            actions, None: all.
        noise: `(key, shape) -> noise` for `distribution.transform`.
        log_prob: `(distribution, action) -> [...]`.
    """

    num_outputs: int
    init: Callable[[], dict[str, jax.Array]]
    distribution: Callable[[Any, jax.Array, jax.Array | None], Any]
    noise: Callable[[Key, tuple[int, ...]], jax.Array]
    log_prob: Callable[[Any, jax.Array], jax.Array]


def of(action: envs.Discrete | envs.Box, initial_log_std: float = 0.0) -> Head:
    """The head for these actions: categorical, or normal with its own deviations.

    A normal head has one parameter, `log_std` [A], which starts at `initial_log_std`.

    >>> of(envs.Discrete(3)).num_outputs, of(envs.Box((2,))).init()["log_std"].shape
    (3, (2,))
    """
    if isinstance(action, envs.Discrete):
        return Head(
            action.num,
            dict,
            lambda params, outputs, mask: distributions.Categorical(
                distributions.among_legal(outputs, mask)
            ),
            distributions.Categorical.noise,
            distributions.Categorical.log_prob,
        )
    num = action.shape[0]
    return Head(
        num,
        lambda: {"log_std": jnp.full(num, initial_log_std)},
        lambda params, outputs, mask: distributions.Normal(outputs, params["log_std"]),
        distributions.Normal.noise,
        distributions.Normal.log_prob,
    )
