"""Evolve the value loss of PPO, as base(v, g) + f(v - g).

f is a small tanh network whose last layer starts at zero. start=scratch has no base:
generation 0 has no value loss at all, as in PureJaxRL's notebook; start=residual has
PPO's own. start=weighted is another family, the squared error with a bounded weight,
and start=convex its convex members; no critic runs away with these. OpenAI-ES (Salimans
et al., 2017) raises the mean return over a lifetime.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import ppo
from metaevo import critic_losses, envs, fitness, losses, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 64,
    num_generations: int = 100,
    num_seeds: int = 2,
    sigma: float = 0.5,
    learning_rate: float = 0.3,
    hidden: int = 16,
    start: Literal["scratch", "residual", "weighted", "convex"] = "scratch",
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        start: what generation 0 has: no loss at all (`scratch`), PPO's own
            (`residual`), or the squared error, as a `weighted` or a `convex` one.
    """
    if start in ("weighted", "convex"):
        loss = critic_losses.weighted_square((hidden,), start == "convex")
    else:
        base = losses.zero if start == "scratch" else losses.clipped_square
        loss = losses.residual_network(base, (hidden,))
    space = spaces.replace(value_loss=loss)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
