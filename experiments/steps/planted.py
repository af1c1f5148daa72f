"""A planted effect: how many lifetimes SNES needs to find it, alone with its noise.

    python -m experiments.steps.planted

Racing trains all members on two seeds, the better half on two more, and the better
quarter on four more. It costs what four seeds of all cost.

Of D numbers a fifth stand at a distance from their best values; there a member is worth
20 more than the start, in between in proportion to the squared distance. A score of a
member with one seed has a deviation of 48, as CartPole's returns over a lifetime have.
No agent is trained: a search is strategy, value and noise. Each variant searches 40
times, from the usual sigma and from twice as much (`wider`). It finds the effect at the
first of three generations in a row in which four of five searches, or all, have a
solution worth 15 and more. That may be lost again.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Results
from metaevo.types import Space
from strategies.snes import snes

FOLDER = Path(__file__).parent
EFFECT, NOISE, FOUND = 20.0, 48.0, 15.0
SEARCHES, LIFETIMES = 40, 24_576
SPACES = {"7 numbers": (7, 1.0, 3.0), "65 weights": (65, 0.3, 2.0)}
"""name -> D, sigma, distance of the best values from the start."""

# Members, those who are left and the seeds of each by then, round by round.
RACING = 32, ((32, 2), (16, 4), (8, 8))


def whole(size: int, seeds: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Members of whom all have as many seeds."""
    return size, ((size, seeds),)


# name -> members and their rounds
POPULATIONS = {
    "16 x 2": whole(16, 2),
    "32 x 1": whole(32, 1),
    "32 x 4": whole(32, 4),
    "32, racing": RACING,
    "64 x 1": whole(64, 1),
    "128 x 1": whole(128, 1),
}


def cost(rounds: tuple[tuple[int, int], ...]) -> int:
    """Lifetimes of a generation."""
    before = 0, *(seeds for _, seeds in rounds[:-1])
    return sum(
        kept * (seeds - b) for (kept, seeds), b in zip(rounds, before, strict=True)
    )


def measured(key, worth: jax.Array, rounds: tuple[tuple[int, int], ...]) -> jax.Array:
    """Scores of members [P]; who is left for longer is above who is not."""
    total, before, scores = jnp.zeros_like(worth), 0, jnp.zeros_like(worth)
    for number, (kept, seeds) in enumerate(rounds):
        left = jnp.argsort(jnp.argsort(-scores)) < kept
        key, drawn = jax.random.split(key)
        more = seeds - before
        noise = NOISE * more**0.5 * jax.random.normal(drawn, worth.shape)
        total, before = total + more * worth + noise, seeds
        scores = jnp.where(left, 1e5 * number + total / seeds, scores)
    return scores


def values(
    dimensions: int,
    sigma: float,
    distance: float,
    size: int,
    rounds: tuple[tuple[int, int], ...],
    half_step: float | None,
) -> np.ndarray:
    """True values of the solutions, [searches, generations]."""
    best = np.zeros(dimensions, np.float32)
    best[: max(1, dimensions // 5)] = 1
    best *= distance / np.linalg.norm(best)
    start = jnp.zeros(dimensions, jnp.float32)
    space = Space(lambda key: start, lambda params, meta: meta)
    strategy = snes(space, size, sigma, half_step=half_step)

    def worth(x):
        return EFFECT * (1 - ((x - best) ** 2).sum(-1) / distance**2)

    def generation(carry, number):
        key, state = carry
        asked, drawn, told = jax.random.split(jax.random.fold_in(key, number), 3)
        proposal, state = strategy.ask(asked, state)
        scores = measured(drawn, worth(proposal.params), rounds)
        state = strategy.tell(told, state, proposal, scores)
        return (key, state), worth(strategy.solution(state))

    def search(key):
        generations = jnp.arange(LIFETIMES // cost(rounds))
        return jax.lax.scan(generation, (key, strategy.init(key)), generations)[1]

    keys = jax.random.split(jax.random.key(0), SEARCHES)
    return np.asarray(jax.jit(jax.vmap(search))(keys))


def needed(found: np.ndarray, share: float) -> int | None:
    """The first of three generations in which a share has found it; None: never."""
    there = (found >= FOUND).mean(0) >= share
    lasting = there[:-2] & there[1:-1] & there[2:]
    return int(lasting.argmax()) + 1 if lasting.any() else None


def main() -> None:
    results = Results("planted", folder=FOLDER)
    variants = itertools.product(
        *(SPACES.items(), POPULATIONS.items(), (None, 16.0), (1.0, 2.0))
    )
    for (name, space), (population, (size, rounds)), half_step, wider in variants:
        dimensions, sigma, distance = space
        found = values(dimensions, wider * sigma, distance, size, rounds, half_step)
        lifetimes = {}
        for share in (0.8, 1.0):
            generation = needed(found, share)
            spent = None if generation is None else generation * cost(rounds)
            lifetimes[f"found_by_{share:.0%}"] = spent
        results.add(
            space=name,
            members=population,
            half_step=half_step,
            wider=wider,
            **lifetimes,
            value_at_the_end=round(float(found[:, -1].mean()), 2),
            value_at_the_end_error=round(
                float(found[:, -1].std(ddof=1) / SEARCHES**0.5), 2
            ),
        )


if __name__ == "__main__":
    main()
