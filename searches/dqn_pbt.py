"""Population-based training of DQN: step size, discount and share of random actions.

Losers keep their own replay buffers. One population lives one lifetime (Jaderberg et
al., 2017), and leaves its best agent and the schedule of numbers along that agent's
line.
"""

import metaevo
from inner_loops import dqn
from metaevo import spaces
from searches import _pbt


@_pbt.search(
    dqn,
    dqn.Config(100_000, 1_000, num_segments=20),
    dqn.Meta(),
    env="gymnax/CartPole-v1",
    population_size=16,
)
def search() -> metaevo.Space:
    return spaces.prior(
        lr=spaces.log_uniform(3e-5, 3e-2),
        gamma=spaces.horizon_uniform(0.9, 0.999),
        epsilon=spaces.log_uniform(0.01, 0.5),
    )


if __name__ == "__main__":
    metaevo.main(search)
