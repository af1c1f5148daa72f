"""Losses of a temporal difference, in agents in which they did not evolve.

    python -m searches.dqn_td_loss_and_numbers run.seeds=5 run.directory=runs/td
    python -m benchmarks.td_losses runs/td/seed0 runs/td/seed1 runs/td/seed2 \
        runs/td/seed3 runs/td/seed4

Agents: the DQN of the searches with its numbers as they were before, that at a smaller
and at a larger step size and on another task, PQN, and the independent DQN at three
step sizes. Each takes the loss alone, not the numbers that evolved beside it. Rivals:
the squared error, and an asymmetric square that was written after a look at what
evolved. A line that is in the results is not made again. The figure is
docs/images/td_loss.png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import dqn, pqn
from metaevo import envs, slots, spaces
from metaevo.analysis import holdout
from metaevo.analysis.independent import judge
from metaevo.analysis.independent.judge import Scores
from metaevo.evaluators.local import LocalEvaluator
from metaevo.learned import operations
from metaevo.storage import artifacts
from metaevo.types import InnerLoop, Params, Space
from searches import dqn_td_loss_and_numbers as searches_own

CARTPOLE, ACROBOT = "gymnax/CartPole-v1", "gymnax/Acrobot-v1"
NUM_SEEDS = 16
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "td_loss.png"
SHORT = dqn.Config(24_000, 1_000, num_steps=4)
MEASURES = ("lifetime", "final_return")


@slots.function
def expectile(td_error, q, target, context=None):
    """Half the square, of which an underestimate counts a tenth."""
    del q, target, context
    return 0.5 * jnp.where(td_error > 0, 0.1, 1.0) * td_error**2


def _dqn(env: str, lr: float) -> Callable[[], InnerLoop]:
    return lambda: dqn.make(envs.make(env), SHORT, dqn.Meta(lr=lr))


AGENTS: dict[str, Callable[[], InnerLoop]] = {
    "dqn 2e-3": _dqn(CARTPOLE, 2e-3),
    "dqn 5e-4": _dqn(CARTPOLE, 5e-4),
    "dqn 5e-3": _dqn(CARTPOLE, 5e-3),
    "dqn 2e-3 on Acrobot": _dqn(ACROBOT, 2e-3),
    "pqn": lambda: pqn.make(envs.make(CARTPOLE), pqn.Config(65_536), pqn.Meta()),
}
INDEPENDENT = [f"independent dqn {lr:g}" for lr in judge.AGENTS["dqn"].STEP_SIZES]


class Losses(NamedTuple):
    """The losses of a comparison.

    Attributes:
        space: in which the evolved ones evolved, without the numbers beside them.
        evolved: params of each.
        bound: the same as functions.
    """

    space: Space
    evolved: Sequence[Params]
    bound: Sequence[Any]


def load(directories: Sequence[str]) -> Losses:
    """The losses of finished runs, all of one family."""
    op = metaevo.load(directories[0]).manifest["slots"]["td_loss"]
    learned = operations.get(op["op"]).rebuild(op)
    evolved = [artifacts.params(Path(x))["td_loss"] for x in directories]
    bound = [learned.bind(x) for x in evolved]
    members = [{"td_loss": x} for x in evolved]
    return Losses(spaces.replace(td_loss=learned), members, bound)


def trained(agent: str, losses: Losses) -> dict[str, list[Scores]]:
    """Runs of an agent of ours with each loss."""
    search = searches_own.search()
    search = search._replace(inner_loop=AGENTS[agent]())
    key, by_hand = jax.random.key(0), holdout.fixed({"td_loss": expectile})
    groups = {
        "square": (holdout.HAND_MADE, [holdout.NOTHING]),
        "expectile": (by_hand, [holdout.NOTHING]),
        "evolved": (losses.space, losses.evolved),
    }
    found = {}
    for name, (space, members) in groups.items():
        several = {str(i): x for i, x in enumerate(members)}
        runs, _ = holdout.train(search, space, several, key, NUM_SEEDS, LocalEvaluator)
        found[name] = [Scores(x.fitness, x.final_return) for x in runs.values()]
    return found


def judged(agent: str, losses: Losses) -> dict[str, list[Scores]]:
    """Runs of the independent DQN with each loss."""
    env, lr = envs.make(CARTPOLE), float(agent.split()[-1])
    groups = {
        "square": [{}],
        "expectile": [{"td_loss": expectile}],
        "evolved": [{"td_loss": x} for x in losses.bound],
    }
    key = jax.random.key(0)
    return {
        name: [judge.scores("dqn", env, x, key, NUM_SEEDS, [lr]) for x in several]
        for name, several in groups.items()
    }


def draw(losses: Losses) -> None:
    """Draw the gradients in Q of all losses, in units of that at an error of 2."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    errors = np.linspace(-4, 4, 161)
    context = slots.Context(return_std=jnp.float32(1.0))

    def gradient(loss):
        at = jax.vmap(jax.grad(lambda q: loss(-q, q, jnp.float32(0), context)))
        return np.asarray(at(jnp.asarray(errors, jnp.float32)) / at(jnp.full(1, 2.0)))

    figure, axis = plt.subplots(figsize=(6, 3.6))
    for i, loss in enumerate(losses.bound):
        label = "evolved, one line a search" if i == 0 else None
        axis.plot(errors, gradient(loss), color="tab:blue", alpha=0.7, label=label)
    axis.plot(errors, errors / 2, color="black", linestyle="--", label="squared error")
    axis.plot(errors, gradient(expectile), color="tab:orange", label="expectile, 0.1")
    axis.set(
        xlabel="Q - target (standard deviations of the targets)",
        ylabel="gradient in Q, 1 at 2",
    )
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main(directories: list[str]) -> None:
    if not directories:
        sys.exit("expected the directories of finished searches")
    metaevo.configure()
    losses = load(directories)
    results = Results("td_losses", keep=True)
    done = {json.loads(x)["agent"] for x in results.lines}
    for agent in (*AGENTS, *INDEPENDENT):
        if agent in done:
            continue
        found = trained(agent, losses) if agent in AGENTS else judged(agent, losses)
        scores = {
            measure: {
                name: [np.asarray(getattr(x, measure))[0].round(2).tolist() for x in y]
                for name, y in found.items()
            }
            for measure in MEASURES
        }
        results.add(agent=agent, scores=scores)
    draw(losses)


if __name__ == "__main__":
    main(sys.argv[1:])
