"""Evolve PPO's optimizer, from Adam: its six numbers, or a recurrent network over it.

kind=adam_numbers has step size, decays, epsilon, weight decay and clip, each from the
start to the end of a lifetime; kind=recurrent has a GRU for every number of an agent
(OPEN, Goldie et al., 2024). Generation 0 is Adam. OpenAI-ES raises the final return.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, spaces
from metaevo.learned import optimizers as learned_optimizers
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 100,
    num_seeds: int = 2,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    kind: Literal["adam_numbers", "recurrent"] = "adam_numbers",
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        kind: `adam_numbers`, six numbers of Adam, or `recurrent`, a GRU for every
            number of an agent.
    """
    learned = getattr(learned_optimizers, kind)(temporal=True)
    space = spaces.replace(optimizer=learned)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
