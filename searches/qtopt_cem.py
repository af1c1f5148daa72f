"""Evolve how QT-Opt's cross-entropy method fits its candidates, at equal cost.

Four numbers move: how many candidates are fitted, how much more the better ones weigh,
and the deviations at the start and at least. The start is the published method. Each
action costs `num_samples` x `num_iterations` values, whatever they are. OpenAI-ES
(Salimans et al., 2017) raises the final return.
"""

import optax

import metaevo
from inner_loops import qtopt
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 16,
    num_generations: int = 10,
    num_seeds: int = 2,
    sigma: float = 0.3,
    learning_rate: float = 0.2,
    inner: qtopt.Config = qtopt.Config(
        4_000,
        batch_size=32,
        num_samples=8,
        features=(32, 32),
        num_segments=4,
    ),
    meta: qtopt.Meta = qtopt.Meta(lr=2e-3, num_elites=2.0),
) -> metaevo.Search:
    space = spaces.tune(
        num_elites=spaces.log(),
        elite_sharpness=spaces.linear(),
        start_std=spaces.log(),
        least_std=spaces.log(),
    )
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=qtopt.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
