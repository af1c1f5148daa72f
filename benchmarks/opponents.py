"""Shapers of `searches/mfos_ipd.py` over several search seeds, on 256 fresh games.

    python -m benchmarks.opponents game=chicken num_generations=60

Several searches run in one process and share their programs. Prints one line a seed:
mean payoffs of shaper and opponent over the meta-episode, and those of its last step.
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp

from inner_loops import opponents
from metaevo import population
from metaevo.envs import matrix
from metaevo.evaluators.lift import lift
from searches import mfos_ipd

NUM_GAMES = 256
SEEDS = (0, 1, 2)


def main(
    game: str = "prisoners_dilemma", opponent: str = "naive", num_generations: int = 100
) -> None:
    """Run the searches and print their figures."""
    search = mfos_ipd.search(game, opponent, num_generations=num_generations)
    (loop,), strategy = search.tasks, search.strategy
    lifted = lift(loop, search.space, search.fitness, loop.num_segments, True)
    config = opponents.Config(num_envs=NUM_GAMES)
    fresh = opponents.make(matrix.make(game), config, loop.meta)

    @jax.jit
    def generation(key, state):
        ask_key, world_key, tell_key = jax.random.split(key, 3)
        proposal, state = strategy.ask(ask_key, state)
        world = world_key[None], jnp.arange(population.size(proposal.params))
        born = lifted.init(*world, proposal.params)
        _, outcome = lifted.run(*world, proposal.params, born)
        return strategy.tell(tell_key, state, proposal, outcome.fitness.mean(0))

    @jax.jit
    def scored(key, params):
        meta = search.space.bind(params, fresh.meta)
        segment = partial(fresh.train, key, meta)
        state = fresh.init(key, meta)
        _, metrics = jax.lax.scan(
            lambda state, _: segment(state), state, None, fresh.num_segments
        )
        return metrics["return"], metrics["opponent_return"]

    for seed in SEEDS:
        key = jax.random.key(seed)
        state = strategy.init(key)
        for i in range(num_generations):
            state = generation(jax.random.fold_in(key, i), state)
        own, other = scored(jax.random.key(999), strategy.solution(state))
        print(
            f"{game} against {opponent}, seed {seed}: shaper {own.mean():.3f}, "
            f"opponent {other.mean():.3f}; last step {own[-1]:.3f}, {other[-1]:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    given = dict(x.split("=") for x in sys.argv[1:])
    generations = int(given.pop("num_generations", 100))
    main(**given, num_generations=generations)
