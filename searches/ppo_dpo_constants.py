"""Evolve the two constants of discovered policy optimization's drift.

alpha, felt where the advantage is positive, and beta, where it is negative, start at
the published 2 and 0.6 and are searched on a log scale. DPO was distilled from an
evolved network (Lu et al., 2022); OpenAI-ES (Salimans et al., 2017) raises the mean
return over a lifetime. Large steps and ten epochs per rollout leave the drift much to
hold back: with PPO's own settings it hardly matters which one there is.
"""

import optax

import metaevo
from inner_loops import ppo
from metaevo import drifts, envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.5,
    learning_rate: float = 0.2,
    inner: ppo.Config = ppo.Config(
        20_480, num_steps=64, num_epochs=10, features=(32, 32)
    ),
    meta: ppo.Meta = ppo.Meta(lr=3e-3, drift=drifts.dpo),
) -> metaevo.Search:
    space = spaces.replace(drift=drifts.dpo_constants())
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
