"""CMA-ES (Hansen, 2016, https://arxiv.org/abs/1604.00772).

    xᵢ ~ N(m, σ² C);   m ← Σᵢ wᵢ xᵢ over the better half;   σ by the length of its
    evolution path;   C by its path (rank one) and all members (rank μ, active)

Constants are the paper's. C has D² numbers and each generation decomposes it, which is
D³ work. Use it for up to some hundreds of parameters, and `sep_cma_es` for more. On
evosax.
"""

from __future__ import annotations

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options


@remakeable
def cma_es(space: Space, population_size: int, sigma: float) -> Strategy:
    """CMA-ES from the mean `space.init` and the covariance sigma² I.

    Args:
        population_size: P, at least 4. Members are not mirrored.
        sigma: initial standard deviation of all parameters, > 0.

    Raises:
        ConfigError: a population below 4 or sigma <= 0.
    """
    _options.at_least(4, population_size=population_size)
    _options.positive(sigma=sigma)
    return _evosax.from_distribution(
        "CMA_ES",
        space,
        population_size,
        lambda params: params.replace(std_init=sigma),
        fitness_shaping_fn=_evosax.tied_weights,
        recombines=True,
    )
