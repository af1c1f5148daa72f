"""Evolve how many demonstrations R2D3 learns from over its lifetime.

The share of demonstrations in a minibatch is a schedule, piecewise linear over the
lifetime, whose start is constant. In DeepSea of 12 x 12 cells ten demonstrations are
enough to find the reward; the schedule decides how soon. OpenAI-ES (Salimans et al.,
2017) raises the mean return over a lifetime.
"""

import metaevo
from inner_loops import r2d3
from metaevo import fitness, spaces
from searches import _one_slot


@_one_slot.search(
    r2d3,
    r2d3.Config(
        30_000,
        buffer_size=20_000,
        batch_size=16,
        hidden=32,
        features=(32,),
        num_segments=12,
        num_demonstrations=10,
    ),
    r2d3.Meta(lr=1e-3),
    env="metaevo.envs.gymnax:deep_sea",
    num_generations=10,
    sigma=0.5,
    learning_rate=0.3,
    fitness=fitness.area_under_curve,
)
def search() -> metaevo.Space:
    return spaces.schedule(demo_ratio=spaces.logit())


if __name__ == "__main__":
    metaevo.main(search)
