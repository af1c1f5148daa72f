"""Evolve DQN's loss of the temporal difference, as the square + f(-delta) + w Q.

f is a small tanh network and w a number, both of which start at zero: generation 0 is
DQN. The family holds DQNReg (Co-Reyes et al., 2021). family=weighted is the square with
a bounded weight, with which no critic runs away, and family=convex its convex members.
OpenAI-ES (Salimans et al., 2017) raises the mean return over a lifetime.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import dqn
from metaevo import critic_losses, envs, fitness, losses, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 40,
    num_seeds: int = 1,
    sigma: float = 0.2,
    learning_rate: float = 0.1,
    hidden: int = 16,
    family: Literal["network", "weighted", "convex"] = "network",
    inner: dqn.Config = dqn.Config(24_000, 1_000, num_steps=4),
    meta: dqn.Meta = dqn.Meta(lr=2e-3),
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
        inner_loop=dqn.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
