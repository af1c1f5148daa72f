"""Evolve PPO's hyperparameters from a bad start, each on its own scale.

The start: a step size of 2.5e-5 for one of 2.5e-4, a discount of 0.9 for one of 0.99,
an entropy bonus of 0.1 for one of 0.01. SNES (Schaul et al., 2011) raises the mean
return over a lifetime. This space, from PPO's own start, is the baseline of all.
"""

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness
from strategies.snes import snes


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 40,
    num_seeds: int = 1,
    sigma: float = 1.0,
    inner: ppo.Config = ppo.Config(32_768, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=2.5e-5, gamma=0.9, ent_coef=0.1),
) -> metaevo.Search:
    space = ppo.TUNABLE
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
