"""Evolve SAC's step sizes, discount, target rate, target entropy and reward scale.

Each is searched on its own scale around the published default, where generation 0
starts. OpenAI-ES (Salimans et al., 2017) raises the final return.
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
    sigma: float = 0.3,
    learning_rate: float = 0.2,
    inner: sac.Config = sac.Config(6_000, batch_size=64, features=(64, 64)),
    meta: sac.Meta = sac.Meta(),
) -> metaevo.Search:
    positive = ("actor_lr", "critic_lr", "temperature_lr", "tau", "reward_scale")
    numbers = {name: spaces.log() for name in positive}
    numbers |= {"gamma": spaces.one_minus_log(), "target_entropy": spaces.linear()}
    space = spaces.tune(**numbers)
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
