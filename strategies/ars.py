"""Augmented random search (Mania et al., 2018, https://arxiv.org/abs/1803.07055).

    εᵢ ~ N(0, I), mirrored;   k the best pairs by max(f⁺, f⁻)
    g = 1/(k s) Σᵢ (fᵢ⁺ − fᵢ⁻) εᵢ,  s the standard deviation of these 2k fitnesses
    θ ← θ + optimizer(g)

This is the paper's version V1-t. (V2 also normalizes observations; here inner loops do
that.) On evosax. Unlike the paper's, the optimizer is explicit (the paper's is
`optax.sgd`), and sigma may decay.
"""

from __future__ import annotations

import optax

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options, _shaping


@remakeable
def ars(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation,
    *,
    elite_ratio: float = 0.5,
    sigma_decay: float = 1.0,
    shaping: str = "standardize",
) -> Strategy:
    """Augmented random search from the mean `space.init`.

    Args:
        population_size: P, even: members i and i + P/2 are mirror images.
        sigma: standard deviation of the noise in generation 0, > 0.
        optimizer: ascends the estimated gradient; a decay of the learning rate is its
            schedule, weight decay that of `optax.adamw`.
        elite_ratio: fraction of the pairs that are used, in [0, 1]; at least one is.
        sigma_decay: factor on sigma per generation, > 0.
        shaping: `standardize` (the paper's: dividing by s makes it the same as none) or
            `centered_rank` (invariant under monotone maps of the fitness).

    Raises:
        ConfigError: an odd population, sigma <= 0, an elite ratio outside [0, 1], or an
            unknown shaping. (`pair_rank` would make all pairs equal.)
    """
    _options.even(population_size)
    _options.positive(sigma=sigma, sigma_decay=sigma_decay)
    _options.fraction(elite_ratio=elite_ratio)
    shape = _shaping.named(shaping, ("standardize", "centered_rank"))
    return _evosax.from_distribution(
        "ARS",
        space,
        population_size,
        elite_ratio=elite_ratio,
        optimizer=optimizer,
        fitness_shaping_fn=_evosax.minimized(shape),
        mirrored=True,
        **_evosax.annealed(sigma, sigma_decay),
    )
