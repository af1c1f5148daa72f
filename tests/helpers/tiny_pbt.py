"""PBT with replay buffers, small, as a program: `python tiny_pbt.py key=value`."""

import metaevo
from inner_loops import apex
from metaevo import envs, fitness, spaces
from strategies.pbt import pbt

SIZES = {"num_segments": 150, "features": (8,), "batch_size": 8, "num_eval_envs": 2}


def search(num_generations: int = 150) -> metaevo.Search:
    space = spaces.prior(
        lr=spaces.log_uniform(1e-4, 1e-1), gamma=spaces.horizon_uniform(0.9, 0.99)
    )
    return metaevo.Search(
        apex.make(envs.make("gymnax/Catch-bsuite"), apex.Config(9_128, 128, **SIZES)),
        space,
        pbt(space, 4),
        num_generations,
        fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
