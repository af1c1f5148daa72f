"""Genetic algorithms for a player that shapes LOLA, several searches at once.

    python -m experiments.lola.run                  8 minutes on an H100
    python -m experiments.lola.run only=4           one variant

A player is a tanh network of `units` from both players' probabilities (`centered`: 2 p
- 1) to its next logits times `scale`. A generation has `members` in the same `games`.
`plus`: the best child takes the parent's place if it scores more in 1,024 games, as in
the authors' code. Otherwise the `elites` best are the next parents, sigma falls from
`first` to `last`, and the mean of the elites is scored. Each line has the payoffs of
both players over the meta-episode every 16 generations, [searches, 2].
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import metaevo

metaevo.configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.measure import Results, switches  # noqa: E402
from metaevo.envs import matrix  # noqa: E402
from metaevo.rl import game_players  # noqa: E402

GAME = matrix.make("prisoners_dilemma")
LOLA = game_players.lola(matrix.swapped(GAME))
GENERATIONS, SEARCHES, TESTED = 64, 4, 1024


class Variant(NamedTuple):
    """A genetic algorithm; see above."""

    plus: bool = False
    elites: int = 8
    first: float = 2.0
    last: float = 0.1
    members: int = 256
    games: int = 64
    units: int = 256
    centered: bool = False
    scale: float = 1.0


VARIANTS = (
    Variant(),
    Variant(plus=True, scale=4.0),
    Variant(plus=True, centered=True),
    Variant(elites=1),
    Variant(first=1.0, last=0.05),
    Variant(elites=32),
    Variant(centered=True),
    Variant(centered=True, scale=4.0),
    Variant(units=16),
    Variant(members=512, games=32),
    Variant(members=128),
    Variant(first=3.0),
    Variant(plus=True),
    Variant(first=1.0, last=0.05, members=1024, games=16),
    Variant(first=0.5, last=0.05, members=1024, games=16),
    Variant(first=0.5, last=0.05),
    Variant(first=0.3, last=0.03),
    Variant(first=1.0, last=0.05, elites=3),
    Variant(first=0.7, last=0.05, elites=16),
    Variant(first=0.7, last=0.05, units=64),
)


def payoffs(variant: Variant, net: dict, key: jax.Array, games: int) -> jax.Array:
    """Mean payoffs [2] of a player and LOLA over a meta-episode of 100 steps."""
    own, other = jax.random.normal(key, (2, games, 5))
    learn = jax.vmap(lambda other, own: LOLA(other, own, None))

    def step(carry, _):
        seen, other, shown = carry
        p = jax.nn.sigmoid(jnp.concatenate([seen, shown], -1))
        p = 2 * p - 1 if variant.centered else p
        hidden = jnp.tanh(p @ net["w0"] + net["b0"])
        chosen = variant.scale * (hidden @ net["w1"] + net["b1"])
        paid = jax.vmap(GAME.payoffs)(chosen, other).mean(0)
        return (chosen, learn(other, chosen), other), paid

    first = own, learn(other, own), other  # the random first pair pays nothing
    return jax.lax.scan(step, first, None, 100)[1].mean(0)


def init(key: jax.Array, units: int) -> dict:
    """PyTorch's first weights of linear layers, as the authors have them."""
    keys = jax.random.split(key, 4)

    def uniform(key, shape, bound):
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

    narrow, wide = units**-0.5, 5**-0.5
    return {
        "w0": uniform(keys[0], (10, units), narrow),
        "b0": uniform(keys[1], (units,), narrow),
        "w1": uniform(keys[2], (units, 5), wide),
        "b1": uniform(keys[3], (5,), wide),
    }


@partial(jax.jit, static_argnums=0)
def generation(variant: Variant, parents: dict, key: jax.Array, sigma: jax.Array):
    """The next parents [elites, ...], and the payoffs [2] of what is scored."""
    keys = jax.random.split(key, 5)
    who = jax.random.randint(keys[0], (variant.members,), 0, variant.elites)
    leaves, tree = jax.tree.flatten(parents)
    noise = [
        jax.random.normal(key, (variant.members, *x.shape[1:]))
        for key, x in zip(jax.random.split(keys[1], len(leaves)), leaves, strict=True)
    ]
    moved = [x[who] + sigma * e for x, e in zip(leaves, noise, strict=True)]
    children = jax.tree.unflatten(tree, moved)
    scored = jax.vmap(lambda x: payoffs(variant, x, keys[2], variant.games))(children)
    best = jax.lax.top_k(scored[:, 0], variant.elites)[1]
    chosen = jax.tree.map(lambda x: x[best], children)
    mean = jax.tree.map(lambda x: x.mean(0), chosen)
    found = payoffs(variant, mean, keys[3], TESTED)
    if not variant.plus:
        return chosen, found
    parent = jax.tree.map(lambda x: x[0], parents)
    known = payoffs(variant, parent, keys[4], TESTED)
    better = found[0] > known[0]
    kept = jax.tree.map(lambda x, y: jnp.where(better, x, y), chosen, parents)
    return kept, jnp.where(better, found, known)


def main() -> None:
    only = switches({"only": -1}, sys.argv[1:])["only"]
    results = Results("again", keep=True, folder=Path(__file__).parent)
    for number, variant in enumerate(VARIANTS):
        if only not in (-1, number):
            continue
        variant = variant._replace(elites=1 if variant.plus else variant.elites)
        began, scores = time.perf_counter(), []
        keys = jax.random.split(jax.random.key(0), SEARCHES)
        nets = jax.vmap(lambda key, v=variant: init(key, v.units))(keys)
        parents = jax.tree.map(
            lambda x, n=variant.elites: jnp.repeat(x[:, None], n, 1), nets
        )
        step = jax.vmap(partial(generation, variant), (0, 0, None))
        for i in range(GENERATIONS):
            share = 0.0 if variant.plus else i / (GENERATIONS - 1)
            sigma = variant.first * (variant.last / variant.first) ** share
            keys = jax.random.split(jax.random.key(100 + i), SEARCHES)
            parents, found = step(parents, keys, jnp.float32(sigma))
            if i % 16 == 15:
                scores.append(np.asarray(found).round(3).tolist())
        seconds = round(time.perf_counter() - began, 1)
        results.add(variant=variant._asdict(), scores=scores, seconds=seconds)


if __name__ == "__main__":
    main()
