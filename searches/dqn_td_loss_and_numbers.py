"""Evolve DQN's loss of the temporal difference together with its hyperparameters.

The loss is the square with a bounded weight, which starts as the square. It has no bias
unless max_bias allows one: a bias helps the agent it evolves in and harms others. The
hyperparameters are those that `metaevo compare` tunes for the rival, so what a search
has over the tuned DQN is the loss. SNES (Schaul et al., 2011) raises the mean return
over a lifetime.
"""

import metaevo
from inner_loops import dqn
from metaevo import critic_losses, envs, fitness, spaces
from strategies.snes import snes


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 40,
    num_seeds: int = 1,
    sigma: float = 0.3,
    number_sigma: float = 1.0,
    hidden: int = 16,
    convex: bool = False,
    max_weight: float = 4.0,
    max_bias: float = 0.0,
    inner: dqn.Config = dqn.Config(24_000, 1_000, num_steps=4),
    meta: dqn.Meta = dqn.Meta(lr=2e-3),
) -> metaevo.Search:
    """
    Args:
        number_sigma: spread of the hyperparameters, in units of their scales; `sigma`
            is that of the loss.
    """
    loss = critic_losses.td_weighted_square((hidden,), convex, max_weight, max_bias)
    numbers = spaces.with_sigma(dqn.TUNABLE, number_sigma, sigma)
    space = spaces.combine(spaces.replace(td_loss=loss), numbers)
    return metaevo.Search(
        inner_loop=dqn.make(envs.make(env), inner, meta),
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
