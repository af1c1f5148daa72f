"""Evolve DQN's loss of the temporal difference together with its hyperparameters.

The loss is the square with a bounded weight, which starts as the square. It has no bias
unless max_bias allows one: a bias helps the agent it evolves in and harms others. The
hyperparameters are those that `metaevo compare` tunes for the rival, so what a search
has over the tuned DQN is the loss. SNES (Schaul et al., 2011) raises the mean return
over a lifetime.
"""

import metaevo
from inner_loops import dqn
from metaevo import critic_losses, fitness, spaces
from searches import _one_slot


@_one_slot.search(
    dqn,
    dqn.Config(24_000, 1_000, num_steps=4),
    dqn.Meta(lr=2e-3),
    population_size=32,
    num_generations=40,
    num_seeds=1,
    sigma=0.3,
    fitness=fitness.area_under_curve,
)
def search(
    sigma: float,
    number_sigma: float = 1.0,
    hidden: int = 16,
    convex: bool = False,
    max_weight: float = 4.0,
    max_bias: float = 0.0,
) -> metaevo.Space:
    """
    Args:
        number_sigma: spread of the hyperparameters, in units of their scales; `sigma`
            is that of the loss.
    """
    loss = critic_losses.td_weighted_square((hidden,), convex, max_weight, max_bias)
    numbers = spaces.with_sigma(dqn.TUNABLE, number_sigma, sigma)
    return spaces.combine(spaces.replace(td_loss=loss), numbers)


if __name__ == "__main__":
    metaevo.main(search)
