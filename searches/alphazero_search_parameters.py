"""Evolve how Gumbel AlphaZero searches, for strength at few simulations.

The scale by which values of moves become logits, the noise in the root, and an
increasing map of the values. Fitness is the mean result of trained agents against
`inner.opponent`, over both seats; all members have equal simulations. SNES (Schaul et
al., 2011) climbs it.
"""

import metaevo
from inner_loops import gumbel_alphazero
from metaevo import exploration, spaces
from searches import _one_slot


@_one_slot.search(
    gumbel_alphazero,
    gumbel_alphazero.Config(
        32_768,
        num_envs=64,
        num_segments=4,
        num_simulations=4,
        features=(64,),
        opponent="minimax",
        num_eval_envs=256,
    ),
    gumbel_alphazero.Meta(),
    env="pgx/tic_tac_toe",
    num_generations=12,
    sigma=0.5,
)
def search(num_pieces: int = 4) -> metaevo.Space:
    """
    Args:
        num_pieces: pieces of the map of values, at least 2.
    """
    names = ("q_scale", "q_visits", "gumbel_scale")
    return spaces.combine(
        spaces.tune(**dict.fromkeys(names, spaces.log())),
        spaces.replace(q_transform=exploration.monotone(num_pieces)),
    )


if __name__ == "__main__":
    metaevo.main(search)
