"""Compare losses evolved for many step sizes and for one, in another PPO.

    python -m searches.ppo_weighted_value_loss run.seeds=3 run.directory=runs/one
    python -m searches.ppo_weighted_value_loss lr_factor=4 run.seeds=3 \
        run.directory=runs/many
    python -m experiments.distributions.run one=runs/one many=runs/many

Both groups of searches have the same frames. The losses are judged in the independent
PPO, on CartPole, at three step sizes that none of the searches was tuned to, beside its
own loss, the squared error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

import metaevo  # noqa: E402
from benchmarks.measure import Results, switches  # noqa: E402
from metaevo import envs  # noqa: E402
from metaevo.analysis import differences  # noqa: E402
from metaevo.analysis.independent import judge  # noqa: E402

STEP_SIZES = (5e-4, 1e-3, 5e-3)
CARTPOLE = "gymnax/CartPole-v1"
MEASURES = ("lifetime", "final_return")
FOLDER = Path(__file__).parent


def main() -> None:
    chosen = switches(
        {
            "one": "",
            "many": "",
            "searches": 3,
            "seeds": 32,
            "env": "gymnax/CartPole-v1",
        },
        sys.argv[1:],
    )
    if not (chosen["one"] and chosen["many"]):
        sys.exit("one= and many= need the directories of run.seeds")
    env, num_seeds = envs.make(str(chosen["env"])), int(str(chosen["seeds"]))
    num_searches = int(str(chosen["searches"]))

    def train(functions):
        key = jax.random.key(7)
        return judge.scores("ppo", env, functions, key, num_seeds, STEP_SIZES)

    candidates: dict[str, list[judge.Returns]] = {
        "squared": [train({})],  # the agent's own
    }
    for group in ("one", "many"):
        candidates[group] = [
            train({"value_loss": metaevo.load(path / "solution").value_loss})
            for path in directories(Path(str(chosen[group])), num_searches)
        ]
    results = Results("results", folder=FOLDER)
    for measure in MEASURES:
        table = {
            name: np.stack([getattr(x, measure) for x in scores])
            for name, scores in candidates.items()
        }  # [searches, step sizes, seeds]
        for name, scores in table.items():
            results.add(
                measure=measure,
                group=name,
                env=env.name,
                seeds=num_seeds,
                step_sizes=STEP_SIZES,
                mean=scores.mean((0, 2)).round(2).tolist(),
                each=scores.mean(2).round(2).tolist(),
                failed=int((~np.isfinite(scores)).sum()),
            )
        pairs = [("many", "one"), ("many", "squared"), ("one", "squared")]
        for a, b in pairs:
            searched = a in ("one", "many"), b in ("one", "many")
            for i, lr in enumerate([*STEP_SIZES, None]):
                x, y = (
                    table[name].mean(1) if lr is None else table[name][:, i]
                    for name in (a, b)
                )
                found = differences.crossed_difference(x, y, searched)
                results.add(
                    measure=measure,
                    a=a,
                    b=b,
                    env=env.name,
                    seeds=num_seeds,
                    searches=[len(x), len(y)],
                    lr="mean of all" if lr is None else lr,
                    difference=round(found.difference, 2),
                    low=round(found.low, 2),
                    high=round(found.high, 2),
                    verdict=found.verdict,
                )


def directories(root: Path, num: int) -> list[Path]:
    """The first `num` runs of a directory made by `run.seeds`."""
    found = sorted(root.glob("seed*"), key=lambda x: int(x.name.removeprefix("seed")))
    if len(found) < num:
        sys.exit(f"{root}: expected {num} runs, found {len(found)}")
    return found[:num]


if __name__ == "__main__":
    main()
