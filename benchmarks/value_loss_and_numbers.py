"""Parts of the gain where a value loss and PPO's numbers evolved together.

    python -m searches.ppo_value_loss_and_numbers run.seeds=5 run.directory=runs/both
    python -m benchmarks.value_loss_and_numbers runs/both

In the PPO of the searches: the evolved losses, the squared error and PPO's clipped
loss, each with the evolved numbers and with the numbers as they were. In the
independent PPO, whose own loss is the squared error: the evolved losses, on CartPole
and on Acrobot, at three step sizes. Differences are paired by search and seed;
intervals count both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from benchmarks.value_loss_parts import ENVS, MEASURES, STEP_SIZES
from inner_loops import ppo
from metaevo import envs, losses, slots
from metaevo.analysis import differences, holdout
from metaevo.analysis.independent import judge
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import artifacts
from metaevo.types import Params, Space
from searches import ppo_value_loss_and_numbers

NUM_SEEDS = 32
LOSSES = {"clipped": losses.clipped_square, "squared": losses.square}


def part(space: Space, names: Sequence[str]) -> Space:
    """The space whose params replace the slots `names` alone."""

    def bind(params, meta):
        bound = space.bind(params, meta)
        return slots.replace(meta, **{name: slots.get(bound, name) for name in names})

    return space._replace(bind=bind)


def trained(
    space: Space, members: Sequence[Params], loss: slots.Slot = losses.square
) -> np.ndarray:
    """Scores in the search's PPO, [measures, members, seeds].

    Args:
        loss: what stands in the slot if the space does not replace it.
    """
    meta = ppo.Meta(lr=2.5e-3, value_loss=loss)
    runs, _ = holdout.train(
        ppo_value_loss_and_numbers.search(meta=meta),
        space,
        {str(i): params for i, params in enumerate(members)},
        jax.random.key(3),
        NUM_SEEDS,
        LocalEvaluator,
    )
    scores = [[x.fitness[0], x.final_return[0]] for x in runs.values()]
    return np.asarray(scores, float).swapaxes(0, 1)


def minus(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Mean difference and its ends, of scores paired by search and seed.

    Args:
        a: [searches, seeds].
        b: the same, or [1, seeds] if it is the same for all searches.
    """
    paired = a - b
    x = differences.crossed_difference(paired, np.zeros_like(paired[:1]), (True, False))
    return [round(y, 2) for y in (x.difference, x.low, x.high)]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("expected the directory of the searches")
    metaevo.configure()
    runs = sorted(Path(sys.argv[1]).glob("seed*"))
    bound = [artifacts.as_space(run / "solution") for run in runs]
    space, members = bound[0][0], [params for _, params in bound]
    numbers = [name for name in space.spec if name != "value_loss"]
    results = Results("value_loss_and_numbers")
    for kind, slots_of in (("evolved", numbers), ("as they were", [])):
        evolved = trained(part(space, [*slots_of, "value_loss"]), members)
        found = {"evolved": evolved}
        distinct = members if slots_of else members[:1]
        for name, loss in LOSSES.items():
            found[name] = trained(part(space, slots_of), distinct, loss)
        for name, scores in found.items():
            facts = {
                measure: {
                    "mean": scores[i].mean(1).round(2).tolist(),
                    "evolved_minus_this": minus(evolved[i], scores[i]),
                }
                for i, measure in enumerate(MEASURES)
            }
            results.add(agent="ppo", numbers=kind, loss=name, seeds=NUM_SEEDS, **facts)
    for name in ENVS:
        env, key = envs.make(name), jax.random.key(7)

        def train(loss, env=env, key=key):
            functions = {"value_loss": loss}
            return judge.scores("ppo", env, functions, key, 16, STEP_SIZES)

        square = train(losses.square)
        each = [train(space.bind(x, ppo.Meta()).value_loss) for x in members]
        for i, step_size in enumerate((*STEP_SIZES, "all")):
            at = slice(i, i + 1) if i < len(STEP_SIZES) else slice(None)
            facts = {}
            for measure in MEASURES:
                a = np.stack([getattr(x, measure)[at].mean(0) for x in each])
                b = getattr(square, measure)[at].mean(0)[None]
                facts[measure] = {
                    "mean": a.mean(1).round(2).tolist(),
                    "squared": round(float(b.mean()), 2),
                    "evolved_minus_squared": minus(a, b),
                }
            results.add(
                agent="independent ppo", env=name, lr=step_size, seeds=16, **facts
            )


if __name__ == "__main__":
    main()
