"""OpenAI-ES (Salimans et al., 2017, https://arxiv.org/abs/1703.03864).

    εᵢ ~ N(0, I), mirrored;   g = 1/(P σ) Σᵢ uᵢ εᵢ;   θ ← θ + optimizer(g)

with u the centred ranks of the fitness by default. On evosax. Unlike the paper's,
the optimizer and its step size are explicit, and sigma may decay. Pairs that tie are
left out of the sum: where all do it is exactly 0.
"""

from __future__ import annotations

import optax

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options, _shaping


@remakeable
def open_es(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation,
    *,
    sigma_decay: float = 1.0,
    shaping: str = "centered_rank",
) -> Strategy:
    """OpenAI-ES from the mean `space.init`.

    Args:
        population_size: P, even: members i and i + P/2 are mirror images.
        sigma: standard deviation of the noise in generation 0, > 0.
        optimizer: ascends the estimated gradient, such as `optax.adam(0.3)`; a decay
            of the learning rate is its schedule, weight decay that of `optax.adamw`.
        sigma_decay: factor on sigma per generation, > 0.
        shaping: `centered_rank` (in [-0.5, 0.5], ties averaged, invariant under
            monotone maps of the fitness), `standardize` (z-scores) or `pair_rank`
            (0.5 for the better of a mirrored pair, -0.5 for the other).

    Raises:
        ConfigError: an odd population, sigma <= 0, or an unknown shaping.
    """
    _options.even(population_size)
    _options.positive(sigma=sigma, sigma_decay=sigma_decay)
    shape = _shaping.without_ties(_shaping.named(shaping))
    return _evosax.from_distribution(
        "Open_ES",
        space,
        population_size,
        optimizer=optimizer,
        fitness_shaping_fn=_evosax.minimized(shape),
        mirrored=True,
        **_evosax.annealed(sigma, sigma_decay),
    )
