"""Evolve the two constants of discovered policy optimization's drift.

alpha, felt where the advantage is positive, and beta, where it is negative, start at
the published 2 and 0.6 and are searched on a log scale. DPO was distilled from an
evolved network (Lu et al., 2022); OpenAI-ES (Salimans et al., 2017) raises the mean
return over a lifetime. Large steps and ten epochs per rollout leave the drift much to
hold back: with PPO's own settings it hardly matters which one there is.
"""

import metaevo
from inner_loops import ppo
from metaevo import drifts, fitness, spaces
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(20_480, num_steps=64, num_epochs=10, features=(32, 32)),
    ppo.Meta(lr=3e-3, drift=drifts.dpo),
    population_size=32,
    sigma=0.5,
    learning_rate=0.2,
    fitness=fitness.area_under_curve,
)
def search() -> metaevo.Space:
    return spaces.replace(drift=drifts.dpo_constants())


if __name__ == "__main__":
    metaevo.main(search)
