"""Evolve a potential that PPO's reward is shaped by, where the reward says nothing.

r' = r + gamma Phi(o') - Phi(o) leaves the best policies the best (Ng et al., 1999). Phi
is a small network that starts at zero: generation 0 is PPO, whose mean return over a
lifetime on MountainCar is about -199, where -200 is the least. SNES (Schaul et al.,
2011) raises that mean, of the task's own reward.
"""

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, rewards, spaces
from strategies.snes import snes


def search(
    env: str = "gymnax/MountainCar-v0",
    population_size: int = 32,
    num_generations: int = 40,
    num_seeds: int = 1,
    sigma: float = 1.0,
    hidden: int = 16,
    scale: float = 30.0,
    limit: float = 60.0,
    inner: ppo.Config = ppo.Config(
        65_536, 16, normalize_observation=True, features=(32, 32)
    ),
    meta: ppo.Meta = ppo.Meta(lr=3e-3),
) -> metaevo.Search:
    """
    Args:
        scale: typical size of a return, which the potential is a multiple of.
        limit: largest potential; PPO does not feel how large it is, and others do.
    """
    task = envs.make(env)
    potential = rewards.potential(rewards.units(task), (hidden,), scale, limit=limit)
    space = spaces.replace(reward=potential)
    return metaevo.Search(
        inner_loop=ppo.make(task, inner, meta),
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
