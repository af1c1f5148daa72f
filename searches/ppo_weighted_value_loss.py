"""Evolve PPO's value loss within a family in which no critic can run away.

f = w(x) e^2 / 2, x = e / s the error in standard deviations of the value targets, and w
a bounded, positive weight that starts at 1: generation 0 has the squared error. What is
found is coercive and free of the scale of rewards, whatever its numbers. SNES (Schaul
et al., 2011) raises the mean return over a lifetime.

`lr_factor` above 1 draws the step size of each world between lr / lr_factor and
lr * lr_factor, so that the loss is evolved for many agents instead of one.
"""

import metaevo
from inner_loops import ppo
from metaevo import critic_losses, envs, fitness, spaces
from metaevo.errors import ConfigError
from strategies.snes import snes


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 16,
    num_seeds: int = 4,
    sigma: float = 0.3,
    hidden: int = 16,
    convex: bool = False,
    max_weight: float = 8.0,
    max_bias: float = 1.0,
    lr_factor: float = 1.0,
    inner: ppo.Config = ppo.Config(32_768, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=2.5e-3),
) -> metaevo.Search:
    """
    Args:
        lr_factor: >= 1; each world draws a step size between lr / lr_factor and lr *
            lr_factor.
    """
    loss = critic_losses.weighted_square((hidden,), convex, max_weight, max_bias)
    space = spaces.replace(value_loss=loss)
    if lr_factor < 1:
        raise ConfigError(f"lr_factor={lr_factor}: expected a number of at least 1")
    vary = None
    if lr_factor != 1:
        lr = spaces.log_uniform(meta.lr / lr_factor, meta.lr * lr_factor)
        vary = spaces.prior(lr=lr)
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
        vary=vary,
    )


if __name__ == "__main__":
    metaevo.main(search)
