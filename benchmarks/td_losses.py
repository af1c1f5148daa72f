"""Draw losses of a temporal difference that evolved, beside an expectile.

    python -m searches.dqn_td_loss_and_numbers run.seeds=5 run.directory=runs/td
    python -m benchmarks.td_losses runs/td/seed0 runs/td/seed1 runs/td/seed2 \
        runs/td/seed3 runs/td/seed4

The figure is docs/images/td_loss.png. What such a loss is worth in other agents is in
`benchmarks.strangers`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from metaevo import slots
from metaevo.learned import operations
from metaevo.storage import artifacts

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "td_loss.png"


@slots.function
def expectile(td_error, q, target, context=None):
    """Half the square, of which an underestimate counts a tenth."""
    del q, target, context
    return 0.5 * jnp.where(td_error > 0, 0.1, 1.0) * td_error**2


def load(directories: Sequence[str]) -> list[slots.Slot]:
    """The losses of finished runs, all of one family."""
    op = metaevo.load(directories[0]).manifest["slots"]["td_loss"]
    learned = operations.get(op["op"]).rebuild(op)
    return [learned.bind(artifacts.params(Path(x))["td_loss"]) for x in directories]


def draw(losses: Sequence[slots.Slot]) -> None:
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
    for i, loss in enumerate(losses):
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
    draw(load(directories))


if __name__ == "__main__":
    main(sys.argv[1:])
