"""Simple functions that an evolved one has to beat, tried after each search of one.

    ½ w δ²,  w = 0.1 where the value is below its target, 1 above         slow to rise

A function that evolved may be worth no more than a line that anybody writes down. So
the comparison trains the simple functions of the slots that evolved, with the numbers
of the algorithm as it is. They are members of one population, compiled once. The best
of them is chosen on seeds of its own, and then trained on the seeds of the solution.

They are not tuned, and numbers that evolved beside the function stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import drifts, losses, slots
from metaevo.analysis import holdout
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.steps import Steps
from metaevo.analysis.verdicts import SIMPLEST
from metaevo.evaluators.layout import default_chunk_size
from metaevo.learned import operations
from metaevo.learned.functions import return_std
from metaevo.types import Evaluator, Key, Search, Space

CHOOSING = 2  # role for which the key of the held-out seeds is split
SHIFT = 0.65
"""Of the shifted square, in standard deviations of the targets."""


def _weighted(below: float, above: float):
    @slots.function
    def loss(td_error, q, target, context=None):
        del q, target, context
        return 0.5 * jnp.where(td_error > 0, below, above) * td_error**2

    return loss


@slots.function
def _shifted(td_error, q, target, context=None):
    """½ (Q − g + 0.65 s)², s the deviation of targets; 0 in a loop that tells none."""
    del q, target
    told = context is not None and context.return_std is not None
    std = return_std(context) if told else 0.0
    return 0.5 * (SHIFT * std - td_error) ** 2


@slots.function
def _dqn_reg(td_error, q, target, context=None):
    """½ δ² + 0.05 Q: DQNReg (Co-Reyes et al., 2021, arXiv:2101.03958), halved."""
    del target, context
    return 0.5 * td_error**2 + 0.05 * q


def _of_value(loss):
    """A loss of a temporal difference as one of values."""

    @slots.function
    def of_value(value, target, old_value, context=None):
        del old_value
        return loss(target - value, value, target, context)

    return of_value


_ERRORS = {
    "Huber": losses.td_huber,
    "slow to rise": _weighted(0.1, 1.0),
    "slow to fall": _weighted(1.0, 0.1),
    "reluctant": losses.td_reluctant,
    "shifted": _shifted,
}
SIMPLE: Mapping[str, Mapping[str, Any]] = {
    "td_loss": {
        "square": losses.td_square,
        **_ERRORS,
        "DQNReg": _dqn_reg,
        "untrained": _weighted(0.0, 0.0),
    },
    "value_loss": {
        "square": losses.square,
        "clipped square": losses.clipped_square,
        **{name: _of_value(x) for name, x in _ERRORS.items()},
        "untrained critic": _of_value(_weighted(0.0, 0.0)),
    },
    "drift": {"clip": drifts.ppo_clip, "DPO": drifts.dpo, "none": drifts.zero},
}
"""Kind of slot -> its simple functions by name. With a loss that is 0 nothing learns:
what evolves in short lives may be worth no more than that."""

DRAWN = ("Huber", "slow to rise", "slow to fall", "DPO", "none")
"""Those that are drawn while none is known to be the best."""


class Best(NamedTuple):
    """The best simple function.

    Attributes:
        runs: on the seeds of the solution.
        facts: `name`, of the slot and the function; `tried`, name -> mean of the
            fitness by task on `num_seeds` other seeds, None if all failed.
    """

    runs: HeldOut
    facts: dict[str, Any]


def of(search: Search) -> dict[str, dict[str, Any]]:
    """Return the simple functions of each slot that evolves, without the slot's own."""
    found = {}
    if any(loop.outside for loop in search.tasks):
        return found
    for slot, op in search.space.spec.items():
        kind = "" if op["op"] == "number" else operations.get(op["op"]).slot
        own = [getattr(loop.meta, slot, None) for loop in search.tasks]
        same = {getattr(x, "func", None) for x in own}
        simple = {k: x for k, x in SIMPLE.get(kind, {}).items() if x.func not in same}
        if simple:
            found[slot] = simple
    return found


def num_tried(search: Search) -> int:
    """Return the number of simple functions of a search."""
    return sum(map(len, of(search).values()))


def choosing_seeds(num_seeds: int) -> int:
    """Return the seeds on which the best is chosen, of N held-out ones."""
    return max(2, num_seeds // 2)


def best(
    steps: Steps,
    search: Search,
    compared: Search,
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
) -> Best | None:
    """Choose the best simple function, and train it on held-out seeds.

    Over several tasks the best is that of the least sum of ranks.

    Args:
        steps, make: as in `holdout.train_kept`.
        search: gives the inner loops of the choice, the space and the fitness.
        compared: the same with the tasks on which it is judged.
        key: determines the held-out seeds, and others for the choice.
        num_seeds: N, held-out seeds.

    Returns:
        None if no slot that evolves has simple functions.
    """
    if not of(search):
        return None
    num = choosing_seeds(num_seeds)
    choosing_key = jax.random.fold_in(key, CHOOSING)
    # One width, so that the choice and the comparison share a program.
    num_devices = make(holdout.alone(search, holdout.HAND_MADE)).num_devices
    width = search.chunk_size or default_chunk_size(num, num_devices)
    search, compared = (x._replace(chunk_size=width) for x in (search, compared))

    def train(slot: str, space: Space, numbers: Sequence[np.int32]) -> list[HeldOut]:
        names = {f"{slot} {x}": x for x in numbers}
        given = steps, search, space, names, choosing_key, num, make
        return list(holdout.train_kept(*given)[0].values())

    name, slot, number, tried = choose(search, train)
    chosen = {SIMPLEST: number}
    space = chosen_from(of(search)[slot], slot)
    runs, _ = holdout.train_kept(steps, compared, space, chosen, key, num_seeds, make)
    told = {k: [v if np.isfinite(v) else None for v in x] for k, x in tried.items()}
    return Best(runs[SIMPLEST], {"name": name, "tried": told, "num_seeds": num})


def choose(
    search: Search, train: Callable[[str, Space, Sequence[np.int32]], list[HeldOut]]
) -> tuple[str, str, np.int32, dict[str, list[float]]]:
    """Return the best simple function of a search that has any.

    Args:
        train: `(slot, space, numbers) -> runs`, of the functions of a slot, which
            `space` binds by their numbers.

    Returns:
        its name with its slot's, the slot, its number there, and the mean fitness of
        all by task.
    """
    tried, places = {}, {}
    for slot, simple in of(search).items():
        numbers = [np.int32(i) for i in range(len(simple))]
        runs = train(slot, chosen_from(simple, slot), numbers)
        for name, number, one in zip(simple, numbers, runs, strict=True):
            tried[f"{slot} {name}"] = [mean_of_all(x) for x in one.fitness]
            places[f"{slot} {name}"] = slot, number
    name = least_ranks(tried)
    return name, *places[name], tried


def chosen_from(simple: Mapping[str, Any], slot: str) -> Space:
    """Return a space whose params are the number of a function: one program for all."""

    def one(number, *args, **named):
        return jnp.stack([f(*args, **named) for f in simple.values()])[number]

    def bind(number, meta):
        return slots.replace(meta, **{slot: Partial(one, number)})

    return Space(lambda key: jnp.int32(0), bind)


def mean_of_all(scores: np.ndarray) -> float:
    """Return the mean of scores; NaN, the worst, if any run failed.

    >>> mean_of_all(np.array([1.0, 3.0])), mean_of_all(np.array([9.0, np.inf]))
    (2.0, nan)
    """
    return float(scores.mean()) if np.isfinite(scores).all() else float("nan")


def least_ranks(tried: Mapping[str, list[float]]) -> str:
    """The name with the least sum of ranks over tasks; a failure is the worst.

    >>> least_ranks({"a": [1.0, 5.0], "b": [2.0, 9.0], "c": [float("nan"), 7.0]})
    'b'
    """
    scores = np.nan_to_num(np.array(list(tried.values())), nan=-np.inf)
    ranks = (scores[None] > scores[:, None]).sum(1)  # how many are better, by task
    return list(tried)[int(ranks.sum(1).argmin())]
