"""Evolve schedules of PPO's step size, clip, entropy bonus and trace decay.

Each is a curve through evenly spaced knots, on its own scale around the default, where
generation 0 starts: it bends the linear decay of PPO's step size. OpenAI-ES (Salimans
et al., 2017) raises the mean return over a lifetime.
"""

from typing import Literal

import metaevo
from inner_loops import ppo
from metaevo import fitness, spaces
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(65_536, num_steps=64, features=(32, 32)),
    ppo.Meta(lr=1e-3),
    population_size=32,
    num_generations=40,
    sigma=0.3,
    learning_rate=0.2,
    fitness=fitness.area_under_curve,
)
def search(
    kind: Literal["linear", "cubic"] = "linear", num_knots: int = 5
) -> metaevo.Space:
    """
    Args:
        kind: `linear` through the knots, or a smooth `cubic` B-spline near them.
    """
    numbers = dict.fromkeys(("lr", "clip_eps", "ent_coef"), spaces.log())
    numbers |= {"gae_lambda": spaces.one_minus_log()}
    return spaces.schedule(kind, num_knots, **numbers)


if __name__ == "__main__":
    metaevo.main(search)
