"""The toy of the PBT paper (Jaderberg et al., 2017, Figure 2): two agents, two numbers.

Each climbs a surrogate that knows one of two coordinates; only together do they reach
the top, 1.2. copies=agent shares what was learned, copies=both the numbers as well,
which noise moves.
"""

from typing import Literal

import metaevo
from metaevo import fitness, spaces
from searches import _quadratic
from strategies.pbt import pbt


def search(
    num_generations: int = 50,
    exploit: bool = True,
    copies: Literal["both", "agent"] = "both",
    noise: float = 0.1,
) -> metaevo.Search:
    """
    Args:
        exploit: the worse agent continues the better one.
        copies: what it takes over: `both` agent and numbers, or the `agent` alone.
        noise: standard deviation of the noise that moves the numbers.
    """
    space = spaces.prior(h0=spaces.uniform(0.0, 1.0), h1=spaces.uniform(0.0, 1.0))
    strategy = pbt(
        space,
        population_size=2,
        fraction=0.5 * exploit,
        copies=copies,
        explore=_quadratic.wander(noise),
        start=_quadratic.START,
    )
    return metaevo.Search(
        inner_loop=_quadratic.make(num_generations),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
