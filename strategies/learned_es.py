"""Learned evolution strategy (Lange et al., 2023, https://arxiv.org/abs/2211.11260).

    xᵢ ~ N(m, σ²);   w = attention over the members' z-scores, ranks and "best so far"
    m ← m + α_m (Σᵢ wᵢ xᵢ − m);   σ ← σ + α_σ (√Σᵢ wᵢ (xᵢ − m)² − σ)

with α_m, α_σ per parameter from a small network over evolution paths and time. The
weights are not the paper's: evosax's author trained them again, and they are part of
evosax (`2023_10_les_v2`), so nothing is downloaded. Sigma is the only number to set;
there is no learning rate. Not invariant under monotone maps of the fitness.
"""

from __future__ import annotations

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options


@remakeable
def learned_es(space: Space, population_size: int, sigma: float) -> Strategy:
    """The learned evolution strategy from the mean `space.init`.

    Args:
        population_size: P, at least 2. Members are not mirrored.
        sigma: initial standard deviation of all parameters, > 0.

    Raises:
        ConfigError: a population below 2 or sigma <= 0.
    """
    _options.at_least(2, population_size=population_size)
    _options.positive(sigma=sigma)
    return _evosax.from_distribution(
        "LearnedES",
        space,
        population_size,
        lambda params: params.replace(std_init=sigma),
        recombines=True,
    )
