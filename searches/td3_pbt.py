"""Population-based training of TD3: step sizes, discount and the three noises.

The priors of step sizes and noises are those of fastpbrl (Flajolet et al., 2022). Its
discount is uniform in [0.9, 1], here the horizon is log-uniform, and its delay of the
actor evolves, which is fixed here.

Losers keep their own replay buffers. One population lives one lifetime, and leaves its
best agent and the schedule of numbers along that agent's line.
"""

import metaevo
from inner_loops import td3
from metaevo import envs, fitness, spaces
from strategies.pbt import pbt


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 8,
    fraction: float = 0.25,
    resample: float = 0.25,
    inner: td3.Config = td3.Config(20_000, batch_size=64, features=(64, 64)),
    meta: td3.Meta = td3.Meta(),
) -> metaevo.Search:
    rate = spaces.log_uniform(3e-5, 3e-3)
    noises = ("exploration_noise", "smoothing_noise", "noise_clip")
    numbers = dict.fromkeys(noises, spaces.uniform(0.0, 1.0))
    numbers |= {"actor_lr": rate, "critic_lr": rate}
    space = spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999), **numbers)
    return metaevo.Search(
        inner_loop=td3.make(envs.make(env), inner, meta),
        space=space,
        strategy=pbt(space, population_size, fraction=fraction, resample=resample),
        num_generations=inner.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
