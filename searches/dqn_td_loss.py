"""Evolve DQN's loss of the temporal difference, as the square + f(-delta) + w Q.

f is a small tanh network and w a number, both of which start at zero: generation 0 is
DQN. The family holds DQNReg (Co-Reyes et al., 2021). family=weighted is the square with
a bounded weight, with which no critic runs away, and family=convex its convex members.
OpenAI-ES (Salimans et al., 2017) raises the mean return over a lifetime.
"""

from typing import Literal

import metaevo
from inner_loops import dqn
from metaevo import critic_losses, fitness, losses, spaces
from searches import _one_slot


@_one_slot.search(
    dqn,
    dqn.Config(24_000, 1_000, num_steps=4),
    dqn.Meta(lr=2e-3),
    population_size=32,
    num_generations=40,
    num_seeds=1,
    sigma=0.2,
    learning_rate=0.1,
    fitness=fitness.area_under_curve,
)
def search(
    hidden: int = 16, family: Literal["network", "weighted", "convex"] = "network"
) -> metaevo.Space:
    """
    Args:
        family: `network`, the square + f + w Q; `weighted`, the square with a bounded
            weight; or `convex`, its convex members.
    """
    loss = losses.td_network(features=(hidden,))
    if family != "network":
        loss = critic_losses.td_weighted_square((hidden,), family == "convex")
    return spaces.replace(td_loss=loss)


if __name__ == "__main__":
    metaevo.main(search)
