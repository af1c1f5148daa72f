"""Evolve how many demonstrations R2D3 learns from over its lifetime.

The share of demonstrations in a minibatch is a schedule, piecewise linear over the
lifetime, whose start is constant. In DeepSea of 12 x 12 cells ten demonstrations are
enough to find the reward; the schedule decides how soon. OpenAI-ES (Salimans et al.,
2017) raises the mean return over a lifetime.
"""

import optax

import metaevo
from inner_loops import r2d3
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "metaevo.envs.gymnax:deep_sea",
    population_size: int = 16,
    num_generations: int = 10,
    num_seeds: int = 2,
    sigma: float = 0.5,
    learning_rate: float = 0.3,
    inner: r2d3.Config = r2d3.Config(
        30_000,
        buffer_size=20_000,
        batch_size=16,
        hidden=32,
        features=(32,),
        num_segments=12,
        num_demonstrations=10,
    ),
    meta: r2d3.Meta = r2d3.Meta(lr=1e-3),
) -> metaevo.Search:
    space = spaces.schedule(demo_ratio=spaces.logit())
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=r2d3.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
