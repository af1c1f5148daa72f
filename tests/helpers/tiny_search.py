"""A search that takes seconds, as a program: `python tiny_search.py key=value`."""

import optax
import toys

import metaevo
from metaevo import fitness
from strategies.open_es import open_es


def search(
    population_size: int = 8, num_generations: int = 150, fail_below: float = -1.0
) -> metaevo.Search:
    space = toys.space()
    return metaevo.Search(
        toys.quadratic(fail_below=fail_below),
        space,
        open_es(space, population_size, 0.5, optax.adam(0.1)),
        num_generations,
        fitness.final_return,
        chunk_size=2,
    )


if __name__ == "__main__":
    metaevo.main(search)
