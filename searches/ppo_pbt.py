"""Population-based training of PPO, from a prior in which half of the agents fail.

The step size is log-uniform in [1e-6, 1], clip, entropy and discount are as uncertain.
One population lives one lifetime (Jaderberg et al., 2017): what comes out is its best
agent, and the schedule of numbers along that agent's line. PPO's own linear decay of
the step size is off, so that the schedule found is the whole of it.
"""

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, spaces
from strategies.pbt import pbt


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    fraction: float = 0.25,
    resample: float = 0.25,
    inner: ppo.Config = ppo.Config(500_000, num_segments=32, anneal_lr=False),
    meta: ppo.Meta = ppo.Meta(),
) -> metaevo.Search:
    space = spaces.prior(
        lr=spaces.log_uniform(1e-6, 1.0),
        clip_eps=spaces.log_uniform(0.01, 1.0),
        ent_coef=spaces.log_uniform(1e-4, 1.0),
        gamma=spaces.horizon_uniform(0.5, 0.999),
    )
    return metaevo.Search(
        inner_loop=ppo.make(envs.make(env), inner, meta),
        space=space,
        strategy=pbt(space, population_size, fraction=fraction, resample=resample),
        num_generations=inner.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
