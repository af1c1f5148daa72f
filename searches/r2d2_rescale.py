"""Evolve the rescaling of returns that R2D2's network learns.

An increasing function of the return, piecewise linear over the published one, which it
starts as: how large the steps are that values of each size get. OpenAI-ES (Salimans et
al., 2017) raises the final return.
"""

import optax

import metaevo
from inner_loops import r2d2
from metaevo import envs, fitness, spaces
from metaevo.learned import rescalings
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    num_generations: int = 10,
    num_seeds: int = 2,
    sigma: float = 0.3,
    learning_rate: float = 0.2,
    num_cells: int = 6,
    largest: float = 8.0,
    inner: r2d2.Config = r2d2.Config(
        30_000,
        buffer_size=20_000,
        batch_size=16,
        hidden=32,
        features=(32,),
        num_segments=4,
    ),
    meta: r2d2.Meta = r2d2.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        num_cells: linear pieces on each side of 0, 1 to 64.
        largest: > 1, bound of the slopes, and of their inverses.
    """
    space = spaces.replace(rescale=rescalings.monotone(num_cells, largest))
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=r2d2.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
