"""Population-based training of TD3: step sizes, discount and the three noises.

The priors of step sizes and noises are those of fastpbrl (Flajolet et al., 2022). Its
discount is uniform in [0.9, 1], here the horizon is log-uniform, and its delay of the
actor evolves, which is fixed here.

Losers keep their own replay buffers. One population lives one lifetime, and leaves its
best agent and the schedule of numbers along that agent's line.
"""

import metaevo
from inner_loops import td3
from metaevo import spaces
from searches import _pbt


@_pbt.search(
    td3,
    td3.Config(20_000, batch_size=64, features=(64, 64)),
    td3.Meta(),
    env="gymnax/Pendulum-v1",
    population_size=8,
)
def search() -> metaevo.Space:
    rate = spaces.log_uniform(3e-5, 3e-3)
    noises = ("exploration_noise", "smoothing_noise", "noise_clip")
    numbers = dict.fromkeys(noises, spaces.uniform(0.0, 1.0))
    numbers |= {"actor_lr": rate, "critic_lr": rate}
    return spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999), **numbers)


if __name__ == "__main__":
    metaevo.main(search)
