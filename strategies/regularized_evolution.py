"""Regularized evolution of programs (Real et al., 2019, arXiv:1802.01548).

A ring holds the youngest programs, and the oldest leave it, however good they seemed.
Children are mutated winners of tournaments. Three things are not in the paper:

* A program that behaves as one seen before is not trained: it is mutated again, and if
  that fails, the one that is known is looked at again, or the start if it has left. Nor
  is one trained from which nothing is learned. Step sizes in disguise are the same
  program, see `Genome.behaviour`.
* The best by upper bound are looked at again in each generation. All members of one
  share their worlds, so a score counts as the difference from the start, which is
  always the first member, and differences of several generations have a mean and a
  deviation. For parents and looks, means are drawn towards that of the ring (empirical
  Bayes; Efron & Morris, 1975), so that one lucky look is not the best parent.
* The solution is the shortest program within a standard error of the best lower bound,
  among those looked at often enough; the start if no bound is above it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError
from metaevo.types import Front, Proposal, Space, Strategy, remakeable
from strategies import _options
from strategies._trees import strong

TRIES = 8  # mutations until a child is taken as what it is
LARGEST = 1e12  # difference; its square is finite
MOST_ADOPTED = 16  # programs that others wrote, in one generation
MOST_ANCESTORS = 128  # of the solution, that are told
NEW = -1  # in `State.asked`
NONE = -1  # no parent


class Lineage(NamedTuple):
    """The last programs that were trained, by number modulo `memory`; the start is 0.

    Attributes:
        params: [memory, ...].
        parent: [memory] int32, number of the program that was mutated, or `NONE`.
        born: [memory] int32, generation.
    """

    params: Any
    parent: jax.Array
    born: jax.Array


class State(NamedTuple):
    """The ring, and what was asked.

    Attributes:
        params: [M, ...] programs; those not filled yet are the start.
        total: [M] sum of the differences from the start.
        looks: [M] int32, how many there are; 0: not filled.
        born: [M] int32, generation of the first; the start, at 0, never leaves.
        identity: [M, 2] uint32, of behaviours.
        number: [M] int32, of the programs in `lineage`.
        seen: [memory, 2] uint32, of the last behaviours that were trained.
        num_seen: int32, how many were.
        squares: [M] sums of squared differences from the mean.
        asked: [P] int32, place in the ring of each member of the proposal, or `NEW`.
        new: [P, 2] uint32, identity of each member.
        parent: [P] int32, number of what each member is a mutation of, or `NONE`.
        step: int32, generations told.
        queue: [Q, ...] programs that enter the next proposal.
        queued: int32, how many of them do.
        lineage: of all programs.
    """

    params: Any
    total: jax.Array
    looks: jax.Array
    born: jax.Array
    identity: jax.Array
    number: jax.Array
    seen: jax.Array
    num_seen: jax.Array
    squares: jax.Array
    asked: jax.Array
    new: jax.Array
    parent: jax.Array
    step: jax.Array
    queue: Any
    queued: jax.Array
    lineage: Lineage


@remakeable
def regularized_evolution(
    space: Space,
    population_size: int,
    *,
    ring: int = 512,
    tournament: int = 16,
    relook: float = 0.5,
    caution: float = 1.0,
    least_looks: int = 8,
    evidence: float = 3.0,
    memory: int = 16_384,
) -> Strategy:
    """Regularized evolution of a space of programs.

    Args:
        space: of programs, such as `spaces.replace(td_loss=formulas.expression(...))`.
        population_size: P: the start, re-looks and children.
        ring: M, programs that are kept.
        tournament: programs of which a child's parent is the best.
        relook: share of the population that is looked at again, in (0, 1).
        caution: standard errors by which bounds differ from means.
        least_looks: looks that a solution needs.
        evidence: standard errors by which it has to be above the start. Many programs
            are looked at, so the best of them is a few above 0 by luck.
        memory: last behaviours that are not trained again.

    Raises:
        ConfigError: an option is out of its range, or the space has no programs.
    """
    _options.at_least(4, population_size=population_size)
    _options.at_least(1, tournament=tournament, least_looks=least_looks)
    _options.at_least(0, caution=caution, evidence=evidence)
    again = round(relook * population_size)
    if not 1 <= again <= population_size - 2:
        raise ConfigError(
            f"relook={relook} of population_size={population_size} is {again} members; "
            f"expected 1 to {population_size - 2}"
        )
    num_new = population_size - again - 1
    _options.at_least(population_size + again, ring=ring, memory=memory)
    most = min(MOST_ADOPTED, num_new)
    programs = space.programs
    if programs is None:
        raise ConfigError(
            "regularized_evolution needs a space of programs, such as "
            "spaces.replace(td_loss=formulas.expression('td_loss'))"
        )

    def identity(params):
        return _hashed(programs.behaviour(params))

    def init(key):
        start = strong(space.init(key))
        params = jax.tree.map(lambda x: jnp.repeat(x[None], ring, 0), start)
        mine, counts = identity(start)[0], jnp.zeros(ring, jnp.int32)
        zeros = jnp.zeros((ring, 2), jnp.uint32)
        return State(
            params=params,
            total=jnp.zeros(ring),
            looks=counts.at[0].set(1),
            born=counts - 1,
            identity=zeros.at[0].set(mine),
            number=counts,
            seen=jnp.zeros((memory, 2), jnp.uint32).at[0].set(mine),
            num_seen=jnp.int32(1),
            squares=jnp.zeros(ring),
            asked=jnp.full(population_size, NEW, jnp.int32),
            new=jnp.zeros((population_size, 2), jnp.uint32),
            parent=jnp.full(population_size, NONE, jnp.int32),
            step=jnp.int32(0),
            queue=jax.tree.map(lambda x: x[:most], params),
            queued=jnp.int32(0),
            lineage=Lineage(
                jax.tree.map(lambda x: jnp.repeat(x[None], memory, 0), start),
                jnp.full(memory, NONE, jnp.int32),
                jnp.zeros(memory, jnp.int32),
            ),
        )

    def scored(state):
        """Means, their standard errors, and whether a place is filled, [M] each."""
        looks = jnp.maximum(state.looks, 1).astype(jnp.float32)
        filled = (state.looks > 0).at[0].set(False)
        mean = state.total / looks
        # Of those with several looks, the better half tells the deviation of a look:
        # trainings that went astray are no measure for the others.
        often = filled & (state.looks > 1)
        better = often & (mean >= jnp.nanmedian(jnp.where(often, mean, jnp.nan)))
        degrees = jnp.where(better, looks - 1, 0.0).sum()
        squares = jnp.where(better, state.squares, 0.0).sum()
        known = jnp.sqrt(squares / jnp.maximum(degrees, 1.0))
        deviation = jnp.where(degrees > 1, known, _middle(mean, filled)[1])
        # The start's difference from itself is 0, exactly.
        error = jnp.where(filled, deviation / jnp.sqrt(looks), 0.0)
        return mean, error, filled

    def ask(key, state):
        mean, error, filled = scored(state)
        mean, error = _shrunken(mean, error, filled)
        upper = jnp.where(filled, mean + caution * error, -jnp.inf)
        top_upper, top = jax.lax.top_k(upper, again)
        # Before there are so many, the start is looked at again.
        top = jnp.where(jnp.isfinite(top_upper), top, 0).astype(jnp.int32)
        rank = jnp.where(state.looks > 0, mean - 0.5 * caution * error, -jnp.inf)

        def known(mine):
            return (state.seen == mine[None]).all(1).any()

        def child(key):
            parent_key, key = jax.random.split(key)
            entrants = jax.random.randint(parent_key, (tournament,), 0, ring)
            parent = entrants[jnp.argmax(rank[entrants])]
            params = jax.tree.map(lambda x: x[parent], state.params)

            def mutated(i, params):
                now = jax.random.fold_in(key, i)
                times = 1 + jax.random.bernoulli(now, 0.5).astype(jnp.int32)

                def once(j, params):
                    return programs.mutate(jax.random.fold_in(now, j), params)

                return jax.lax.fori_loop(0, times, once, params)

            def attempt(i, found):
                tried, mine, done = found
                new = mutated(i, tried)
                its, learns = identity(new)
                fresh = learns & ~known(its)
                new, its = jax.tree.map(
                    lambda x, y: jnp.where(done, x, y), (tried, mine), (new, its)
                )
                # A dead end is left at its parent.
                stuck = ~done & ~learns
                new = jax.tree.map(lambda x, y: jnp.where(stuck, x, y), params, new)
                return new, its, done | fresh

            start = params, state.identity[parent], jnp.bool_(False)
            params, mine, fresh = jax.lax.fori_loop(0, TRIES, attempt, start)
            same = (state.identity == mine[None]).all(1) & (state.looks > 0)
            place = jnp.where(same.any(), jnp.argmax(same), 0)
            place = jnp.where(fresh, NEW, place).astype(jnp.int32)
            return params, mine, place, state.number[parent]

        keys = jax.random.split(key, num_new)
        made, mine, place, parent = jax.vmap(child)(keys)
        parent = jnp.where(jnp.arange(num_new) < state.queued, NONE, parent)
        made, mine, place = with_queue(state, made, mine, place)
        # Of two children that are the same, the second gives way to the start.
        earlier = jnp.tril((mine[:, None] == mine[None]).all(2), -1).any(1)
        place = jnp.where((place == NEW) & earlier, 0, place)
        places = jnp.concatenate([jnp.zeros(1, jnp.int32), top, place])
        kept = jax.tree.map(lambda x: x[jnp.maximum(places, 0)], state.params)
        told = jax.tree.map(
            lambda x, y: jnp.concatenate([x[: again + 1], y]), kept, made
        )
        is_new = places == NEW
        params = jax.tree.map(
            lambda x, y: jnp.where(is_new.reshape(-1, *[1] * (x.ndim - 1)), x, y),
            told,
            kept,
        )
        new = jnp.concatenate([jnp.zeros((again + 1, 2), jnp.uint32), mine])
        parent = jnp.concatenate([jnp.full(again + 1, NONE, jnp.int32), parent])
        asked = state._replace(
            asked=places, new=new, parent=parent, queued=jnp.int32(0)
        )
        return Proposal(params), asked

    def with_queue(state, made, mine, place):
        """Children, their identities and places, the first of them from the queue."""
        its, learns = jax.vmap(identity)(state.queue)
        same = (its[:, None] == state.identity[None]).all(2) & (state.looks > 0)[None]
        known = jnp.where(same.any(1), jnp.argmax(same, 1), NEW)
        there = jnp.where(learns, known, 0).astype(jnp.int32)
        taken = jnp.arange(most) < state.queued

        def put(old, new):
            chosen = taken.reshape(-1, *[1] * (old.ndim - 1))
            return old.at[:most].set(jnp.where(chosen, new, old[:most]))

        return jax.tree.map(put, made, state.queue), put(mine, its), put(place, there)

    def adopt(state, params):
        if state.queued >= most:
            raise ConfigError(f"more than {most} formulas for one generation")
        at = int(state.queued)
        queue = jax.tree.map(lambda x, y: x.at[at].set(y), state.queue, params)
        state = state._replace(queue=queue, queued=state.queued + 1)
        return state, again + 1 + at

    def tell(key, state, proposal, fitness):
        del key
        difference = jnp.clip(fitness - fitness[0], -LARGEST, LARGEST)
        is_new = state.asked == NEW
        # A place may be looked at twice in one generation: it counts as one look.
        place = jnp.where(is_new, ring, state.asked)
        times = jnp.zeros(ring).at[place].add(1.0, mode="drop").at[0].set(0.0)
        looked = times > 0
        score = jnp.zeros(ring).at[place].add(difference, mode="drop")
        score = score / jnp.maximum(times, 1.0)
        looks = state.looks.astype(jnp.float32)
        mean = state.total / jnp.maximum(looks, 1.0)
        about = (score - mean) ** 2 * looks / (looks + 1)
        state = state._replace(
            total=state.total + jnp.where(looked, score, 0.0),
            looks=state.looks + looked.astype(jnp.int32),
            squares=state.squares + jnp.where(looked, about, 0.0),
        )
        mean, error, filled = scored(state)
        lower = jnp.where(filled, mean - caution * error, -jnp.inf)
        best = jnp.zeros(ring, bool).at[jax.lax.top_k(lower, again)[1]].set(True)
        stays = (looked | (best & filled)).at[0].set(True)
        oldest = jnp.argsort(jnp.where(stays, jnp.iinfo(jnp.int32).max, state.born))
        order = jnp.cumsum(is_new, dtype=jnp.int32) - 1
        target = jnp.where(is_new, oldest[jnp.minimum(order, ring - 1)], ring)

        def put(old, new):
            return old.at[target].set(new, mode="drop")

        number = state.num_seen + order
        row = jnp.where(is_new, number % memory, memory)
        born, told = jnp.full_like(state.asked, state.step), state.lineage
        return state._replace(
            params=jax.tree.map(put, state.params, proposal.params),
            total=put(state.total, difference),
            looks=put(state.looks, jnp.ones_like(state.asked)),
            squares=put(state.squares, jnp.zeros_like(difference)),
            born=put(state.born, born),
            identity=put(state.identity, state.new),
            number=put(state.number, number),
            lineage=jax.tree.map(
                lambda old, new: old.at[row].set(new, mode="drop"),
                told,
                Lineage(proposal.params, state.parent, born),
            ),
            seen=state.seen.at[row].set(state.new, mode="drop"),
            num_seen=state.num_seen + is_new.sum(dtype=jnp.int32),
            step=state.step + 1,
        )

    def lengths(state):
        return jax.vmap(programs.length)(state.params)

    def chosen(state):
        """The place of the solution in the ring."""
        mean, error, filled = scored(state)
        enough = filled & (state.looks >= least_looks)
        lower = jnp.where(enough, mean - evidence * error, -jnp.inf)
        best = jnp.argmax(lower)
        near = enough & (lower > 0) & (lower >= lower[best] - error[best])
        length = jnp.where(near, lengths(state), jnp.iinfo(jnp.int32).max)
        shortest = jnp.argmax(jnp.where(length == length.min(), lower, -jnp.inf))
        return jnp.where(lower[best] > 0, shortest, 0)

    def solution(state):
        return jax.tree.map(lambda x: x[chosen(state)], state.params)

    def metrics(state):
        mean, error, filled = scored(state)
        at = chosen(state)
        return {
            "solution_mean": mean[at],
            "solution_error": error[at],
            "solution_looks": state.looks[at],
            "solution_length": lengths(state)[at],
            "best_upper": jnp.where(filled, mean + caution * error, 0.0).max(),
            "new_programs": (state.asked == NEW).sum(),
        }

    def front(state):
        mean, error, filled = scored(state)
        looks = jnp.where(filled, state.looks, 0)
        told = state.lineage

        def back(number, _):
            row = number % memory
            there = (number >= 0) & (number >= state.num_seen - memory)
            born = jnp.where(there, told.born[row], NONE)
            return jnp.where(there, told.parent[row], NONE), (row, born)

        first = state.number[chosen(state)]
        _, (rows, born) = jax.lax.scan(back, first, length=MOST_ANCESTORS)
        ancestors = jax.tree.map(lambda x: x[rows], told.params)
        length = lengths(state)
        return Front(state.params, mean, error, looks, length, ancestors, born)

    return Strategy(
        init,
        ask,
        tell,
        solution,
        metrics,
        mutates=True,
        front=front,
        adopt=adopt,
        most_adopted=most,
    )


def _middle(mean: jax.Array, filled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Median of means, and their deviation by the median distance from it."""
    there = jnp.where(filled, mean, jnp.nan)
    middle = jnp.nan_to_num(jnp.nanmedian(there))
    distance = jnp.nan_to_num(jnp.nanmedian(jnp.abs(there - middle)))
    return middle, 1.4826 * distance  # of a normal distribution


def _shrunken(
    mean: jax.Array, error: jax.Array, filled: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Posterior means and deviations [M] under a normal prior fitted to the ring.

    The variance between programs is that of the means less the median of their squared
    errors, at least a twentieth of the former.
    """
    middle, spread = _middle(mean, filled)
    noise = jnp.nan_to_num(jnp.nanmedian(jnp.where(filled, error**2, jnp.nan)))
    between = jnp.maximum(spread**2 - noise, 0.05 * spread**2) + 1e-12
    trust = between / (between + error**2)
    return middle + trust * (mean - middle), jnp.sqrt(trust) * error


def _hashed(behaviour: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two hashes [2] uint32 of numbers in their order, and whether any is not 0."""
    bits = jax.lax.bitcast_convert_type(
        behaviour.astype(jnp.float32) + 0.0, jnp.uint32
    )  # -0 + 0 is 0
    odd = np.random.default_rng(0).integers(0, 1 << 31, (2, len(behaviour)), np.uint32)

    def mixed(x):
        x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
        return x ^ (x >> 16)

    weights, mixture = jnp.asarray(2 * odd + 1), mixed(bits)[None]
    return (mixture * weights).sum(1, dtype=jnp.uint32), (behaviour != 0).any()
