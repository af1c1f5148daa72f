"""Figure 2 of the PBT paper (Jaderberg et al., 2017), from `searches/pbt_toy.py`.

    python scripts/pbt_toy.py [FILE]

draws the ways of the two agents in four settings to docs/images/pbt_toy.png.
"""

import sys
from pathlib import Path

import metaevo

metaevo.configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from searches import pbt_toy  # noqa: E402

SETTINGS = {
    "PBT": {},
    "no exploitation": {"exploit": False},
    "no exploration": {"noise": 0.0},
    "share agents alone": {"copies": "agent", "noise": 0.0},
}


def ways(search: metaevo.Search, seed: int) -> tuple[np.ndarray, float]:
    """Return the agents' paths [generations, 2 agents, 2] and the best objective."""
    evaluate, strategy = LocalEvaluator(search), search.strategy
    key = jax.random.key(seed)
    state, carried, places = strategy.init(key), (), []
    for i in range(search.num_generations):
        ask, run, tell = jax.random.split(jax.random.fold_in(key, i), 3)
        proposal, state = strategy.ask(ask, state)
        found, carried = evaluate(run, proposal, carried)
        state = strategy.tell(
            tell, state, proposal, jax.numpy.asarray(found.fitness[0, 0])
        )
        train = found.train[0]
        places.append(np.stack([train["theta0"], train["theta1"]], -1)[0, :, -1])
    return np.stack(places), float(found.fitness.max())


def main(file: str = "docs/images/pbt_toy.png") -> None:
    figure = Figure(figsize=(11, 3), layout="constrained")
    for axes, (name, settings) in zip(
        figure.subplots(1, 4), SETTINGS.items(), strict=True
    ):
        places, best = ways(pbt_toy.search(**settings), seed=0)
        grid = np.linspace(-0.05, 1, 100)
        height = 1.2 - (grid[:, None] ** 2 + grid[None] ** 2)
        axes.contour(grid, grid, height, 8, colors="0.8", linewidths=0.7)
        for agent, color in enumerate(("#0072B2", "#D55E00")):
            axes.plot(*places[:, agent].T, ".", ms=4, color=color)
        axes.set(title=f"{name}: {best:.2f}", xlabel="θ₀", ylabel="θ₁", aspect="equal")
    Path(file).parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=110)
    print(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
