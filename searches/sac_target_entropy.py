"""Evolve a schedule of SAC's target entropy, through knots from the paper's constant.

Generation 0 is SAC with a target of -1 per dimension of the action. OpenAI-ES (Salimans
et al., 2017) raises the final return.
"""

import optax

import metaevo
from inner_loops import sac
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.5,
    learning_rate: float = 0.2,
    num_knots: int = 5,
    inner: sac.Config = sac.Config(6_000, batch_size=64, features=(64, 64)),
    meta: sac.Meta = sac.Meta(1e-3, 1e-3, 1e-3),
) -> metaevo.Search:
    space = spaces.schedule(num_knots=num_knots, target_entropy=spaces.linear())
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=sac.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
