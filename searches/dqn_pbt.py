"""Population-based training of DQN: step size, discount and share of random actions.

Losers keep their own replay buffers. One population lives one lifetime (Jaderberg et
al., 2017), and leaves its best agent and the schedule of numbers along that agent's
line.
"""

import metaevo
from inner_loops import dqn
from metaevo import envs, fitness, spaces
from strategies.pbt import pbt


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    fraction: float = 0.25,
    resample: float = 0.25,
    inner: dqn.Config = dqn.Config(100_000, 1_000, num_segments=20),
    meta: dqn.Meta = dqn.Meta(),
) -> metaevo.Search:
    space = spaces.prior(
        lr=spaces.log_uniform(3e-5, 3e-2),
        gamma=spaces.horizon_uniform(0.9, 0.999),
        epsilon=spaces.log_uniform(0.01, 0.5),
    )
    return metaevo.Search(
        inner_loop=dqn.make(envs.make(env), inner, meta),
        space=space,
        strategy=pbt(space, population_size, fraction=fraction, resample=resample),
        num_generations=inner.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
