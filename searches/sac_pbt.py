"""Population-based training of SAC: step sizes, discount and reward scale.

The priors of step sizes and reward scale are those of fastpbrl (Flajolet et al., 2022).
Its discount is uniform in [0.9, 1], here the horizon is log-uniform. It draws all
numbers of the worst 0.4 again: resample=1 fraction=0.4.

Losers keep their own replay buffers. One population lives one lifetime, and leaves its
best agent and the schedule of numbers along that agent's line.
"""

import metaevo
from inner_loops import sac
from metaevo import spaces
from searches import _pbt


@_pbt.search(
    sac,
    sac.Config(20_000, batch_size=64, features=(64, 64)),
    sac.Meta(),
    env="gymnax/Pendulum-v1",
    population_size=8,
)
def search() -> metaevo.Space:
    rates = ("actor_lr", "critic_lr", "temperature_lr")
    numbers = dict.fromkeys(rates, spaces.log_uniform(3e-5, 3e-3))
    numbers |= {"reward_scale": spaces.log_uniform(0.1, 10.0)}
    return spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999), **numbers)


if __name__ == "__main__":
    metaevo.main(search)
