"""Policy gradients with parameter-based exploration (Sehnke et al., 2010).

    εᵢ ~ N(0, σ²), mirrored;   fᵢ⁺, fᵢ⁻ the shaped fitness of θ ± εᵢ,  b their mean
    θ ← θ + optimizer(1/P Σᵢ (fᵢ⁺ − fᵢ⁻) εᵢ)
    σ ← σ + η/P Σᵢ (fᵢ⁺ + fᵢ⁻ − 2b) (εᵢ² − σ²)/σ,  by at most `max_sigma_change` of σ

σ is one number per parameter, and all products are per parameter.
https://doi.org/10.1016/j.neunet.2009.12.004. On evosax. Unlike the paper's, fitness is
shaped, the optimizer is explicit, and the change of σ is clipped (as by Toklu et al.,
2020, in PGPE with ClipUp).
"""

from __future__ import annotations

import optax

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options, _shaping


@remakeable
def pgpe(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation,
    *,
    sigma_learning_rate: float = 0.1,
    max_sigma_change: float = 0.2,
    shaping: str = "centered_rank",
) -> Strategy:
    """PGPE from the mean `space.init`.

    Args:
        population_size: P, even: members i and i + P/2 are mirror images.
        sigma: initial standard deviation of all parameters, > 0.
        optimizer: ascends the estimated gradient, which grows with σ: prefer one that
            normalizes, such as `optax.adam`. Its schedule is the decay of the learning
            rate; weight decay is that of `optax.adamw`.
        sigma_learning_rate: η >= 0.
        max_sigma_change: largest relative change of σ in one generation, in [0, 1].
        shaping: `centered_rank` or `standardize`. (`pair_rank` does not depend on
            the distance of a pair, so σ would never change.)

    Raises:
        ConfigError: an odd population, sigma <= 0, an option out of its range, or an
            unknown shaping.
    """
    _options.even(population_size)
    _options.positive(sigma=sigma)
    _options.at_least(0, sigma_learning_rate=sigma_learning_rate)
    _options.fraction(max_sigma_change=max_sigma_change)
    shape = _shaping.named(shaping, ("centered_rank", "standardize"))
    return _evosax.from_distribution(
        "PGPE",
        space,
        population_size,
        lambda params: params.replace(
            std_init=sigma, std_lr=sigma_learning_rate, std_max_change=max_sigma_change
        ),
        optimizer=optimizer,
        fitness_shaping_fn=_evosax.minimized(shape),
        mirrored=True,
    )
