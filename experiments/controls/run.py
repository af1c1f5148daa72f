"""Count how often a copy of the hand-made function, or an untrained agent, wins.

    python -m experiments.controls.run          ten minutes on a core

60 comparisons of toy length: DQN on CartPole, 8,000 frames, 16 seeds that differ from
one comparison to the next. Candidates are the squared error itself, in the program of
the simple functions, and a loss that is 0. Each is compared with DQN as it is, as
`metaevo.analysis.verdicts` does. A line of the results is a comparison, with scores by
seed; a line that is there is not made again.
"""

from __future__ import annotations

import json
from pathlib import Path

import metaevo

metaevo.configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.measure import Results  # noqa: E402
from inner_loops import dqn  # noqa: E402
from metaevo import envs, fitness, losses  # noqa: E402
from metaevo.analysis import holdout, rivals, verdicts  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Search  # noqa: E402

FOLDER = Path(__file__).parent
NUM, SEEDS = 60, 16
UNTRAINED = rivals.SIMPLE["td_loss"]["untrained"]
CANDIDATES = {"copy": losses.td_square, "untrained": UNTRAINED}
MEASURES = ("fitness", "final_return")


def compared(i: int) -> dict:
    """Scores of one comparison, [seeds] for each candidate and measure."""
    config = dqn.Config(8_000, 1_000, num_steps=4, num_segments=1)
    loop = dqn.make(envs.make("gymnax/CartPole-v1"), config, dqn.Meta(lr=2e-3))
    search = Search(loop, holdout.HAND_MADE, None, 1, fitness.area_under_curve)  # pyright: ignore[reportArgumentType]  # nothing is proposed
    space = rivals.chosen_from(CANDIDATES, "td_loss")
    numbers = {name: np.int32(n) for n, name in enumerate(CANDIDATES)}
    nothing = {verdicts.HAND_MADE: holdout.NOTHING}
    key, found = jax.random.key(1_000 + i), {}
    for bound_by, candidates in ((space, numbers), (holdout.HAND_MADE, nothing)):
        found |= holdout.train(search, bound_by, candidates, key, SEEDS, evaluator)[0]
    return {
        name: {x: np.round(getattr(runs, x)[0], 3).tolist() for x in MEASURES}
        for name, runs in found.items()
    }


_EVALUATORS: dict[bool, LocalEvaluator] = {}


def evaluator(search: Search, **options) -> LocalEvaluator:
    """One for each space, so that its program is compiled once."""
    known = search.space.bind is holdout.HAND_MADE.bind
    if known not in _EVALUATORS:
        _EVALUATORS[known] = LocalEvaluator(search, jax.devices(), **options)
    return _EVALUATORS[known]


def main() -> None:
    results = Results("results", keep=True, folder=FOLDER)
    for i in range(len(results.lines), NUM):
        results.add(comparison=i, **compared(i))
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for line in map(json.loads, results.lines):
        runs = {
            name: holdout.HeldOut(*(np.array([line[name][x]]) for x in MEASURES), ())
            for name in (*CANDIDATES, verdicts.HAND_MADE)
        }
        for name in CANDIDATES:
            both = {verdicts.SOLUTION: runs[name]}
            both[verdicts.HAND_MADE] = runs[verdicts.HAND_MADE]
            facts = {"measure": fitness.area_under_curve.name}
            for x in verdicts.verdicts(both, facts):
                of = counts.setdefault((name, x.measure), {})
                of[x.paired.verdict] = of.get(x.paired.verdict, 0) + 1
    for (name, measure), found in counts.items():
        print(f"{name}, {measure}: {found}")


if __name__ == "__main__":
    main()
