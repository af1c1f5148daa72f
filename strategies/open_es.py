"""OpenAI-ES (Salimans et al., 2017, https://arxiv.org/abs/1703.03864).

    εᵢ ~ N(0, I), mirrored;   g = 1/(P σ) Σᵢ uᵢ εᵢ;   θ ← θ + optimizer(g)

with u the centred ranks of the fitness by default. On evosax. Unlike the paper's,
the optimizer and its step size are explicit, and sigma may decay.
"""

from __future__ import annotations

import optax

from metaevo.types import ConfigError, Space, Strategy
from strategies import _evosax


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
        sigma: standard deviation of the noise in generation 0.
        optimizer: ascends the estimated gradient, such as `optax.adam(0.3)`; a decay
            of the learning rate is its schedule, weight decay that of `optax.adamw`.
        sigma_decay: factor on sigma per generation.
        shaping: `centered_rank` (in [-0.5, 0.5], ties averaged, invariant under
            monotone maps of the fitness) or `standardize` (z-scores).

    Raises:
        ConfigError: an odd population, sigma <= 0, or an unknown shaping.
    """
    _evosax.even(population_size)
    if sigma <= 0:
        raise ConfigError(f"sigma={sigma} must be positive")
    return _evosax.from_distribution(
        "Open_ES",
        space,
        population_size,
        mirrored=True,
        prepare=lambda state: state.replace(std=sigma),
        optimizer=optimizer,
        # evosax reads the schedule before it counts the generation: what it sets at
        # the end of generation g is for generation g + 1.
        std_schedule=lambda g: sigma * sigma_decay ** (g + 1),
        fitness_shaping_fn=_evosax.shaping(shaping),
    )
