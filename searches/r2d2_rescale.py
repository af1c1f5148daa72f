"""Evolve the rescaling of returns that R2D2's network learns.

An increasing function of the return, piecewise linear over the published one, which it
starts as: how large the steps are that values of each size get. OpenAI-ES (Salimans et
al., 2017) raises the final return.
"""

import metaevo
from inner_loops import r2d2
from metaevo import spaces
from metaevo.learned import rescalings
from searches import _one_slot


@_one_slot.search(
    r2d2,
    r2d2.Config(
        30_000,
        buffer_size=20_000,
        batch_size=16,
        hidden=32,
        features=(32,),
        num_segments=4,
    ),
    r2d2.Meta(lr=1e-3),
    num_generations=10,
    sigma=0.3,
    learning_rate=0.2,
)
def search(num_cells: int = 6, largest: float = 8.0) -> metaevo.Space:
    """
    Args:
        num_cells: linear pieces on each side of 0, 1 to 64.
        largest: > 1, bound of the slopes, and of their inverses.
    """
    return spaces.replace(rescale=rescalings.monotone(num_cells, largest))


if __name__ == "__main__":
    metaevo.main(search)
