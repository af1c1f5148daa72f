"""Searches of a slot's formula over several tasks, by regularized evolution."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from metaevo import fitness, formulas, spaces
from metaevo.envs import make
from metaevo.types import Search
from strategies.regularized_evolution import regularized_evolution


def search(
    loop: ModuleType,
    slot: str,
    step_sizes: tuple[float, float],
    given: Mapping[str, Any],
) -> Search:
    """Return a search of programs for a slot.

    Args:
        loop: the module of an inner loop.
        step_sizes: least and largest; one is drawn for each world.
        given: arguments of the search: `envs`, `population_size`, `num_generations`,
            `num_seeds`, `length`, `family`, `low`, `high`, `hurdle`, `inner`, `meta`.
    """
    made = formulas.expression(slot, family=given["family"], length=given["length"])
    space = spaces.replace(**{slot: made})
    inner, meta = given["inner"], given["meta"]
    return Search(
        inner_loop=[loop.make(make(env), inner, meta) for env in given["envs"]],
        space=space,
        strategy=regularized_evolution(space, given["population_size"]),
        num_generations=given["num_generations"],
        fitness=fitness.area_under_curve,
        num_seeds=given["num_seeds"],
        aggregate=fitness.normalized(given["low"], given["high"]),
        common_random_numbers=True,
        vary=spaces.prior(lr=spaces.log_uniform(*step_sizes)),
        hurdles=(given["hurdle"],) * (len(given["envs"]) > 1),
    )
