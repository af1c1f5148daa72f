"""The strongest rivals of a search, chosen on seeds of their own.

They are what `metaevo compare rivals=all` adds: the best simple function, the best
static choices of the algorithm, and these with tuned numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from metaevo.analysis import comparison, holdout
from metaevo.analysis import rivals as simple_rivals
from metaevo.analysis.comparison import BOTH
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.verdicts import SIMPLEST, STATIC
from metaevo.engine.candidates import Candidate
from metaevo.types import Search

Change = Callable[[Sequence[str]], Search]
"""`changes -> search`: the search as the hand-made algorithm has it, in a setting."""
Train = Callable[[Search, Candidate], list[HeldOut]]
"""Trains a candidate on the seeds of the choice."""


def chosen(
    change: Change,
    choices: Sequence[str],
    train: Train,
    tune: Callable[[Search], Candidate] | None,
) -> dict[str, Candidate]:
    """Return the best simple function and the best static choices, also tuned.

    Args:
        change: Makes the search.
        choices: Static choices, as `choices.valid` returns them.
        train: Trains on the seeds of the choice.
        tune: Tunes the numbers of a search; None leaves tuned choices out.
    """
    search, found = change(()), {}
    if several := simple_rivals.of(search):

        def train_simple(slot, space, numbers):
            names = ", ".join(several[slot])
            return train(search, Candidate(space, numbers, f"{slot}: {names}"))

        name, slot, number, _ = simple_rivals.choose(search, train_simple)
        space = simple_rivals.chosen_from(several[slot], slot)
        found[SIMPLEST] = Candidate(space, [number], name)
    if changes := _static(change, choices, train):
        nothing = [holdout.NOTHING]
        found[STATIC] = Candidate(holdout.HAND_MADE, nothing, changes=changes)
        if tune is not None:
            found[BOTH] = tune(change(changes))._replace(changes=changes)
    return found


def _static(change: Change, choices: Sequence[str], train: Train) -> tuple[str, ...]:
    """Return the static choices that are best for the hand-made algorithm.

    The best one is added as long as it is better than what there is.
    """

    def score(changes: tuple[str, ...]) -> list[float]:
        as_it_is = Candidate(holdout.HAND_MADE, [holdout.NOTHING])
        (runs,) = train(change(changes), as_it_is)
        return [simple_rivals.mean_of_all(x) for x in runs.fitness]

    left = [*choices]
    taken: tuple[str, ...] = ()
    while left:
        tried = {"": score(taken)}
        tried |= {choice: score((*taken, *choice.split(";"))) for choice in left}
        best = simple_rivals.least_ranks(tried)
        if not best:
            break
        taken = (*taken, *best.split(";"))
        left.remove(best)
    return taken


def hardest(change: Change, train: Train, candidates: Mapping[str, Candidate]) -> str:
    """Return the name of the best rival among candidates, by the seeds of `train`."""
    tried = {}
    for name in comparison.RIVALS:
        if candidate := candidates.get(name):
            runs = train(change(candidate.changes), candidate)
            means = [[simple_rivals.mean_of_all(x) for x in y.fitness] for y in runs]
            tried[name] = list(np.mean(means, 0))
    return simple_rivals.least_ranks(tried)
