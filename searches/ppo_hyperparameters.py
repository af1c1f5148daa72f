"""Evolve PPO's hyperparameters from a bad start, each on its own scale.

The start: a step size of 2.5e-5 for one of 2.5e-4, a discount of 0.9 for one of 0.99,
an entropy bonus of 0.1 for one of 0.01. SNES (Schaul et al., 2011) raises the mean
return over a lifetime. This space, from PPO's own start, is the baseline of all.
"""

import metaevo
from inner_loops import ppo
from metaevo import fitness
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(32_768, num_steps=64, features=(32, 32)),
    ppo.Meta(lr=2.5e-5, gamma=0.9, ent_coef=0.1),
    population_size=32,
    num_generations=40,
    num_seeds=1,
    sigma=1.0,
    fitness=fitness.area_under_curve,
)
def search() -> metaevo.Space:
    return ppo.TUNABLE


if __name__ == "__main__":
    metaevo.main(search)
