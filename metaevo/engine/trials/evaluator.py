"""A population evaluated by a function of the user's: an `Evaluator`.

A member's generation is a trial for each seed, or, where a lifetime has several
segments, a chain of trials that continue each other, which may be stopped early. A
trial is named by a digest of all that it is given, so a name stands for one result: a
run that is resumed finds the trials that ended before in `trials.jsonl`, and does not
run them again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population, slots
from metaevo.engine.trials import processes, stopping
from metaevo.engine.trials.log import Given, TrialLog
from metaevo.engine.trials.processes import Ended, Limits, Run, Target
from metaevo.engine.trials.stopping import Arrivals, Life
from metaevo.engine.trials.values import members, shortest, traced
from metaevo.evaluators.programs import common_random_numbers
from metaevo.fitness import Halving
from metaevo.slots import Context
from metaevo.storage._files import check_folder
from metaevo.types import (
    Evaluated,
    InnerState,
    Key,
    Proposal,
    PyTree,
    Search,
)

NAME = 8  # bytes of a trial's name
_NOBODY = bytes(NAME).hex()


class Trainer(NamedTuple):
    """The function of the user's, and all that its trials need.

    Attributes:
        where: the user's function.
        limits: of its trials.
        run: runs a trial.
        budget: as the user gave it.
        log: how trials ended.
        folder: has a folder for each trial.
        spec: `Space.spec` of the search.
        lives_on: True if a lifetime is several trials, which continue each other.
        should_stop: asked several times a second; True abandons what runs.
    """

    where: Target
    limits: Limits
    run: Run
    budget: float | None
    log: TrialLog
    folder: Path
    spec: Mapping[str, Any]
    lives_on: bool
    should_stop: Callable[[], bool]


class TrialEvaluator:
    """Evaluates proposals of one search; see `types.Evaluator`.

    Args:
        search: whose space and defaults are used.
        trainer: runs the trials.
        keep_agents: return the names of the last trials even if members do not live on.
        halving: stops lives early; None: nothing does.
    """

    def __init__(
        self,
        search: Search,
        trainer: Trainer,
        keep_agents: bool = False,
        halving: Halving | None = None,
    ):
        self.search, self.trainer, self.keep_agents = search, trainer, keep_agents
        self.halving = halving
        self.num_devices = trainer.limits.workers
        self._traced: dict[Any, Any] = {}

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Run the trials of all members; as `LocalEvaluator`."""
        search, trainer, (loop,) = self.search, self.trainer, self.search.tasks
        size = population.size(proposal.params)
        steps = search.segments_per_generation or loop.num_segments
        common = common_random_numbers(search, proposal)
        at = jnp.arange(size) if places is None else jnp.asarray(places)
        seeds = np.asarray(_seeds(key, at, search.num_seeds, steps, common))
        everyone = members(proposal.params)
        given = [
            [self._params(jax.tree.map(lambda x: x[p], everyone), k, steps)
             for k in range(steps)]
            for p in range(size)
        ]  # fmt: skip
        before = self._before(proposal, carried, size)
        lives = [
            [
                chain(given[p], seeds[s, p].tolist(), trainer.budget, before[s][p])
                for p in range(size)
            ]
            for s in range(search.num_seeds)
        ]
        self._run([*zip(*lives, strict=True)])
        found = np.array([[self._told(life) for life in row] for row in lives])
        scores, seconds, ran = np.moveaxis(found, 2, 0)
        last = scores[..., -1]
        alive = healthy = np.isfinite(last)
        learned = alive.all(0).any()  # else the engine stays where it is
        if proposal.parents is not None and carried and learned:
            for name in np.asarray(carried[0].agent["trial"]).reshape(-1, NAME):
                self._forget(bytes(name).hex())
        told: Any = {
            "return": scores,
            "episodes": np.ones_like(scores),
            "seconds": seconds,
        }
        if self.halving is not None:
            last, healthy = stopping.fitness(scores, ran > 0)
            told["stopped"] = np.where(healthy[..., None], 1 - ran, 0)
        evaluation: Any = {"return": last}
        evaluated = Evaluated(
            fitness=last[None],
            healthy=healthy[None],
            params=proposal.params,
            train=[told],
            evaluation=[evaluation],
        )
        if not (self.keep_agents or search.segments_per_generation):
            return evaluated, ()
        names = np.array(
            [[_bytes(x[-1].name if ok else _NOBODY) for x, ok in zip(*r, strict=True)]
             for r in zip(lives, alive, strict=True)],
        )  # fmt: skip
        return evaluated, (InnerState({"trial": names}, ()),)

    def score(self, key: Key, proposal: Proposal, carried: PyTree) -> Any:
        """Not here: a trial trains."""
        raise NotImplementedError("a trial trains; agents are not scored as they are")

    def collected(self, carried: PyTree) -> PyTree:
        """The names of the members' last trials: they are here."""
        return carried

    def template(self, proposal: Proposal) -> PyTree:
        """Shapes of the names of the members' last trials, if members live on."""
        if self.search.segments_per_generation is None:
            return ()
        shape = self.search.num_seeds, population.size(proposal.params), NAME
        return (InnerState({"trial": jax.ShapeDtypeStruct(shape, jnp.uint8)}, ()),)

    def state_bytes(self, proposal: Proposal) -> int:
        """Nothing is held here."""
        return 0

    # --- what trials are given ---

    def _params(self, params: PyTree, step: int, steps: int) -> dict[str, Any]:
        """The slots of one member in one segment, as plain data."""
        meta = self.search.space.bind(params, self.search.tasks[0].meta)
        context = Context((step + 0.5) / steps)
        return {
            name: self._plain(name, getattr(meta, name), context)
            for name in meta._fields
        }

    def _plain(self, name: str, slot: Any, context: Context) -> Any:
        if slot is None:
            return None
        if callable(slot) and not (self.trainer.lives_on and slots.is_number(slot)):
            return self._function(name, slot)
        return shortest(slots.value(slot, context))

    def _function(self, name: str, slot: Any) -> dict[str, Any]:
        """An evolved function as its arrays and a program of elementary operations."""
        leaves, tree = jax.tree.flatten(slot)
        made = name, tree, tuple(np.shape(x) for x in leaves)
        if made not in self._traced:
            self._traced[made] = traced(name, self.trainer.spec[name], slot)
        program, order = self._traced[made]
        arrays = [np.asarray(leaves[i], np.float32).tolist() for i in order]
        return {"function": program, "arrays": arrays}

    def _before(
        self, proposal: Proposal, carried: PyTree, size: int
    ) -> list[list[str | None]]:
        """The trial that each seed's each member continues; None for a newborn.

        What a trial left that failed is not continued.
        """
        nobody: list[list[str | None]] = [[None] * size] * self.search.num_seeds
        if proposal.parents is None or not carried:
            return nobody
        names = np.asarray(carried[0].agent["trial"])
        parents = np.asarray(proposal.parents)
        return [
            [
                None if i < 0 or not row[i].any() else bytes(row[i]).hex()
                for i in parents
            ]
            for row in names
        ]

    # --- running them ---

    def _run(self, lives: Sequence[Life]) -> None:
        """Run the trials of members that did not end before."""
        check_folder(self.trainer.folder)
        if self.halving is None:
            rows = {row[-1].name: row for life in lives for row in life}
            self._each(self._live, [*rows.values()])
            return
        # Members with the same numbers and seeds are one.
        alone = [*{life[0][-1].name: life for life in lives}.values()]
        if self.halving.wait:
            self._run_in_step(self.halving, alone)
            return
        arrivals = Arrivals(self.halving, alone, self.trainer.log)
        self._each(functools.partial(self._live_on, arrivals), alone)

    def _each(
        self, one: Callable[[Any, threading.Event], None], jobs: Sequence[Any]
    ) -> None:
        trainer = self.trainer
        processes.run_all(jobs, one, trainer.limits.workers, trainer.should_stop)

    def _live(self, life: Sequence[Given], stopped: threading.Event) -> None:
        """Run trials that continue each other, to the first that fails."""
        for given in life:
            if not self._ended(given, stopped, self.trainer.log.add):
                return

    def _live_on(
        self, arrivals: Arrivals, life: Life, stopped: threading.Event
    ) -> None:
        """Run a member's trials until it is stopped."""
        for age, trials in enumerate(zip(*life, strict=True), 1):
            add = functools.partial(arrivals.add, life, age)
            if not all(self._ended(given, stopped, add) for given in trials):
                return
            if trials[0].name in arrivals.stopped:
                self._end([life], age)
                return

    def _run_in_step(self, halving: Halving, lives: Sequence[Life]) -> None:
        """Run all members to a rung, before the better ones go on."""
        begun = 0
        for age in (*halving.ages, halving.horizon):
            self._each(self._live, [row[begun:age] for x in lives for row in x])
            if age < halving.horizon:
                better = stopping.ahead(halving, lives, age, self.trainer.log)
                self._end([x for x in lives if x not in better], age)
                lives, begun = better, age

    def _end(self, lives: Sequence[Life], age: int) -> None:
        """Remove what members wrote that do not go on."""
        for life in lives:
            for row in life:
                self._forget(row[age - 1].name)

    def _ended(
        self,
        given: Given,
        stopped: threading.Event,
        add: Callable[[Given, Ended], None],
    ) -> bool:
        """Run a trial that did not end before; True if it has a score."""
        ended = self.trainer.log.ended.get(given.name)
        if ended is None:
            ended = self._trial(given, stopped)
            if ended is None:
                return False
            add(given, ended)
        # Of members that live on, others may continue the same parent.
        if given.parent is not None and self.search.segments_per_generation is None:
            self._forget(given.parent)
        return ended.score is not None

    def _trial(self, given: Given, stopped: threading.Event) -> Ended | None:
        if stopped.is_set():
            return None
        trainer = self.trainer
        folder = trainer.folder / given.name
        # An earlier start of this trial may have left files.
        shutil.rmtree(folder, ignore_errors=True)
        own = folder / "files"
        own.mkdir(parents=True)
        parent = None
        if given.parent is not None:
            parent = str(trainer.folder.absolute() / given.parent / "files")
        described = {
            "params": given.params,
            "seed": given.seed,
            "budget": trainer.budget,
            "folder": str(own.absolute()),
            "parent": parent,
        }
        return trainer.run(trainer.where, described, folder, trainer.limits, stopped)

    def _forget(self, name: str) -> None:
        """Remove what a trial wrote, once those that continue it have ended."""
        shutil.rmtree(self.trainer.folder / name / "files", ignore_errors=True)

    def _told(self, life: Sequence[Given]) -> np.ndarray:
        """[3, K]: the trials' scores, NaN of those without; seconds; which ended."""
        told = [self.trainer.log.ended.get(given.name) for given in life]
        scores = [np.nan if x is None or x.score is None else x.score for x in told]
        seconds = [0.0 if x is None else x.seconds for x in told]
        return np.array([scores, seconds, [x is not None for x in told]])


def chain(
    given: Sequence[Mapping],
    seeds: Sequence[int],
    budget: float | None,
    parent: str | None,
) -> tuple[Given, ...]:
    """Return trials that continue each other, one a segment.

    Their names depend on the whole chain: another that begins alike has trials of its
    own, since those of this one leave nothing once they were continued.

    Args:
        given: [K] params.
        seeds: [K].
        budget: of each.
        parent: name of the trial that the first one continues; None: it is newborn.
    """
    life, whole = [], json.dumps([given, budget], sort_keys=True)
    for params, seed in zip(given, seeds, strict=True):
        text = json.dumps([whole, len(life), seed, parent])
        name = hashlib.sha256(text.encode()).hexdigest()[: 2 * NAME]
        life.append(Given(name, params, seed, parent))
        parent = name
    return tuple(life)


def _bytes(name: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(name), np.uint8)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _seeds(
    key: Key, places: jax.Array, num_seeds: int, num_steps: int, common: bool
) -> jax.Array:
    """Seeds [S, P, K] below 2³¹ of members in these places."""

    def one(seed, place, step):
        own = jax.random.fold_in(jax.random.fold_in(key, seed), 0 if common else place)
        return jax.random.bits(jax.random.fold_in(own, step)) >> 1

    over_steps = jax.vmap(one, (None, None, 0))
    over_members = jax.vmap(over_steps, (None, 0, None))
    over_seeds = jax.vmap(over_members, (0, None, None))
    return over_seeds(jnp.arange(num_seeds), places, jnp.arange(num_steps))
