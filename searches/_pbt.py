"""Searches that train one population of one loop in one environment by PBT.

`pbt_toy` is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

from metaevo import fitness
from metaevo.types import Search, Space
from searches import _frame
from strategies.pbt import pbt

# Arguments of `pbt` that are keys of each search, with its defaults.
OPTIONS = {
    "exploit": "truncation",
    "fraction": 0.25,
    "factors": (0.8, 1.2),
    "resample": 0.25,
    "copies": "both",
}
KINDS = {
    "exploit": Literal["truncation", "tournament", "winner"],
    "factors": tuple[float, ...],
    "copies": Literal["both", "agent", "params"],
}


def search(
    loop: ModuleType, inner: Any, meta: Any, *, env: str, population_size: int
) -> Callable[[Callable[..., Space]], Callable[..., Search]]:
    """Make a decorator of a function that makes the prior; see `_frame.framed`.

    The population lives one lifetime, in which a generation is a segment.

    Args:
        loop, inner, meta: as in `_frame.framed`.
        env, population_size: defaults of the search's parameters of these names.
    """
    shared = {"env": env, "population_size": population_size, **OPTIONS}

    def build(made, space, given):
        options = {name: given[name] for name in OPTIONS}
        return Search(
            inner_loop=made,
            space=space,
            strategy=pbt(space, given["population_size"], **options),
            num_generations=given["inner"].num_segments,
            fitness=fitness.last_segments(1),
            segments_per_generation=1,
        )

    return _frame.framed(loop, inner, meta, shared, build, KINDS)
