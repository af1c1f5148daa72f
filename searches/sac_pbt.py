"""Population-based training of SAC: step sizes, discount and reward scale.

The priors of step sizes and reward scale are those of fastpbrl (Flajolet et al., 2022).
Its discount is uniform in [0.9, 1], here the horizon is log-uniform.

Losers keep their own replay buffers. One population lives one lifetime, and leaves its
best agent and the schedule of numbers along that agent's line.
"""

import metaevo
from inner_loops import sac
from metaevo import envs, fitness, spaces
from strategies.pbt import pbt


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 8,
    fraction: float = 0.25,
    resample: float = 0.25,
    inner: sac.Config = sac.Config(20_000, batch_size=64, features=(64, 64)),
    meta: sac.Meta = sac.Meta(),
) -> metaevo.Search:
    rates = ("actor_lr", "critic_lr", "temperature_lr")
    numbers = dict.fromkeys(rates, spaces.log_uniform(3e-5, 3e-3))
    numbers |= {"reward_scale": spaces.log_uniform(0.1, 10.0)}
    space = spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999), **numbers)
    return metaevo.Search(
        inner_loop=sac.make(envs.make(env), inner, meta),
        space=space,
        strategy=pbt(space, population_size, fraction=fraction, resample=resample),
        num_generations=inner.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
