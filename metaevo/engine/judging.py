"""A judge for anybody's formulas: candidates of a search's slot, scored beside rivals.

All candidates, the simple functions of the slot and an untrained control are members of
one population, and so share worlds, programs and hurdles. One look trains each on the
search's seeds and tasks. The best simple function is chosen on looks of its own; the
others count in the verdict. A candidate that behaves as a known function is that one,
and is not trained. What fails, or is refused, is below every success.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, formulas
from metaevo.analysis import differences, holdout, rivals
from metaevo.analysis.steps import Steps
from metaevo.engine import foreign, identity
from metaevo.errors import ConfigError
from metaevo.learned import operations
from metaevo.types import Evaluator, Proposal, Search

__all__ = ["FAILED", "Submission", "judged", "read", "slot_of"]

FAILED = -1e9
"""`lower` of a candidate that has no score."""

LARGEST = 1e6  # value or slope at usual inputs
CONTROL = "untrained"
_CHOICE, _VERDICT = range(2)  # roles of the keys of looks


class Submission(NamedTuple):
    """A function that is to be judged.

    Attributes:
        name: of its file.
        function: a value of the slot; None if there is none.
        error: why there is none.
    """

    name: str
    function: Any = None
    error: str | None = None


def slot_of(search: Search) -> str:
    """The slot whose functions a search can judge: the one that evolves.

    Raises:
        ConfigError: it evolves none that takes formulas, or several.
    """
    found = [
        slot
        for slot, op in search.space.spec.items()
        if op["op"] != "number" and operations.get(op["op"]).slot in formulas.SLOTS
    ]
    if len(found) != 1:
        raise ConfigError(
            f"this search evolves {', '.join(search.space.spec) or 'nothing'}; a judge "
            f"needs one slot of {', '.join(formulas.SLOTS)}"
        )
    return found[0]


def read(
    path: Path,
    slot: str,
    reads: tuple[str, ...],
    allow_code: bool,
    limits: foreign.Allowance = foreign.Allowance(),
) -> Submission:
    """A file as a candidate: a formula, or Python code that is traced elsewhere.

    Args:
        path: `*.py` is code, any other file a formula, see `formulas.fixed`.
        reads: of the context, what code may read.
        allow_code: True if code may be traced, in a process of its own.
    """
    try:
        if path.suffix != ".py":
            if path.stat().st_size > 4 * formulas.MAX_TEXT:
                raise ConfigError(f"longer than {formulas.MAX_TEXT:,} characters")
            text = path.read_text(encoding="utf-8").strip()
            return Submission(path.name, formulas.fixed(slot, text))
        if not allow_code:
            raise ConfigError("this is code; allow_code=true traces it, see the docs")
        entry = foreign.traced(path, slot, reads, limits)
        made = operations.get(entry["op"]).rebuild(entry)
        return Submission(path.name, made.bind({}))
    except (ConfigError, OSError, UnicodeDecodeError, NotImplementedError) as error:
        return Submission(path.name, error=str(error))


class _Sorted(NamedTuple):
    """Candidates by what happens to them.

    Attributes:
        trained: name -> function, rivals and the control among them.
        same: candidate -> the function in `trained` that it is.
        refused: candidate -> why.
    """

    trained: dict[str, Any]
    same: dict[str, str]
    refused: dict[str, str]


def _sorted(
    slot: str, simple: Mapping[str, Any], given: Sequence[Submission]
) -> _Sorted:
    """Tell new functions from those that are known, or that cannot be trained."""
    trained, same, refused = dict(simple), {}, {}
    known: dict[bytes, str] = {}
    for name, function in simple.items():
        known.setdefault(_identity(slot, function), name)
    for one in given:
        if one.function is None or one.name in simple:
            taken = f"{one.name} is the name of a simple function: rename the file"
            refused[one.name] = one.error or taken
            continue
        try:
            mine = np.asarray(formulas.behaviour(slot, one.function))
            wrong = _wrong(formulas.at_points(slot, one.function))
        except (TypeError, ValueError) as error:
            wrong = str(error).splitlines()[0][:200]
        if wrong is None and not mine.any():
            wrong = "its slope is 0: nothing is learned from it"
        if wrong is not None:
            refused[one.name] = wrong
        elif (there := known.setdefault(mine.tobytes(), one.name)) != one.name:
            same[one.name] = there
        else:
            trained[one.name] = one.function
    return _Sorted(trained, same, refused)


def _wrong(found: Sequence[Any]) -> str | None:
    """Say why values or slopes at usual inputs are refused; None: they are not."""
    for name, x in zip(("values", "slopes"), map(np.asarray, found), strict=False):
        if bad := int((~np.isfinite(x)).sum()):
            return f"{name} are not finite at {bad} of {x.size} usual inputs"
        if (size := float(np.abs(x).max())) > LARGEST:
            return f"{name} of {size:.3g} at usual inputs; at most {LARGEST:g}"
    return None


def _identity(slot: str, function: Any) -> bytes:
    return np.asarray(formulas.behaviour(slot, function)).tobytes()


def judged(
    search: Search,
    given: Sequence[Submission],
    looks: int,
    folder: Path,
    make: Callable[[Search], Evaluator],
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """Judge candidates; what was made is kept, so that the same call goes on.

    Args:
        search: gives tasks, slot, fitness, seeds, hurdles and aggregate.
        given: candidates, with names of their own.
        looks: evaluations that count; half as many more choose the best rival.
        folder: of finished looks.
        make: `search -> evaluator`.
        seed: of the worlds.
        say: is told what is going on.

    Yields:
        one record a candidate, the best first: `name`, `stage` (`refused`, `known`,
        `failed`, `stopped` or `judged`), `mean`, `se` and `lower` of its difference
        from the best simple function, `looks`, `verdict` against that, `control`,
        against an untrained one where there is one, `rival`, `same_as` and `error`.

    Raises:
        ConfigError: the search has no slot to judge, or nothing to compare with.
    """
    slot = slot_of(search)
    simple = _simple(search, slot)
    told = _sorted(slot, simple, given)
    names = list(told.trained)
    space = rivals.chosen_from(told.trained, slot)
    lifted = search._replace(space=space, strategy=holdout.NO_STRATEGY)
    digest = identity.digest(
        identity.lifetime(search),
        identity.sources(search),
        identity.plain(search.aggregate),
        *(seed, search.num_seeds, search.common_random_numbers, names),
        *(_digest(slot, x) for x in told.trained.values()),
    )
    steps, evaluator = Steps(folder, digest), make(lifted)
    record_of = _Records({}, {}, "", 0)
    if not told.same and len(names) == len(simple):
        yield from (record_of(one, told) for one in given)
        return
    key = jax.random.key(seed)
    choosing = max(2, looks // 2)
    frames = sum(x.frames_per_segment * x.num_segments for x in search.tasks)
    each = search.num_seeds * frames
    say(
        f"{len(names) - len(simple)} candidates beside {len(simple)} simple functions, "
        f"{looks} looks and {choosing} for the choice: at most "
        f"{each * len(names) * (looks + choosing):,} frames"
    )

    def look(role: int, i: int, members: Sequence[int]) -> np.ndarray:
        """Scores of members [seeds, members], NaN of those that failed."""
        params = jnp.asarray(members, jnp.int32)
        now = jax.random.fold_in(jax.random.fold_in(key, role), i)

        def evaluate():
            found, _ = evaluator(now, Proposal(params), ())
            raw = np.asarray(found.fitness)
            there = fitness.reached(search, raw)
            found = fitness.with_hurdles(search, found)
            return {"fitness": np.asarray(found.fitness), "reached": there}

        kept = steps.step(f"look-{role}-{i}", evaluate, {"members": np.array(members)})
        stopped[role].append(~kept["reached"].all(0))
        say(f"look {i + 1} of {choosing if role == _CHOICE else looks}")
        return np.stack(
            [
                np.asarray(search.aggregate(jnp.asarray(kept["fitness"][:, s : s + 1])))
                for s in range(search.num_seeds)
            ]
        )

    stopped: dict[int, list] = {_CHOICE: [], _VERDICT: []}
    # The evaluator has one size of population: the choice repeats its members.
    rows = np.arange(len(names)) % len(simple)
    chosen = np.concatenate([look(_CHOICE, i, rows.tolist()) for i in range(choosing)])
    means = chosen[:, : len(simple)].mean(0)
    best = names[int(np.argmax(np.where(np.isfinite(means), means, -np.inf)))]
    everyone = list(range(len(names)))
    scores = np.concatenate([look(_VERDICT, i, everyone) for i in range(looks)])
    held = np.mean(stopped[_VERDICT], 0)
    by_name = {name: scores[:, i] for i, name in enumerate(names)}
    record_of = _Records(by_name, dict(zip(names, held, strict=True)), best, looks)
    records = [record_of(one, told) for one in given]
    yield from sorted(records, key=lambda x: -x["lower"])


def _simple(search: Search, slot: str) -> dict[str, Any]:
    """The hand-made function and the simple ones of the slot.

    Raises:
        ConfigError: the slot has neither.
    """
    own = {"hand-made": getattr(search.tasks[0].meta, slot)}
    found = own | rivals.of(search).get(slot, {})
    found = {name: x for name, x in found.items() if x is not None}
    if not found:
        raise ConfigError(f"slot {slot!r} has no function to compare with here")
    return found


def _digest(slot: str, function: Any) -> str:
    """Of values and slopes at usual inputs, to the bit."""
    found = map(np.asarray, formulas.at_points(slot, function))
    return hashlib.sha256(b"".join(x.tobytes() for x in found)).hexdigest()


class _Records(NamedTuple):
    """Makes the record of a candidate from the scores of all."""

    scores: Mapping[str, np.ndarray]
    stopped: Mapping[str, float]
    rival: str
    looks: int

    def __call__(self, one: Submission, told: _Sorted) -> dict[str, Any]:
        empty = {"mean": None, "se": None, "lower": FAILED, "looks": 0}
        record = {"name": one.name, "stage": "refused", **empty, "verdict": None}
        record |= {"rival": self.rival, "control": None, "same_as": None, "error": None}
        if one.name in told.refused:
            return record | {"error": told.refused[one.name]}
        name = told.same.get(one.name, one.name)
        mine, best = self.scores[name], self.scores[self.rival]
        record |= {"looks": self.looks, "same_as": told.same.get(one.name)}
        if not np.isfinite(mine).all():
            failed = int((~np.isfinite(mine)).sum())
            error = f"{failed} of {len(mine)} trainings were not finite"
            return record | {"stage": "failed", "error": error}
        stage = "known" if one.name in told.same else "judged"
        stage = "stopped" if self.stopped[name] > 0.5 else stage
        found = differences.paired_difference(mine, best)
        controls = [x for n, x in self.scores.items() if n.startswith(CONTROL)]
        against = [differences.paired_difference(mine, x).verdict for x in controls]
        gap = mine - best
        error = float(gap.std(ddof=1) / np.sqrt(len(gap))) if len(gap) > 1 else 0.0
        mean = float(gap.mean())
        return record | {
            "stage": stage,
            "mean": mean,
            "se": error,
            "lower": mean - error,
            "interval": [found.low, found.high],
            "verdict": "itself" if name == self.rival else found.verdict,
            "control": against[0] if against else None,
        }
