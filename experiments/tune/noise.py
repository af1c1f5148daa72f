"""Measure how far SNES walks, alone and on a Gaussian process, under noise alone.

    python -m experiments.tune.noise

Seven numbers, 16 members, 60 generations, three searches each.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

import metaevo
from benchmarks.measure import Results
from experiments.tune.gp_snes import gp_snes
from metaevo.types import Space
from strategies.snes import snes


def main() -> None:
    metaevo.configure()
    results = Results("noise", folder=Path(__file__).parent)
    space = Space(lambda key: jnp.zeros(7), lambda params, meta: meta)
    made = {
        "snes": snes(space, 16, 1.0),
        "gp_snes": gp_snes(space, 16, 1.0, memory=256),
    }
    for name, strategy in made.items():
        ask, tell = jax.jit(strategy.ask), jax.jit(strategy.tell)
        for seed in range(3):
            state = strategy.init(jax.random.key(seed))
            for i in range(60):
                key = jax.random.fold_in(jax.random.key(seed), i)
                keys = jax.random.split(key, 3)
                proposal, state = ask(keys[0], state)
                noise = jax.random.normal(keys[1], (16,))
                state = tell(keys[2], state, proposal, noise)
            told = {k: round(float(v), 2) for k, v in strategy.metrics(state).items()}
            results.add(strategy=name, seed=seed, **told)


if __name__ == "__main__":
    main()
