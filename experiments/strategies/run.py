"""Strategies on BBOB functions (Hansen et al., 2009), with and without noise.

    python -m experiments.strategies.run > experiments/strategies/results.jsonl

One JSON line per strategy, function and dimension: how far the value of the *solution*
(not of the best member) is from the optimum after 200 generations of 32 members, the
median of 8 keys and instances; 1 is where it started. `noisy` is the sphere whose every
generation adds one N(0, 100²) to all members and N(0, 1) to each. Settings are those
below, the same for all functions; nothing was tuned. `stored` is evosax's differential
evolution of 32 trials, which keeps the score of each survivor.
"""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from evosax.algorithms import DifferentialEvolution
from evosax.problems import MetaBBOBProblem

from metaevo.types import Proposal, Space, Strategy
from strategies import (
    ars,
    cma_es,
    de,
    learned_es,
    open_es,
    pgpe,
    sep_cma_es,
    simple_ga,
    snes,
)

FUNCTIONS = ("sphere", "ellipsoidal_rotated", "rastrigin", "noisy")
GENERATIONS, SIZE, KEYS, SIGMA = 200, 32, 8, 0.5


def stored(space, size, sigma):
    """Differential evolution as evosax has it; only for this comparison."""
    mean = space.init(None)
    es = DifferentialEvolution(size, mean)
    params = es.default_params

    def init(key):
        noise = jax.random.normal(key, (size, len(mean)))
        return es.init(key, mean + sigma * noise, jnp.full(size, jnp.inf), params)

    def ask(key, state):
        trials, _ = es.ask(key, state, params)
        first = state.generation_counter == 0
        return Proposal(jnp.where(first, state.population, trials)), state

    def tell(key, state, proposal, fitness):
        return es.tell(key, proposal.params, -fitness, state, params)[0]

    return Strategy(init, ask, tell, lambda state: state.population.mean(0))


ADAM = optax.adam(0.1)
STRATEGIES = {
    "open_es": lambda s: open_es.open_es(s, SIZE, SIGMA, ADAM),
    "snes": lambda s: snes.snes(s, SIZE, SIGMA),
    "pgpe": lambda s: pgpe.pgpe(s, SIZE, SIGMA, ADAM),
    "ars": lambda s: ars.ars(s, SIZE, SIGMA, ADAM),
    "cma_es": lambda s: cma_es.cma_es(s, SIZE, SIGMA),
    "sep_cma_es": lambda s: sep_cma_es.sep_cma_es(s, SIZE, SIGMA),
    "learned_es": lambda s: learned_es.learned_es(s, SIZE, SIGMA),
    "simple_ga": lambda s: simple_ga.simple_ga(s, SIZE, SIGMA, sigma_decay=0.98),
    "de": lambda s: de.de(s, SIZE, SIGMA),
    "stored": lambda s: stored(s, SIZE, SIGMA),
}


def run(strategy, problem, params, function, key):
    """The solution's distance from the optimum, before and after."""
    noisy = function == len(FUNCTIONS) - 1
    params = params.replace(fn_id=jnp.where(noisy, 0, function))

    def value(x):
        return problem.eval(key, x, problem.init(key, params), params)[0]

    def generation(state, key):
        ask_key, tell_key, shared_key, own_key = jax.random.split(key, 4)
        proposal, state = strategy.ask(ask_key, state)
        fitness = -value(proposal.params)
        own = jax.random.normal(own_key, fitness.shape)
        world = 100 * jax.random.normal(shared_key, ()) + own
        fitness = fitness + jnp.where(noisy, world, 0.0)
        return strategy.tell(tell_key, state, proposal, fitness), None

    first = strategy.init(key)
    first = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), first)
    last, _ = jax.lax.scan(generation, first, jax.random.split(key, GENERATIONS))
    return tuple(value(strategy.solution(x)[None])[0] for x in (first, last))


def main():
    for dim in (5, 20):
        problem = MetaBBOBProblem(list(FUNCTIONS[:-1]), dim, dim)
        keys = jax.random.split(jax.random.key(dim), KEYS)
        params = [problem.sample_params(key) for key in keys]
        params = jax.tree.map(lambda *x: jnp.stack(x), *params)
        params = params.replace(f_opt=jnp.zeros(KEYS))
        space = Space(lambda key: jnp.zeros(dim), lambda params, meta: meta)
        for name, make in STRATEGIES.items():
            each = partial(run, make(space), problem)

            # One after the other: LAPACK under vmap can wait for itself for ever.
            @jax.jit
            def table(function):
                return jax.lax.map(lambda x: each(x[0], function, x[1]), (params, keys))

            for i, function in enumerate(FUNCTIONS):
                before, after = map(np.asarray, table(jnp.int32(i)))
                line = {"strategy": name, "function": function, "dim": dim}
                line["left"] = float(f"{np.median(after / before):.3g}")
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
