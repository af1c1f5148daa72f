"""Separable CMA-ES (Ros & Hansen, 2008, https://inria.hal.science/inria-00287367).

CMA-ES whose covariance is diagonal: O(D) numbers and O(P D) work in place of O(D²) and
O(D³). It scales each parameter, but cannot learn dependences between parameters.

    xᵢ ~ N(m, σ² C);   m ← Σᵢ wᵢ xᵢ over the better half;   σ by the length of its
    evolution path;   C, diagonal, by its path (rank one) and the better half (rank μ)

On evosax, whose learning rates of C are those of the full CMA-ES; here they are the
paper's, (D + 2)/3 times larger.
"""

from __future__ import annotations

import jax.numpy as jnp

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options, _trees


@remakeable
def sep_cma_es(space: Space, population_size: int, sigma: float) -> Strategy:
    """Separable CMA-ES from the mean `space.init` and the covariance sigma² I.

    Args:
        population_size: P, at least 4. Members are not mirrored.
        sigma: initial standard deviation of all parameters, > 0.

    Raises:
        ConfigError: a population below 4 or sigma <= 0.
    """
    _options.at_least(4, population_size=population_size)
    _options.positive(sigma=sigma)
    faster = (_trees.flattening(space)[2] + 2) / 3

    def tune(params):
        c_1 = jnp.minimum(1.0, faster * params.c_1)
        c_mu = jnp.minimum(1.0 - c_1, faster * params.c_mu)
        return params.replace(std_init=sigma, c_1=c_1, c_mu=c_mu)

    return _evosax.from_distribution(
        "Sep_CMA_ES",
        space,
        population_size,
        tune,
        fitness_shaping_fn=_evosax.tied_weights,
        recombines=True,
    )
