"""DvD: a persistent population with an adaptive weight on its diversity.

Parker-Holder et al., 2020, https://arxiv.org/abs/2002.00632. Members ascend
their returns plus λ times the volume that their behaviors span; the inner loop computes
that gradient (`td3_shared`). This strategy chooses λ, the same for all
members: in each generation a Bernoulli bandit with Thompson sampling selects one value,

    arm a with the largest draw of Beta(successes + 1, failures + 1),

and a generation is a success if the population's mean fitness exceeds that of each of
the last few. The authors' code compares the best member; a mean is less noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy

SLOT = "diversity_coef"
NONE = np.finfo(np.float32).min


class State(NamedTuple):
    params: dict  # one member's
    generation: jax.Array  # int32
    arm: jax.Array  # int32, the last one pulled
    successes: jax.Array  # [arms]
    failures: jax.Array  # [arms]
    recent: jax.Array  # [memory] mean fitness of the last generations, or NONE


def dvd(
    space: Space,
    population_size: int,
    coefficients: Sequence[float] | Callable[[jax.Array], jax.Array] = (0.0, 0.5),
    *,
    boundaries: Sequence[float] = (),
    memory: int = 5,
) -> Strategy:
    """DvD over persistent agents; `space` has the slot `diversity_coef`.

    Args:
        space: its params are a dict with `diversity_coef`, which this strategy writes;
            all other params keep the values of `space.init`.
        population_size: P, at least 2.
        coefficients: the arms λ, each >= 0, or a schedule, generation -> λ, as those
            of optax.
        boundaries: increasing generations from which on the next of `coefficients`
            holds, one fewer than those; in place of the bandit.
        memory: generations whose mean must be exceeded, at least 1.

    Raises:
        ConfigError: an option is out of its range, or the space has no such slot.
    """
    values = (0.0,) if callable(coefficients) else tuple(coefficients)
    given = np.asarray(values, np.float32)
    starts = np.asarray(boundaries, np.float32)
    arms = given[:1] if starts.size else given  # a schedule is none of the bandit's
    orderly = bool((starts[1:] > starts[:-1]).all())
    for name, value, good, expected in (
        ("population_size", population_size, population_size >= 2, "2 or more"),
        ("coefficients", coefficients, given.size > 0, "at least one"),
        ("coefficients", coefficients, (given >= 0).all(), "numbers of 0 or more"),
        ("boundaries", boundaries, orderly, "increasing generations"),
        (
            "number of boundaries",
            starts.size,
            starts.size in (0, given.size - 1),
            f"{given.size - 1} for {given.size} coefficients, or none",
        ),
        ("memory", memory, memory >= 1, "1 or more"),
    ):
        if not good:
            raise ConfigError(f"{name}={value}: expected {expected}")
    shapes = jax.eval_shape(space.init, jax.random.key(0))
    if not (isinstance(shapes, dict) and SLOT in shapes):
        raise ConfigError(f"dvd needs a space with the slot {SLOT}")

    def stepwise(generation):
        reached = (generation.astype(jnp.float32) >= starts).sum()
        return jnp.asarray(given)[reached]

    given_schedule = coefficients if callable(coefficients) else None
    schedule = stepwise if starts.size else given_schedule

    def pulled(arm):
        return jnp.asarray(arms)[arm]

    def with_coefficient(state):
        chosen = schedule(state.generation) if schedule else pulled(state.arm)
        return state.params | {SLOT: jnp.asarray(chosen, jnp.float32)}

    def init(key):
        none = jnp.zeros(arms.size)
        recent = jnp.full(memory, NONE, jnp.float32)
        return State(space.init(key), jnp.int32(0), jnp.int32(0), none, none, recent)

    def ask(key, state):
        drawn = jax.random.beta(key, state.successes + 1, state.failures + 1)
        state = state._replace(arm=jnp.argmax(drawn).astype(jnp.int32))
        params = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (population_size, *x.shape)),
            with_coefficient(state),
        )
        living = jnp.arange(population_size, dtype=jnp.int32)
        return Proposal(params, jnp.where(state.generation > 0, living, -1)), state

    def tell(key, state, proposal, fitness):
        del key, proposal
        reached = fitness.mean()
        # The first generation has nothing to exceed, so its arm is not judged.
        judged = (np.arange(arms.size) == state.arm) & (state.generation > 0)
        better = reached > state.recent.max()
        return state._replace(
            generation=state.generation + 1,
            successes=state.successes + (judged & better).astype(jnp.float32),
            failures=state.failures + (judged & ~better).astype(jnp.float32),
            recent=jnp.roll(state.recent, 1).at[0].set(reached),
        )

    def solution(state):
        """Return λ of the most successful arm, or of the schedule's last generation."""
        rate = (state.successes + 1) / (state.successes + state.failures + 2)
        last = jnp.maximum(state.generation - 1, 0)
        best = state._replace(arm=jnp.argmax(rate), generation=last)
        return with_coefficient(best)

    def metrics(state):
        rate = (state.successes + 1) / (state.successes + state.failures + 2)
        rates = {f"success_{i}": x for i, x in enumerate(rate)}
        asked = state._replace(generation=jnp.maximum(state.generation - 1, 0))
        return {SLOT: with_coefficient(asked)[SLOT], **rates}

    return Strategy(init, ask, tell, solution, metrics, persistent_agents=True)
