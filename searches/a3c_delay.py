"""Evolve A3C's step size as a function of how far a worker is behind.

family=function is a small network of the delay, and family=number the c of
lr / (1 + c delay). The network starts at zero: generation 0 is A3C. OpenAI-ES
(Salimans et al., 2017) raises the final return. The step size is ten times A3C's: with
its own no delay matters on CartPole (docs/inner_loops.md).
"""

from typing import Literal

import optax

import metaevo
from inner_loops import a2c
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.2,
    learning_rate: float = 0.1,
    family: Literal["function", "number"] = "function",
    inner: a2c.Config = a2c.Config(
        150_000, num_envs=16, num_workers=4, max_delay=16, num_segments=5
    ),
    meta: a2c.Meta = a2c.Meta(lr=7e-3),
) -> metaevo.Search:
    """
    Args:
        family: `function`, a small network of the delay, or `number`, the c of lr / (1
            + c delay).
    """
    if family == "function":
        space = spaces.feedback({"delay": 8.0}, lr=spaces.log())
    else:
        space = spaces.tune(delay_decay=spaces.log().starting_at(0.1))
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=a2c.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
