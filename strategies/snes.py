"""Separable natural evolution strategy (Wierstra et al., 2014).

    zᵢ ~ N(0, I);   θᵢ = θ + σ zᵢ;   u the utilities of the ranks, Σᵢ uᵢ = 0
    θ ← θ + optimizer(σ Σᵢ uᵢ zᵢ);   σ ← σ exp(η/2 Σᵢ uᵢ (zᵢ² − 1))

σ is one number per parameter, and all products are per parameter. Utilities are the
paper's: max(0, ln(P/2 + 1) − ln rank), normalized, minus 1/P.
https://www.jmlr.org/papers/v15/wierstra14a.html. On evosax.
"""

from __future__ import annotations

import optax

from metaevo.types import Space, Strategy, remakeable
from strategies import _evosax, _options


@remakeable
def snes(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation = optax.sgd(1.0),
    *,
    half_step: float | None = None,
    sigma_learning_rate: float | None = None,
) -> Strategy:
    """SNES from the mean `space.init`.

    Args:
        population_size: P, at least 2. Members are not mirrored.
        sigma: initial standard deviation of all parameters, > 0.
        optimizer: ascends the natural gradient; the paper's is a step of length 1. For
            weight decay, chain it with `optax.add_decayed_weights`.
        half_step: h >= 1; the step of generation g is 1/(1 + g/h) of the optimizer's,
            which averages noise (Robbins and Monro, 1951). None: all of it, as in the
            paper.
        sigma_learning_rate: η >= 0; None: (3 + ln D)/(5 √D) for D parameters.

    Raises:
        ConfigError: a population below 2, sigma <= 0, half_step < 1 or a negative
            learning rate.
    """
    _options.at_least(2, population_size=population_size)
    _options.positive(sigma=sigma)
    if half_step is not None:
        _options.at_least(1, half_step=half_step)
        shrinking = optax.scale_by_schedule(lambda g: 1 / (1 + g / half_step))
        optimizer = optax.chain(optimizer, shrinking)
    if sigma_learning_rate is not None:
        _options.at_least(0, sigma_learning_rate=sigma_learning_rate)

    def tune(params):
        rate = sigma_learning_rate
        rate = params.lr_std_init if rate is None else rate
        return params.replace(std_init=sigma, lr_std_init=rate)

    return _evosax.from_distribution(
        "SNES",
        space,
        population_size,
        tune,
        optimizer=optimizer,
        fitness_shaping_fn=_evosax.tied_weights,
    )
