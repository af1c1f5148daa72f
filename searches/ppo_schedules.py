"""Evolve schedules of PPO's step size, clip, entropy bonus and trace decay.

Each is a curve through evenly spaced knots, on its own scale around the default, where
generation 0 starts: it bends the linear decay of PPO's step size. OpenAI-ES (Salimans
et al., 2017) raises the mean return over a lifetime.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 32,
    num_generations: int = 40,
    num_seeds: int = 2,
    sigma: float = 0.3,
    learning_rate: float = 0.2,
    kind: Literal["linear", "cubic"] = "linear",
    num_knots: int = 5,
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        kind: `linear` through the knots, or a smooth `cubic` B-spline near them.
    """
    numbers = dict.fromkeys(("lr", "clip_eps", "ent_coef"), spaces.log())
    numbers |= {"gae_lambda": spaces.one_minus_log()}
    space = spaces.schedule(kind, num_knots, **numbers)
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
