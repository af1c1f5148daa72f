"""Evolve a shaper that plays against itself: meta-self-play (Lu et al., 2022).

At first most opponents are naive learners, later all are the solution of the search.
"""

from functools import partial

import jax.numpy as jnp
import optax

import metaevo
from inner_loops import opponents
from metaevo import fitness, policies, slots, spaces
from metaevo.envs import matrix
from metaevo.types import Space
from strategies.open_es import open_es
from strategies.self_play import self_play

SHARE = Space(
    init=lambda key: {"naive_share": jnp.ones(())},
    bind=lambda params, meta: slots.replace(meta, **params),
    spec={"naive_share": {"op": "number"}},
)


def search(
    game: str = "prisoners_dilemma",
    population_size: int = 64,
    num_generations: int = 100,
    num_annealed: int = 60,
    sigma: float = 0.1,
    learning_rate: float = 0.03,
    features: tuple[int, ...] = (16,),
    inner: opponents.Config = opponents.Config(),
) -> metaevo.Search:
    played = matrix.make(game)
    shaper = policies.shaper(played.num_situations, features)
    both = spaces.replace(shaper=shaper, opponent=shaper)
    evolve = partial(
        open_es,
        population_size=population_size,
        sigma=sigma,
        optimizer=optax.adam(learning_rate),
    )
    space = spaces.combine(both, SHARE)
    strategy = self_play(
        space, evolve, "shaper", "opponent", "naive_share", num_annealed
    )
    return metaevo.Search(
        inner_loop=opponents.make(played, inner),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        chunk_size=population_size,
    )


if __name__ == "__main__":
    metaevo.main(search)
