"""Evolve PPO's value loss as a formula, over three tasks.

Programs of 12 operations weigh the square, ½ 8^tanh(P) (v − g)², or are the loss
themselves (family=free). They see errors, values, targets and old values in standard
deviations, and progress. Regularized evolution (Real et al., 2019) trains no program
that behaves as one before. Step sizes are drawn for each world.
"""

from typing import Literal

import metaevo
from inner_loops import ppo
from searches import _programs


def search(
    envs: tuple[str, ...] = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1", "grid/maze"),
    population_size: int = 64,
    num_generations: int = 64,
    num_seeds: int = 1,
    length: int = 12,
    family: Literal["weighted", "free"] = "weighted",
    low: tuple[float, ...] = (10.0, -500.0, 0.0),
    high: tuple[float, ...] = (210.0, -100.0, 1.0),
    hurdle: float = 25.0,
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        length: operations of a program, at most 16.
        family: `weighted`, a bounded weight of the square; `free`, the loss itself.
        low: return that counts as 0, one for each environment.
        high: return that counts as 1, likewise.
        hurdle: return over the lifetime on the first that the others take.
    """
    return _programs.search(ppo, "value_loss", (5e-4, 4e-3), locals())


if __name__ == "__main__":
    metaevo.main(search)
