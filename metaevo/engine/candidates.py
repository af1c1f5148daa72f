"""Candidates of a comparison: what they are, where they come from, their training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population, slots, spaces
from metaevo.analysis import holdout
from metaevo.analysis import rivals as simple_rivals
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.steps import Steps
from metaevo.config import RunConfig
from metaevo.engine import identity
from metaevo.engine import loop as engine
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError
from metaevo.evaluators import choose
from metaevo.storage import artifacts
from metaevo.types import Key, Params, Search, Space

# Numbers need a larger sigma than losses do; `benchmarks/outer_loops.py` measures it.
TUNING_SIGMA = 1.0


class Candidate(NamedTuple):
    """An algorithm to be trained.

    Attributes:
        space: Space that binds the params.
        params: Result of each of its searches; the hand-made algorithm has one.
        what: What tells the space from others that its `spec` does not.
        changes: `key=value`, by which its setting differs from that of the search.
    """

    space: Space
    params: Sequence[Params]
    what: str = ""
    changes: tuple[str, ...] = ()


def learned(directories: Sequence[Path]) -> Candidate:
    """Return the solutions of runs that differ in their seed."""
    bound = [artifacts.as_space(directory / "solution") for directory in directories]
    specs = [space.spec for space, _ in bound]
    if all(spec == specs[0] for spec in specs):
        return Candidate(bound[0][0], [params for _, params in bound])
    if any(_without_texts(spec) != _without_texts(specs[0]) for spec in specs):
        raise ConfigError(f"{directories[0]} and others evolved in different spaces")
    numbers = [np.int32(i) for i in range(len(bound))]
    texts = "; ".join(str(op.get("text")) for spec in specs for op in spec.values())
    return Candidate(_numbered(bound), numbers, texts)


def _without_texts(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A spec without the formulas, in which searches of one space differ."""
    return {
        slot: {key: x for key, x in op.items() if key != "text"}
        for slot, op in spec.items()
    }


def _numbered(bound: Sequence[tuple[Space, Params]]) -> Space:
    """Return a space whose params are the number of a solution: one program for all."""

    def bind(number, meta):
        made = [space.bind(params, meta) for space, params in bound]
        changed = {}
        for slot in bound[0][0].spec:
            each = {str(i): getattr(one, slot) for i, one in enumerate(made)}
            if callable(each["0"]):
                chosen = simple_rivals.chosen_from(each, slot)
                changed[slot] = getattr(chosen.bind(number, meta), slot)
            else:
                changed[slot] = jnp.stack(list(each.values()))[number]
        return slots.replace(meta, **changed)

    return Space(lambda key: jnp.int32(0), bind, spec=bound[0][0].spec)


def tuning(search: Search) -> Search:
    """Return the search for hyperparameters that equals a search in all else.

    A strategy with a `sigma` begins with one of `TUNING_SIGMA`, whatever its own: the
    space is scaled, so that step sizes keep their relation to it.

    Raises:
        ConfigError: The algorithm names no hyperparameters, or the strategy cannot
            search them.
    """
    numbers, with_space = search.tasks[0].tunable, search.strategy.with_space
    drawn = search.strategy.persistent_agents or search.strategy.from_ranges
    drawn |= search.strategy.mutates
    if numbers is None or with_space is None or drawn:
        raise ConfigError(
            "tuned=true: this search's algorithm names no hyperparameters, or its "
            "strategy cannot go over another space; give tuned=false"
        )
    if sigma := search.strategy.settings.get("sigma"):
        numbers = spaces.with_sigma(numbers, TUNING_SIGMA, sigma)
    return search._replace(space=numbers, strategy=with_space(numbers))


def tuned(
    search: Search,
    num: int,
    out: Path,
    console: ConsoleLogger,
    should_stop: Callable[[], bool],
) -> Candidate:
    """Return a hand-made algorithm whose hyperparameters were searched.

    Args:
        search: Search in whose place they are searched, as `tuning` says.
        num: Number of searches, which differ in their seed.
        out: Folder of the runs, which continue where they stopped.
        console: Is told which search begins.
        should_stop: Asked often; True abandons the search.

    Raises:
        ConfigError: As `tuning`.
    """
    alike = tuning(search)
    digest = identity.digest(
        identity.identity(alike), identity.sources(alike), alike.num_generations
    )
    found = []
    for seed in range(num):
        config = RunConfig(
            seed=seed,
            directory=str(out / "tuned" / digest[:12] / f"seed{seed}"),
            held_out_seeds=0,
            wandb="disabled",
        )
        console.say(f"tuning a rival, search {seed + 1} of {num}")
        result = engine.run(alike, config, "tuned", should_stop=should_stop)
        assert result is not None, "this is the only process"
        found.append(result.solution)
    return Candidate(alike.space, found)


def random_solutions(search: Search, num: int, seed: int) -> list[Params]:
    """Return the strategy's solutions for fitness drawn from N(0, 1).

    Nothing is trained.

    Args:
        search: Search whose strategy and number of generations are used.
        num: Number of solutions.
        seed: Draws them.
    """
    strategy = search.strategy

    def one(key):
        def generation(state, key):
            ask, draw, tell = jax.random.split(key, 3)
            proposal, state = strategy.ask(ask, state)
            noise = jax.random.normal(draw, (population.size(proposal.params),))
            return strategy.tell(tell, state, proposal, noise), None

        init, run = jax.random.split(key)
        keys = jax.random.split(run, search.num_generations)
        return strategy.solution(jax.lax.scan(generation, strategy.init(init), keys)[0])

    keys = jax.random.split(jax.random.key(seed), num)
    found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(len(keys))]


def trained(
    search: Search,
    candidate: Candidate,
    num_seeds: int,
    out: Path,
    key: Key,
    devices: list,
    should_stop: Callable[[], bool],
) -> list[HeldOut]:
    """Return the runs of a candidate's params, kept in `out` round by round."""
    params = {str(i): x for i, x in enumerate(candidate.params)}
    digest = identity.digest(
        identity.lifetime(search),
        identity.sources(search),
        dict(candidate.space.spec),
        *([candidate.what] if candidate.what else []),
        [identity.plain(x) for x in candidate.params],
        num_seeds,
        identity.plain(jax.random.key_data(key)),
    )
    runs, _ = holdout.train_kept(
        Steps(out / "trained" / digest[:16], digest),
        search,
        candidate.space,
        params,
        key,
        num_seeds,
        choose.local_factory(devices, should_stop).make,
    )
    return list(runs.values())
