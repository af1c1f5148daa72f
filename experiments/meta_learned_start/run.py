"""Meta-learn the first policy and the step size of a naive learner (MAML).

    python -m experiments.meta_learned_start.run game=prisoners_dilemma

The learner plays a meta-episode of 100 steps, in the seat of the opponent, against
naive learners that start anywhere, and both follow their own gradients. CMA-ES raises
its mean payoff: the gradient through 100 steps of two learners raised nothing in the
iterated prisoner's dilemma. Prints the numbers that `META_LEARNED` in
`metaevo/rl/game_players.py` holds, and the payoffs on 256 fresh games.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import switches
from metaevo.envs import matrix
from metaevo.rl import game_players
from metaevo.slots import Context
from metaevo.types import Space
from strategies.cma_es import cma_es

STEPS, MEMBERS, NUM_FRESH = 100, 32, 256


def main() -> None:
    chosen = switches(
        {"game": "prisoners_dilemma", "generations": 150, "games": 16, "seed": 0},
        sys.argv[1:],
    )
    game = matrix.swapped(matrix.make(str(chosen["game"])))  # seat of the opponent
    num_games = int(str(chosen["games"]))
    other = game_players.naive(matrix.swapped(game))

    def bound(params):
        """The first logits within those that a policy may have, and the step size."""
        largest = matrix.logits([1.0])
        start = largest * jnp.tanh(params["start"] / largest)
        return start, jnp.exp(jnp.clip(params["log_lr"], -5.0, 2.0))

    def payoffs(params, start):
        first, lr = bound(params)
        own = game_players.naive(game, lr)

        def step(policies, _):
            mine, theirs = policies
            policies = own(mine, theirs, Context()), other(theirs, mine, Context())
            return policies, game.payoffs(*policies)

        _, paid = jax.lax.scan(step, (first, start), None, STEPS)
        return paid.mean(0)

    def score(params, key, num):
        starts = jax.random.normal(key, (num, game.num_situations))
        return jax.vmap(payoffs, (None, 0))(params, starts).mean(0)

    zero = {"start": jnp.zeros(game.num_situations), "log_lr": jnp.zeros(())}
    space = Space(lambda key: zero, lambda params, meta: meta)
    strategy = cma_es(space, MEMBERS, 1.0)

    @jax.jit
    def generation(state, key):
        ask, tell, world = jax.random.split(key, 3)
        proposal, state = strategy.ask(ask, state)
        found = jax.vmap(lambda x: score(x, world, num_games)[0])(proposal.params)
        found = jnp.where(jnp.isfinite(found), found, -1e6)
        return strategy.tell(tell, state, proposal, found), found.mean()

    root = jax.random.key(int(str(chosen["seed"])))
    state = strategy.init(root)
    for i in range(int(str(chosen["generations"]))):
        state, mean = generation(state, jax.random.fold_in(root, i))
        if i % 25 == 0:
            print(f"generation {i}: {float(mean):.2f}", flush=True)
    params = strategy.solution(state)
    fresh = jax.jit(lambda x: score(x, jax.random.key(1_000), NUM_FRESH))(params)
    print(f"payoffs of both on fresh games: {np.asarray(fresh).round(3).tolist()}")
    start, lr = bound(params)
    print(f"start: {np.asarray(start).round(2).tolist()}")
    print(f"step size: {float(lr):.3f}")


if __name__ == "__main__":
    main()
