"""Evolve a potential that PPO's reward is shaped by, where the reward says nothing.

r' = r + gamma Phi(o') - Phi(o) leaves the best policies the best (Ng et al., 1999). Phi
is a small network that starts at zero: generation 0 is PPO, whose mean return over a
lifetime on MountainCar is about -199, where -200 is the least. SNES (Schaul et al.,
2011) raises that mean, of the task's own reward.
"""

import metaevo
from inner_loops import ppo
from metaevo import fitness, rewards, spaces
from metaevo.envs import Env
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(65_536, 16, normalize_observation=True, features=(32, 32)),
    ppo.Meta(lr=3e-3),
    env="gymnax/MountainCar-v0",
    population_size=32,
    num_generations=40,
    num_seeds=1,
    sigma=1.0,
    fitness=fitness.area_under_curve,
)
def search(
    env: Env, hidden: int = 16, scale: float = 30.0, limit: float = 60.0
) -> metaevo.Space:
    """
    Args:
        scale: typical size of a return, which the potential is a multiple of.
        limit: largest potential; PPO does not feel how large it is, and others do.
    """
    potential = rewards.potential(rewards.units(env), (hidden,), scale, limit=limit)
    return spaces.replace(reward=potential)


if __name__ == "__main__":
    metaevo.main(search)
