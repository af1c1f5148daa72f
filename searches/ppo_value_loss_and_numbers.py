"""Evolve PPO's value loss together with its hyperparameters.

The loss is the square with a bounded, positive weight, which starts at 1. The
hyperparameters are those that `metaevo compare` tunes for the rival, so what a search
has over the tuned PPO is the loss. SNES (Schaul et al., 2011) raises the mean return
over a lifetime.
"""

import metaevo
from inner_loops import ppo
from metaevo import critic_losses, envs, fitness, spaces
from strategies.snes import snes


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 16,
    num_seeds: int = 4,
    sigma: float = 0.3,
    number_sigma: float = 1.0,
    hidden: int = 16,
    convex: bool = False,
    max_bias: float = 1.0,
    inner: ppo.Config = ppo.Config(32_768, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=2.5e-3),
) -> metaevo.Search:
    """
    Args:
        number_sigma: spread of the hyperparameters, in units of their scales; `sigma`
            is that of the loss.
    """
    loss = critic_losses.weighted_square((hidden,), convex, max_bias=max_bias)
    numbers = spaces.with_sigma(ppo.TUNABLE, number_sigma, sigma)
    space = spaces.combine(spaces.replace(value_loss=loss), numbers)
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
