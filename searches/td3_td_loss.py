"""Evolve the loss of TD3's critics, as the square + f(-delta) + w Q.

f is a small tanh network and w a number, both of which start at zero: generation 0 is
TD3. family=weighted is the square with a bounded weight, with which no critic runs
away, and family=convex its convex members. OpenAI-ES (Salimans et al., 2017) raises the
final return.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import td3
from metaevo import critic_losses, envs, fitness, losses, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    hidden: int = 16,
    family: Literal["network", "weighted", "convex"] = "network",
    inner: td3.Config = td3.Config(6_000, batch_size=64, features=(64, 64)),
    meta: td3.Meta = td3.Meta(1e-3, 1e-3),
) -> metaevo.Search:
    """
    Args:
        family: `network`, the square + f + w Q; `weighted`, the square with a bounded
            weight; or `convex`, its convex members.
    """
    loss = losses.td_network(features=(hidden,))
    if family != "network":
        loss = critic_losses.td_weighted_square((hidden,), family == "convex")
    space = spaces.replace(td_loss=loss)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=td3.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
