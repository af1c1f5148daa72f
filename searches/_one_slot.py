"""Searches of one loop in one environment by an evolution strategy.

They differ in the slots that evolve, most often one. `ppo_value_loss` and
`ppo_weighted_value_loss` are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import optax

from metaevo.fitness import final_return
from metaevo.types import FitnessFn, Search, Space
from searches import _frame
from strategies.open_es import open_es
from strategies.snes import snes


def search(
    loop: ModuleType,
    inner: Any,
    meta: Any,
    *,
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float,
    learning_rate: float | None = None,
    fitness: FitnessFn = final_return,
) -> Callable[[Callable[..., Space]], Callable[..., Search]]:
    """Make a decorator of a function that makes the space; see `_frame.framed`.

    Args:
        loop, inner, meta: as in `_frame.framed`.
        env, population_size, num_generations, num_seeds, sigma, learning_rate: defaults
            of the search's parameters of these names. A `learning_rate` is that of Adam
            in OpenAI-ES; without one the strategy is SNES, and there is no such
            parameter.
        fitness: of the search.
    """
    shared = {
        "env": env,
        "population_size": population_size,
        "num_generations": num_generations,
        "num_seeds": num_seeds,
        "sigma": sigma,
    }
    if learning_rate is not None:
        shared["learning_rate"] = learning_rate

    make = snes if learning_rate is None else open_es

    def build(made, space, given):
        options = space, given["population_size"], given["sigma"]
        if learning_rate is not None:
            options = *options, optax.adam(given["learning_rate"])
        return Search(
            inner_loop=made,
            space=space,
            strategy=make(*options),
            num_generations=given["num_generations"],
            fitness=fitness,
            num_seeds=given["num_seeds"],
        )

    return _frame.framed(loop, inner, meta, shared, build)
