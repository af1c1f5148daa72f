"""Evolve the two constants of discovered policy optimisation's drift.

alpha, felt where the advantage is positive, and beta, where it is negative, start at
the published 2 and 0.6 and are searched on a log scale. DPO was distilled from an
evolved network (Lu et al., 2022); OpenAI-ES (Salimans et al., 2017) raises the final
return.
"""

import optax

import metaevo
from inner_loops import ppo
from metaevo import drifts, envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    num_generations: int = 30,
    num_seeds: int = 2,
    sigma: float = 0.3,
    learning_rate: float = 0.1,
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3, drift=drifts.dpo),
) -> metaevo.Search:
    space = spaces.replace(drift=drifts.dpo_constants())
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    loop = ppo.make(envs.make(env), inner, meta)
    score = fitness.final_return
    return metaevo.Search(loop, space, strategy, num_generations, score, num_seeds)


if __name__ == "__main__":
    metaevo.main(search)
