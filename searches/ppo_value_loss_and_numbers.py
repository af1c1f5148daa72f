"""Evolve PPO's value loss together with its hyperparameters.

The loss is the square with a bounded, positive weight, which starts at 1. The
hyperparameters are those that `metaevo compare` tunes for the rival, so what a search
has over the tuned PPO is the loss. SNES (Schaul et al., 2011) raises the mean return
over a lifetime.
"""

import metaevo
from inner_loops import ppo
from metaevo import critic_losses, fitness, spaces
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(32_768, num_steps=64, features=(32, 32)),
    ppo.Meta(lr=2.5e-3),
    population_size=32,
    num_generations=16,
    num_seeds=4,
    sigma=0.3,
    fitness=fitness.area_under_curve,
)
def search(
    sigma: float,
    number_sigma: float = 1.0,
    hidden: int = 16,
    convex: bool = False,
    max_bias: float = 1.0,
) -> metaevo.Space:
    """
    Args:
        number_sigma: spread of the hyperparameters, in units of their scales; `sigma`
            is that of the loss.
    """
    loss = critic_losses.weighted_square((hidden,), convex, max_bias=max_bias)
    numbers = spaces.with_sigma(ppo.TUNABLE, number_sigma, sigma)
    return spaces.combine(spaces.replace(value_loss=loss), numbers)


if __name__ == "__main__":
    metaevo.main(search)
