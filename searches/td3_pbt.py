"""Population-based training of TD3: step sizes, discount, three noises and the delay.

The priors of step sizes, noises and delay of the actor are those of fastpbrl (Flajolet
et al., 2022), but its delays are whole. Its discount is uniform in [0.9, 1], here the
horizon is log-uniform. It draws all numbers of the worst 0.4 again: resample=1
fraction=0.4.

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
    td3.Meta(policy_delay=2.0),
    env="gymnax/Pendulum-v1",
    population_size=8,
)
def search() -> metaevo.Space:
    rate = spaces.log_uniform(3e-5, 3e-3)
    noises = ("exploration_noise", "smoothing_noise", "noise_clip")
    numbers = dict.fromkeys(noises, spaces.uniform(0.0, 1.0))
    numbers |= {"actor_lr": rate, "critic_lr": rate}
    numbers |= {"policy_delay": spaces.uniform(1.0, 5.0)}
    return spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999), **numbers)


if __name__ == "__main__":
    metaevo.main(search)
