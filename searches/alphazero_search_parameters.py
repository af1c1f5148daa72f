"""Evolve how Gumbel AlphaZero searches, for strength at few simulations.

The scale by which values of moves become logits, the noise in the root, and an
increasing map of the values. Fitness is the mean result of trained agents against
`inner.opponent`, over both seats; all members have equal simulations. SNES (Schaul et
al., 2011) climbs it.
"""

import metaevo
from inner_loops import gumbel_alphazero
from metaevo import envs, exploration, fitness, spaces
from strategies.snes import snes


def search(
    env: str = "pgx/tic_tac_toe",
    population_size: int = 16,
    num_generations: int = 12,
    num_seeds: int = 2,
    sigma: float = 0.5,
    num_pieces: int = 4,
    inner: gumbel_alphazero.Config = gumbel_alphazero.Config(
        32_768,
        num_envs=64,
        num_segments=4,
        num_simulations=4,
        features=(64,),
        opponent="minimax",
        num_eval_envs=256,
    ),
    meta: gumbel_alphazero.Meta = gumbel_alphazero.Meta(),
) -> metaevo.Search:
    """
    Args:
        num_pieces: pieces of the map of values, at least 2.
    """
    space = spaces.combine(
        spaces.tune(
            q_scale=spaces.log(), q_visits=spaces.log(), gumbel_scale=spaces.log()
        ),
        spaces.replace(q_transform=exploration.monotone(num_pieces)),
    )
    return metaevo.Search(
        inner_loop=gumbel_alphazero.make(envs.make(env), inner, meta),
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
