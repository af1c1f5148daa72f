"""A search that costs nothing, to be killed: `python -m benchmarks.tiny key=value`.

An agent is a point that descends towards 1 with noise; its learning rate evolves.
`steps` makes a lifetime, and so a generation, as long as one likes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import metaevo
from metaevo import fitness, spaces
from metaevo.types import InnerLoop, InnerState
from strategies.open_es import open_es


class Meta(NamedTuple):
    lr: Any = 0.1


def loop(steps: int, size: int = 3) -> InnerLoop:
    def init(key, meta):
        return InnerState(jax.random.normal(key, (size,)), (), (), jnp.int32(0))

    def train(key, meta, state):
        key = jax.random.fold_in(key, state.clock)

        def step(i, x):
            noise = jax.random.normal(jax.random.fold_in(key, i), (size,))
            return x - meta.lr * (x - 1.0 + 0.1 * noise)

        x = jax.lax.fori_loop(0, steps, step, state.agent)
        metrics = {"return": -((x - 1.0) ** 2).sum(), "episodes": jnp.ones(())}
        return InnerState(x, (), (), state.clock + 1), metrics

    def evaluate(key, meta, state):
        return {"return": -((state.agent - 1.0) ** 2).sum(), "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        return obs, carry

    return InnerLoop(Meta(), init, train, evaluate, 2, act, frames_per_segment=steps)


def search(
    population_size: int = 16,
    num_generations: int = 150,
    steps: int = 4,
    chunk_size: int = 2,
) -> metaevo.Search:
    space = spaces.tune(lr=spaces.log())
    return metaevo.Search(
        loop(steps),
        space,
        open_es(space, population_size, 0.5, optax.adam(0.1)),
        num_generations,
        fitness.final_return,
        chunk_size=chunk_size,
    )


if __name__ == "__main__":
    metaevo.main(search)
