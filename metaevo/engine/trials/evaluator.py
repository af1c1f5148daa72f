"""A population evaluated by a function of the user's: an `Evaluator`.

A member's generation is a trial for each seed, or, where a lifetime has several
segments, a chain of trials that continue each other. A trial is named by a digest of
all that it is given, so a name stands for one result: a run that is resumed finds the
trials that ended before in `trials.jsonl`, and does not run them again.
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
from metaevo.engine.trials import processes
from metaevo.engine.trials.log import Given, TrialLog
from metaevo.engine.trials.processes import Ended, Limits, Run, Target
from metaevo.engine.trials.values import members, shortest, traced
from metaevo.evaluators.programs import common_random_numbers
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
    """

    def __init__(self, search: Search, trainer: Trainer, keep_agents: bool = False):
        self.search, self.trainer, self.keep_agents = search, trainer, keep_agents
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
        self._run([life for row in lives for life in row])
        found = np.array([[self._scores(life) for life in row] for row in lives])
        scores, seconds = found[:, :, 0], found[:, :, 1]
        last = scores[..., -1]
        alive = np.isfinite(last)
        learned = alive.all(0).any()  # else the engine stays where it is
        if proposal.parents is not None and carried and learned:
            for name in np.asarray(carried[0].agent["trial"]).reshape(-1, NAME):
                self._forget(bytes(name).hex())
        told: Any = {
            "return": scores,
            "episodes": np.ones_like(scores),
            "seconds": seconds,
        }
        evaluation: Any = {"return": last}
        evaluated = Evaluated(
            fitness=last[None],
            healthy=alive[None],
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

    def _run(self, lives: Sequence[tuple[Given, ...]]) -> None:
        trainer, waiting = self.trainer, {x[-1].name: x for x in lives}
        check_folder(trainer.folder)
        processes.run_all(
            list(waiting.values()),
            self._live,
            trainer.limits.workers,
            trainer.should_stop,
        )

    def _live(self, life: tuple[Given, ...], stopped: threading.Event) -> None:
        """Run the trials of a life that did not end before, to the first that fails."""
        log = self.trainer.log
        for given in life:
            ended = log.ended.get(given.name)
            if ended is None:
                ended = self._trial(given, stopped)
                if ended is None:
                    return
                log.add(given, ended)
            if given is not life[0] and given.parent is not None:
                self._forget(given.parent)
            if ended.score is None:
                return

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

    def _scores(self, life: tuple[Given, ...]) -> tuple[list[float], list[float]]:
        """The score, NaN from the first that failed, and seconds of each trial."""
        ended = self.trainer.log.ended
        found = [ended.get(x.name, Ended(None, "", 0.0)) for x in life]
        scores = [np.nan if x.score is None else x.score for x in found]
        return scores, [x.seconds for x in found]


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
