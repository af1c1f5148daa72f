"""Population-based training of PPO, from a prior in which half of the agents fail.

The step size is log-uniform in [1e-6, 1], clip, entropy and discount are as uncertain.
One population lives one lifetime (Jaderberg et al., 2017): what comes out is its best
agent, and the schedule of numbers along that agent's line. PPO's own linear decay of
the step size is off, so that the schedule found is the whole of it.
"""

import metaevo
from inner_loops import ppo
from metaevo import spaces
from searches import _pbt


@_pbt.search(
    ppo,
    ppo.Config(500_000, num_segments=32, anneal_lr=False),
    ppo.Meta(),
    env="gymnax/CartPole-v1",
    population_size=16,
)
def search() -> metaevo.Space:
    return spaces.prior(
        lr=spaces.log_uniform(1e-6, 1.0),
        clip_eps=spaces.log_uniform(0.01, 1.0),
        ent_coef=spaces.log_uniform(1e-4, 1.0),
        gamma=spaces.horizon_uniform(0.5, 0.999),
    )


if __name__ == "__main__":
    metaevo.main(search)
