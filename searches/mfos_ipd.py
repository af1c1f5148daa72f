"""Evolve a player that shapes how its opponent learns: M-FOS (Lu et al., 2022).

Both play the iterated prisoner's dilemma for the 100 steps of a meta-episode, and the
opponent learns from what the member plays. Also for the other games and opponents, such
as `game=chicken` and `opponent=lola`.
"""

import optax

import metaevo
from inner_loops import opponents
from metaevo import fitness, policies, spaces
from metaevo.envs import matrix
from metaevo.rl import game_players
from strategies.open_es import open_es


def search(
    game: str = "prisoners_dilemma",
    opponent: str = "naive",
    population_size: int = 64,
    num_generations: int = 100,
    sigma: float = 0.1,
    learning_rate: float = 0.03,
    features: tuple[int, ...] = (16,),
    scale: float = 4.0,
    uncentered: bool = False,
    naive_share: float = 0.0,
    inner: opponents.Config = opponents.Config(),
) -> metaevo.Search:
    """
    Args:
        opponent: `naive`, `lola`, `meta_learned`, or a fixed policy of the game, such
            as `tit-for-tat`.
        scale: factor of the player's outputs, > 0; logits of 4 are probabilities of
            0.98.
        uncentered: show the player all probabilities p; False: 2 p - 1.
        naive_share: share of games against the naive learner instead, in [0, 1].
    """
    played = matrix.make(game)
    meta = opponents.Meta(
        **game_players.opponent(opponent, played), naive_share=naive_share
    )
    shaper = policies.shaper(played.num_situations, features, scale, uncentered)
    space = spaces.replace(shaper=shaper)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=opponents.make(played, inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
    )


if __name__ == "__main__":
    metaevo.main(search)
